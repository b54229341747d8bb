"""`trimtab reproduce`: test the claims of the papers by rules that were fixed in advance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from trimtab.cli.lazy import claims, console
from trimtab.cli.options import Json, OptionalInt
from trimtab.types import BadInput

if TYPE_CHECKING:
    from trimtab.claims import Claim
    from trimtab.claims.ledger import Result


@dataclass(frozen=True)
class ReproduceCommand:
    """Test claims of the five papers: train what they need, measure, judge.

    IDS are claims (MIX-4), papers (MIX ADV APA ADA LIG), `headline`, `wave1` or `all`; --list shows their
    status. A file PAUSE in the folder of --work stops a run after the current unit; run the command again to
    resume, as after an interruption. Every claim's rows, intervals and verdict are written to OUT/SCALE, with
    a page of all claims.
    """

    ids: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[IDS ...]")] = ()
    """MIX-4, MIX, headline, wave1 (the desk's first, in order) or all."""
    scale: str = "laptop"
    """smoke (seconds, only checks that it runs), laptop or desk (CIFAR-10, two CPU cores) or paper (GPUs)."""
    seeds: OptionalInt = None
    """Seeds per claim; those of the claim if not given."""
    engine: str = "local"
    """local, or ray: tasks on a Ray cluster."""
    out: Path = Path("results")
    """Where results go."""
    work: Path = Path(".trimtab/claims")
    """Where networks, constructed sets and measurements are kept and shared between claims."""
    workers: OptionalInt = None
    """Processes of the local engine, one per core (default 1: this process)."""
    threads: OptionalInt = None
    """CPU threads of each worker; 1 if there are several."""
    listed: Annotated[tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(name="list")] = False
    """Only list claims, their units and their status; measure nothing."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print what --list prints, the budget and the detectable effects; measure nothing."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        from trimtab.claims import bench, ledger, page

        selected = claims.chosen(self.ids or (["all"] if self.listed else []))
        if not selected:
            raise BadInput("give a claim, a paper, headline or all; `trimtab reproduce --list` shows them")
        if self.listed or self.dry_run:
            return self._list(selected)
        if not self.json:
            self._show_plan(selected)
        problems: dict[str, str] = {}
        results = self._measure(ledger, page, selected, problems)
        page.publish(self.scale, self.out)
        self._show(results)
        if bench.paused(self.work):
            console.note(f"Paused by {self.work / 'PAUSE'}: remove it and run the command again to resume.")
        for unit, problem in problems.items():
            console.note(f"{unit} could not be measured: {problem}")
        return 1 if problems else 0

    def _show_plan(self, selected: list[Claim]) -> None:
        """Print the budget and the smallest effects that can be detected."""
        from trimtab.claims import plan, power

        budget = plan.budget(selected, self.scale, self.out, self.seeds)
        console.say(f"Budget at scale {self.scale}: {budget}.")
        rows = []
        for claim in selected:
            paper = {str(test): getattr(test, "paper", None) for test in claim.tests}
            for test, effect in plan.detectable_before(claim, self.scale, self.out).items():
                reported = paper[test]
                setting = "too small" if power.too_small(effect, reported) else ""
                reported_text = f"{reported:.3f}" if reported else ""
                rows.append([claim.id, test, f"{effect:.3f}", reported_text, setting])
        if rows:
            columns = ["id", "test", "detectable", "the paper's", "setting"]
            console.table("Smallest detectable effects", columns, rows, right=(2, 3))

    def _measure(
        self, ledger: Any, page: Any, selected: list[Claim], problems: dict[str, str]
    ) -> list[Result]:
        workers = self.workers or 1
        with console.progress(f"{len(selected)} claims") as bar:
            counts = (0, 1)  # units measured, units in total

            def on_unit(done: Any, measured: int, total: int) -> None:
                nonlocal counts
                counts = (measured, total)
                at = f"{done.unit.id}, seed {done.unit.seed}"
                if done.problem and not done.unit.network:
                    problems[f"{at},"] = done.problem
                messages = [need.unmet([done.rows]) for need in done.unit.claim.needs] if done.rows else []
                if done.unit.network and done.seconds and not done.refused:
                    messages.append(done.problem)  # of this network, not of the one that it starts from
                for message in filter(None, messages):  # printed at once: the user may want to stop here
                    console.err.print(f"{at}: {message}", markup=False, soft_wrap=True)
                if self.scale == "desk":  # a unit takes minutes; the page is that of the finished ones
                    page.publish(self.scale, self.out)
                bar(measured, total, at)

            def on_progress(step: str, fraction: float) -> None:
                bar(*counts, f"{step} {100 * fraction:.0f} %")

            results: list[Result] = ledger.run(
                selected,
                scale=self.scale,
                out=self.out,
                work=self.work,
                seeds=self.seeds,
                engine=self.engine,
                workers=workers,
                threads=self.threads or (1 if workers > 1 else None),
                progress=on_progress,
                on_done=on_unit,
            )
        return results

    def _show(self, results: list[Result]) -> None:
        from trimtab.claims.page import shown
        from trimtab.claims.result import summary

        entries = [summary(result) for result in results]
        if self.json:
            console.as_json(entries)
            return
        for entry in entries:
            console.out.print(f"[bold]{entry['id']}[/bold] {entry['claim']}")
            for part in entry["tests"]:
                console.say(f"  {part['verdict']:15} {part['test']}: {shown(part)}")
            reason = f", {entry['reason']}" if entry["reason"] else ""
            console.out.print(f"  [bold]{entry['verdict']}[/bold]{reason}")
        console.say(f"All rows are in {self.out / self.scale}, and a page: ledger.md")

    def _list(self, selected: list[Claim]) -> int:
        from trimtab.claims import ledger, plan

        entries = [
            {
                "id": claim.id,
                "claim": claim.sentence,
                **vars(plan.budget([claim], self.scale, self.out, self.seeds)),
                "detectable": plan.detectable_before(claim, self.scale, self.out),
                "verdict": ledger.stored_verdict(claim, self.scale, self.out),
            }
            for claim in selected
        ]
        if self.json:
            console.as_json(entries)
            return 0
        rows = [[e["id"], e["claim"], f"{e['done']} of {e['units']}", e["verdict"]] for e in entries]
        columns = ["id", "claim", "units done", "status"]
        console.table(f"{len(selected)} claims at scale {self.scale}", columns, rows, right=(2,))
        if self.dry_run:
            self._show_plan(selected)
        return 0
