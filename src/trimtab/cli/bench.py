"""`trimtab bench`: the speed comparisons of the source tree, as ratios with their targets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from trimtab.cli.lazy import console
from trimtab.cli.options import Json, OptionalPath, OptionalStr
from trimtab.types import BadInput

TREE = Path(__file__).parents[3]
"""The root of a source tree, with `benchmarks` next to `src`."""


@dataclass(frozen=True)
class BenchCommand:
    """Compare speed with stock PyTorch, other libraries and a plain baseline.

    SECTIONS are norm, attacks, certify, adapt, statistics, lens, corruptions, loader, growth, races and
    train; none means all.
    Contestants take turns; each line shows the ratio of their median times, the quartiles of the ratios
    within each round, the target that was set beforehand, and whether it was met. A missed target
    is a result, not a failure: the exit code is 0. `attacks` needs two trained networks and CIFAR-10;
    `growth` draws growth.svg and growth.png next to the files of --out.
    """

    sections: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[SECTION ...]")] = ()
    """Which comparisons; all if none is named."""
    rounds: int = 5
    """Turns of every contestant, after a warm-up. More of them on a busy machine."""
    threads: int = 2
    """CPU threads of all contestants."""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """A smoke test: tiny networks, one round; its timings mean nothing."""
    standard: OptionalStr = None
    """A network without robustness for `attacks`; zoo:cifar10-standard if not given."""
    robust: OptionalStr = None
    """An adversarially trained one; zoo:cifar10-adversarial if not given."""
    published: OptionalPath = None
    """Folder of the published networks for `races`."""
    anyway: tyro.conf.FlagCreatePairsOff[bool] = False
    """Time on a machine that other programs load, too."""
    out: OptionalPath = None
    """Write OUT.md and OUT.json, as in --out docs/results/speed."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        benchmarks, written = _tree()
        asked = benchmarks.Asked(
            self.rounds, self.threads, self.quick, self.standard, self.robust, self.published
        )
        rows, skipped = [], []
        for result in benchmarks.run(self.sections, asked, self.anyway):
            if isinstance(result, benchmarks.Skipped):
                skipped.append(result)
                console.note(f"{result.section} is skipped: {result.why}.")
            else:
                rows.append(result)
                if not self.json:
                    print(written.line(result))
        about = written.circumstances(asked, self.sections)
        if self.json:
            print(written.as_json(rows, skipped, about))
        if self.out is not None:
            files = written.write(self.out, rows, skipped, about)
            console.note(f"{len(rows)} rows are in {', '.join(map(str, files))}.")
        return 0


def _tree() -> tuple[Any, Any]:
    """The package `benchmarks` of the source tree, and its writer."""
    import importlib
    import sys

    if not (TREE / "benchmarks" / "race.py").exists():
        raise BadInput(
            "the benchmarks are no part of an installed trimtab; they lie in the folder `benchmarks` of its "
            "source tree, where `trimtab bench` and `python -m benchmarks` run them"
        )
    if str(TREE) not in sys.path:
        sys.path.insert(0, str(TREE))
    return importlib.import_module("benchmarks"), importlib.import_module("benchmarks.written")
