"""`trimtab reproduce`: a paper's claim, measured again and judged by rules that were fixed beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trimtab.cli.options import Count, Json

if TYPE_CHECKING:
    from trimtab.claims import Claim
    from trimtab.claims.ledger import Result


@dataclass(frozen=True)
class Reproduce:
    """Test claims of the five papers: train what they need, measure, judge.

    IDS are claims (MIX-4), papers (MIX ADV APA ADA LIG), `headline`, `wave1` or `all`; --list shows their
    status. A file PAUSE in the folder of --work stops a run after the unit at hand; run it again to resume,
    as after a kill. Every claim's rows, intervals and verdict are written to OUT/SCALE, with a page for all
    of them.
    """

    ids: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[IDS ...]")] = ()
    """MIX-4, MIX, headline, wave1 (the desk's first, in order) or all."""
    scale: str = "laptop"
    """smoke (seconds, proves that it runs), laptop or desk (CIFAR-10, two CPU cores) or paper (GPUs)."""
    seeds: Count = None
    """Seeds per claim; those of the claim if not given."""
    engine: str = "local"
    """local, or ray for the same work as tasks on a Ray cluster."""
    out: Path = Path("results")
    """Where results go."""
    work: Path = Path(".trimtab/claims")
    """Where networks, constructed sets and measurements are kept and shared between claims."""
    threads: Count = None
    """CPU threads of each worker."""
    listed: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(name="list")] = False
    """Only show claims, what they cost at this scale in minutes, and what is known of them."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print what the selected claims cost at this scale, as --list does, and measure nothing."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        from trimtab import claims
        from trimtab.claims import bench, ledger, page
        from trimtab.cli import console
        from trimtab.types import BadInput

        selected = claims.chosen(self.ids or (["all"] if self.listed else []))
        if not selected:
            raise BadInput("give a claim, a paper, headline or all; `trimtab reproduce --list` shows them")
        if self.listed or self.dry_run:
            return self._list(selected)
        if self.scale == "desk" and not self.json:
            before = [ledger.read(claim, self.scale, self.out) for claim in selected]
            planned, left = page.hours_left(before, self.seeds)
            console.err.print(f"Budget: {planned:.1f} hours on two cores, of which {left:.1f} are left.")
        problems: dict[str, str] = {}
        results = self._measured(ledger, selected, problems)
        page.publish(self.scale, self.out)
        self._show(results)
        if bench.paused(self.work):
            console.err.print(
                f"Paused by {self.work / 'PAUSE'}: remove it and run the command again to resume."
            )
        for at, problem in problems.items():
            console.err.print(f"{at} could not be measured: {problem}", markup=False)
        return 1 if problems else 0

    def _measured(self, ledger: Any, selected: list[Claim], problems: dict[str, str]) -> list[Result]:
        from trimtab.cli import console

        where = {"scale": self.scale, "out": self.out, "work": self.work, "seeds": self.seeds}
        with console.progress(f"{len(selected)} claims") as bar:
            parts = [0, 1]  # measured, in total

            def on_unit(done: Any, measured: int, total: int) -> None:
                parts[:] = [measured, total]
                if done.problem and not done.network:
                    problems[f"{done.unit.id}, seed {done.unit.seed},"] = done.problem
                bar(measured, total, f"{done.unit.id}, seed {done.unit.seed}")

            def on_progress(step: str, fraction: float) -> None:
                bar(parts[0], parts[1], f"{step} {100 * fraction:.0f} %")

            results: list[Result] = ledger.run(
                selected,
                **where,
                engine=self.engine,
                threads=self.threads,
                progress=on_progress,
                on_done=on_unit,
            )
        return results

    def _show(self, results: list[Result]) -> None:
        from trimtab.claims.page import shown
        from trimtab.cli import console

        if self.json:
            console.as_json(
                [
                    {
                        "id": result.claim.id,
                        "verdict": result.verdict,
                        "note": result.note,
                        "tests": result.judgements,
                        "means": result.means,
                    }
                    for result in results
                ]
            )
            return
        for result in results:
            console.out.print(f"[bold]{result.claim.id}[/bold] {result.claim.sentence}")
            for judged in result.judgements:
                console.out.print(f"  {judged.verdict:15} {judged.test}: {shown(judged)}", markup=False)
            console.out.print(f"  [bold]{result.verdict}[/bold]{', ' if result.note else ''}{result.note}")
        console.out.print(f"All rows are in {self.out / self.scale}, and a page: ledger.md", markup=False)

    def _list(self, selected: list[Claim]) -> int:
        from trimtab.claims import ledger, page
        from trimtab.cli import console

        verdicts = {claim.id: ledger.stored_verdict(claim, self.scale, self.out) for claim in selected}
        costs = page.plan(selected, self.scale, self.seeds)
        if self.json:
            console.as_json([{**cost, "verdict": verdicts[cost["id"]]} for cost in costs])
            return 0
        rows = [
            [
                claim.id,
                claim.sentence,
                str(cost["seeds"]),
                str(cost["networks"]),
                _minutes(cost),
                verdicts[claim.id],
            ]
            for claim, cost in zip(selected, costs, strict=True)
        ]
        total = sum(cost["minutes"] for cost in costs)
        whole = "days on GPUs" if self.scale == "paper" else f"about {total:.0f} minutes on two cores"
        columns = ["id", "claim", "seeds", "new networks", "minutes", "status"]
        console.table(
            f"{len(selected)} claims at scale {self.scale}: {whole}", columns, rows, right=(2, 3, 4)
        )
        return 0


def _minutes(cost: Any) -> str:
    return "" if cost["minutes"] != cost["minutes"] else f"{cost['minutes']:.0f}"
