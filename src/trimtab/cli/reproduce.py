"""`trimtab reproduce`: a paper's claim, measured again and judged by rules that were written beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trimtab.cli.options import Count, Json

if TYPE_CHECKING:
    from trimtab.studies import Claim
    from trimtab.studies.ledger import Result


@dataclass(frozen=True)
class Reproduce:
    """Test claims of the five papers: train what they need, measure, judge. Killed, it goes on.

    IDS are claims (MIX-4), papers (MIX ADV APA ADA LIG), `headline` or `all`; --list shows their status.
    Every claim's rows, intervals and verdict are written to OUT/SCALE, with a page for all of them.
    """

    ids: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[IDS ...]")] = ()
    """MIX-4, MIX, headline or all."""
    scale: str = "laptop"
    """smoke (seconds, proves that it runs), laptop (CIFAR-10, two CPU cores) or paper (GPUs)."""
    seeds: Count = None
    """How many; the study's own number if not given."""
    engine: str = "local"
    """local, or ray for the same work as tasks on a Ray cluster."""
    out: Path = Path("results")
    """Where results go."""
    work: Path = Path(".trimtab/studies")
    """Where networks, constructed sets and measurements are kept and shared between claims."""
    threads: Count = None
    """CPU threads of each worker."""
    listed: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(name="list")] = False
    """Only show claims, what they cost at this scale in minutes, and what is known of them."""
    json: Json = False

    def run(self) -> int:
        from trimtab import studies
        from trimtab.cli import show
        from trimtab.studies import ledger, page
        from trimtab.types import BadInput

        claims = studies.chosen(self.ids or (["all"] if self.listed else []))
        if not claims:
            raise BadInput("give a claim, a paper, headline or all; `trimtab reproduce --list` shows them")
        if self.listed:
            return self._list(claims)
        problems: dict[str, str] = {}
        results = self._measured(ledger, claims, problems)
        page.publish(self.scale, self.out)
        self._show(results)
        for at, problem in problems.items():
            show.err.print(f"{at} could not be measured: {problem}", markup=False)
        return 1 if problems else 0

    def _measured(self, ledger: Any, claims: list[Claim], problems: dict[str, str]) -> list[Result]:
        from trimtab.cli import show

        where = {"scale": self.scale, "out": self.out, "work": self.work, "seeds": self.seeds}
        with show.progress(f"{len(claims)} claims", "parts") as bar:
            at = [0, 1]

            def told(done: Any, measured: int, total: int) -> None:
                at[:] = [measured, total]
                if done.problem and not done.network:
                    problems[f"{done.unit.id}, seed {done.unit.seed},"] = done.problem
                bar(measured, total, f"{done.unit.id}, seed {done.unit.seed}")

            def tell(words: str, share: float) -> None:
                bar(at[0], at[1], f"{words} {100 * share:.0f} %")

            found: list[Result] = ledger.run(
                claims, **where, engine=self.engine, threads=self.threads, tell=tell, told=told
            )
        return found

    def _show(self, results: list[Result]) -> None:
        from trimtab.cli import show
        from trimtab.studies.page import shown

        if self.json:
            show.as_json(
                [
                    {
                        "id": one.claim.id,
                        "verdict": one.verdict,
                        "note": one.note,
                        "tests": one.judgements,
                        "means": one.means,
                    }
                    for one in results
                ]
            )
            return
        for one in results:
            show.out.print(f"[bold]{one.claim.id}[/bold] {one.claim.sentence}")
            for judged in one.judgements:
                show.out.print(f"  {judged.verdict:15} {judged.test}: {shown(judged)}", markup=False)
            show.out.print(f"  [bold]{one.verdict}[/bold]{', ' if one.note else ''}{one.note}")
        show.out.print(f"All rows are in {self.out / self.scale}, and a page: ledger.md", markup=False)

    def _list(self, claims: list[Claim]) -> int:
        from trimtab.cli import show
        from trimtab.studies import ledger, page

        known = {claim.id: ledger.read(claim, self.scale, self.out) for claim in claims}
        costs = page.plan(claims, self.scale, self.seeds)
        if self.json:
            show.as_json([{**cost, "verdict": known[cost["id"]].verdict} for cost in costs])
            return 0
        rows = [
            [
                claim.id,
                claim.sentence,
                str(cost["seeds"]),
                str(cost["networks"]),
                _minutes(cost),
                known[claim.id].verdict,
            ]
            for claim, cost in zip(claims, costs, strict=True)
        ]
        total = sum(cost["minutes"] for cost in costs)
        whole = "days on GPUs" if self.scale == "paper" else f"about {total:.0f} minutes on two cores"
        columns = ["id", "claim", "seeds", "new networks", "minutes", "status"]
        show.table(f"{len(claims)} claims at scale {self.scale}: {whole}", columns, rows, right=(2, 3, 4))
        return 0


def _minutes(cost: Any) -> str:
    return "" if cost["minutes"] != cost["minutes"] else f"{cost['minutes']:.0f}"
