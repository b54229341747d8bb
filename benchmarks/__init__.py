"""Every speed comparison of trimtab, as ratios on one machine: `python -m benchmarks [SECTION ...]`.

    norm         steered layers against stock PyTorch
    attacks      PGD and Auto-PGD against torchattacks, foolbox and ART, and against the bare passes
    certify      smoothing against the plain published procedure
    adapt        adapted forward passes against plain ones
    statistics   repair, the monitor and the swap of a pack against plain passes
    lens         LIGS against two bare input gradients
    corruptions  all 19 at five severities against imagecorruptions
    loader       the share of a training step that goes into loading
    growth       how cost grows with depth, width, image size, attack steps and images
    races        PGD and AutoAttack on published networks against six peers, on one thread and several
    train        a training step against the passes it needs; last, as it changes how the process allocates

Each is a module with `rows(asked) -> Iterator[Row]`; `race.py` holds what they share. The fault campaign in
`faults/` is a program of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence

from benchmarks.race import Asked, Row, Skipped, busy, threads
from trimtab.runtime import require_bfloat16
from trimtab.types import BadInput

SECTIONS = (
    "norm",
    "attacks",
    "certify",
    "adapt",
    "statistics",
    "lens",
    "corruptions",
    "loader",
    "growth",
    "races",
    "train",
)


BUSY = 0.15
"""The fraction of the machine that others may take while something is timed."""


def run(sections: Sequence[str], asked: Asked, anyway: bool = False) -> Iterator[Row | Skipped]:
    """Rows as they are measured; a section that cannot run here says why in one sentence.

    A loaded machine is refused, unless `anyway`, or in a smoke run, whose times mean nothing.
    """
    for name in sections:
        if name not in SECTIONS:
            raise BadInput(f"there is no benchmark {name!r}; take some of {', '.join(SECTIONS)}")
    if asked.rounds < 1 or asked.threads < 1:
        raise BadInput(f"rounds and threads start at 1, found {asked.rounds} and {asked.threads}")
    if not (asked.quick or anyway) and (taken := busy()) > BUSY:
        raise BadInput(
            f"other programs take {taken:.0%} of this machine, so times would be theirs; end them, or time "
            "all the same with --anyway"
        )
    if {"attacks", "train"} & set(sections or SECTIONS):
        require_bfloat16()  # before anything is measured
    for name in sorted(sections, key=SECTIONS.index) or SECTIONS:
        with threads(asked.threads):
            try:
                yield from importlib.import_module(f"benchmarks.{name}").rows(asked)
            except ModuleNotFoundError as missing:
                if missing.name is None or missing.name.partition(".")[0] in ("trimtab", "benchmarks"):
                    raise
                why = f"{missing.name} is not installed; see requirements-dev.txt and requirements-nodeps.txt"
                yield Skipped(name, why)
            except Skipped as skipped:
                yield skipped
