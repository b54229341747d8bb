"""Peak memory of one attack above idle, in a process of its own: `python -m benchmarks.peak ...`.

Idle is what the process holds after the same attack on two images, when everything is loaded. The
kernel's high-water mark is set back to that before the attack. (`getrusage` would not do: a process inherits
its parent's mark.)
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def of(spec: str, who: str, count: int, steps: int, quick: bool) -> float:
    """Megabytes above idle of one call on `count` images."""
    import torch

    root, size = Path(__file__).parents[1], "quick" if quick else "whole"
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = str(torch.get_num_threads())
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peak", spec, who, str(count), str(steps), size],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": threads},
    )
    return float(done.stdout.split()[-1])


def main(spec: str, who: str, count: int, steps: int, quick: bool) -> None:
    import trimtab
    from benchmarks.peers import contestant, images

    warnings.simplefilter("ignore")
    work = contestant(who, trimtab.load(spec).eval(), steps)
    x, y = images(count, quick)
    work(x[:2], y[:2])
    CLEAR.write_text("5")
    idle = kilobytes("VmRSS")
    work(x, y)
    print((kilobytes("VmHWM") - idle) / 1024)


def kilobytes(what: str) -> int:
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(what))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "quick")
