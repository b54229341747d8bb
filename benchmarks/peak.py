"""Peak memory of one attack above idle, in a process of its own.

Idle is what the process holds after the same attack on two images, when everything is loaded. The
kernel's high-water mark is set back to that before the attack. (`getrusage` would not do: a process inherits
its parent's mark.)
"""

from __future__ import annotations

from pathlib import Path

import trimtab
from benchmarks.alone import alone
from benchmarks.peers import contestant, images
from benchmarks.race import Run

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def of(spec: str, who: str, count: int, steps: int, quick: bool) -> float:
    """Megabytes above idle of one call on `count` images."""
    with alone(measured, spec, who, count, steps, quick) as run:
        return float(run())


def measured(spec: str, who: str, count: int, steps: int, quick: bool) -> Run:
    work = contestant(who, trimtab.load(spec).eval(), steps)
    x, y = images(count, quick)

    def run() -> float:
        work(x[:2], y[:2])
        CLEAR.write_text("5")
        idle = kilobytes("VmRSS")
        work(x, y)
        return (kilobytes("VmHWM") - idle) / 1024

    return run


def kilobytes(what: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(what))
