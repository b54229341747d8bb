"""`trimtab runs` and `trimtab report`: list, compare, export and show finished evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from trimtab.cli.lazy import console, evaluate, report
from trimtab.cli.options import Json, OptionalPath
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.evaluate import Card
    from trimtab.evaluate.stored_runs import StoredRun


HEADLINE = ("images", "clean", "worst attack", "flags")


@dataclass(frozen=True)
class RunsCommand:
    """List finished evaluations, compare some of them, or export them as CSV."""

    ids: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[IDS ...]")] = ()
    """Ids of runs to compare; their first characters are enough."""
    csv: OptionalPath = None
    """Write the rows to this file."""
    store: Path = Path(".trimtab/store.sqlite")
    """File that stores the results."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        import json

        from trimtab.io import atomic_write

        if not self.store.exists():
            raise BadInput(
                f"there is no store {self.store}; `trimtab evaluate` creates it in the current folder"
            )
        chosen = [evaluate.find(id, self.store) for id in self.ids] or evaluate.runs(self.store)
        if self.csv is not None:
            with atomic_write(self.csv) as part:
                part.write_text(evaluate.export(chosen))
            console.note(f"{len(chosen)} runs are in {self.csv}.")
        if self.json:
            console.as_json(
                [{"id": run.id, "finished": run.finished, **json.loads(run.card.json())} for run in chosen]
            )
        elif self.csv is None:
            _compare(chosen) if self.ids else self._list(chosen)
        return 0

    def _list(self, chosen: list[StoredRun]) -> None:
        rows = [
            [r.id[:8], r.finished[5:16], r.card.model, r.card.data, r.card.suite, *_headline(r.card)]
            for r in chosen
        ]
        columns = ["id", "finished (UTC)", "model", "data", "suite", *HEADLINE]
        if not rows:
            hint = "`trimtab evaluate zoo:sample-standard` makes one in a minute"
            console.say(f"0 runs in {self.store}; {hint}.")
            return
        title = f"{len(rows)} runs in {self.store}; accuracies in the first BN mode"
        console.table(title, columns, rows, right=range(5, 9))


def _compare(chosen: list[StoredRun]) -> None:
    rows = [
        [str(condition), str(mode), str(seed), *(console.cell(row) for row in by_run)]
        for (condition, mode, seed), by_run in evaluate.compare(chosen).items()
    ]
    columns = ["condition", "BN mode", "seed", *(f"{run.id[:8]} {run.card.model}" for run in chosen)]
    measured_on = dict.fromkeys(run.card.measured_on for run in chosen)
    console.table(f"Measured on {'; '.join(measured_on)}", columns, rows, right=range(2, 12))
    if differences := evaluate.unlike([run.card for run in chosen]):
        console.say(f"Not comparable: these were measured {differences}.")


@dataclass(frozen=True)
class ReportCommand:
    """Write an HTML page about one model, or a comparison of up to eight."""

    ids: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="IDS ...")]
    """Ids of runs (`trimtab runs`), of which the first characters are enough, or JSON files that `trimtab
    evaluate --json` printed."""
    out: Path = Path("page.html")
    """Where to write the page."""
    store: Path = Path(".trimtab/store.sqlite")
    """File that stores the results."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        if not self.ids:
            raise BadInput("give the ids of one to eight runs; `trimtab runs` lists them")
        for id in self.ids:
            if id.endswith(".json") and not Path(id).is_file():
                raise BadInput(f"there is no file {id}")
        cards = [_card(id) if Path(id).is_file() else evaluate.find(id, self.store).card for id in self.ids]
        report.page(cards, self.out)
        about = {"page": self.out, "models": [card.model for card in cards], "verdict": report.verdict(cards)}
        return console.result(self.json, about, f"The page is {self.out}.")


def _headline(card: Card) -> list[str]:
    """Return the cells of a card under HEADLINE."""
    rows = [row for row in card.rows if row.bn_mode == card.rows[0].bn_mode]
    accuracies = [[row.accuracy for row in rows if row.kind == kind] for kind in ("clean", "attack")]
    lowest = [console.percent(min(values)) if values else "" for values in accuracies]
    return [str(max((row.n for row in rows), default=0)), *lowest, str(len(card.flags))]


def _card(path: str) -> Card:
    """Read the card in a JSON file."""
    from trimtab.evaluate import Card

    try:
        return Card.read(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a scorecard: it is not text") from None
    except BadInput as problem:
        raise BadInput(f"{path}: {problem}; give what `trimtab evaluate --json` printed") from None
