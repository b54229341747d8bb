"""A fault campaign: what survives kill -9, full disks, damage and company, counted.

    python benchmarks/faults [--rounds N] [--only NAME] [--seed S]

Runs are forked from one warm process, so that a fault costs a second and not a start of Python. Results lost
and silent differences must be 0; the exit code is 1 if they are not. Needs root for its small disks.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded: its threads would not survive a fork

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import ranks
import torch
from harm import CAMPAIGNS, Tally, in_peace, results, run
from work import JOBS, prepare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of kills for each command")
    parser.add_argument("--only", help="one fault or command: " + ", ".join([*CAMPAIGNS, *JOBS, "ranks"]))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    began, home = time.monotonic(), Path(tempfile.mkdtemp(prefix="trimtab-faults-"))
    (home / "shared").mkdir()
    prepare(home / "shared")
    print(
        "| fault | falls into | rounds | faults | told | results lost | silent differences | stack traces |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    total = Tally()
    try:
        for fault, (harm, names, share) in CAMPAIGNS.items():
            for name in names:
                if asked.only not in (None, fault, name):
                    continue
                total += _campaign(fault, harm, name, max(1, round(asked.rounds * share)), asked.seed, home)
        if asked.only in (None, "ranks"):
            for fault, name, tally in ranks.campaign(home, max(1, asked.rounds // 3), asked.seed):
                total += _row(fault, name, tally)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    _row("**all**", "", total)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes, one thread, seed {asked.seed}")
    return int(bool(total.lost or total.silent or total.traces))


def _campaign(fault: str, harm, name: str, rounds: int, seed: int, home: Path) -> Tally:  # type: ignore[no-untyped-def]
    job, place = JOBS[name], home / "rounds"
    shutil.rmtree(place, ignore_errors=True)
    peace = in_peace(job, place / "peace")
    expected = results(job, place / "peace")
    if peace.code != 0 or expected is None:
        sys.exit(f"{name} does not even run in peace: {peace}")
    again = run(job, place / "again")
    assert again.code == 0, again
    assert results(job, place / "again") == expected, f"{name} gives other bytes without any fault"
    tally = Tally()
    for number in range(rounds):
        chance = random.Random(f"{seed} {fault} {name} {number}")
        tally += harm(job, peace, expected, chance, place / str(number))
        shutil.rmtree(place / str(number), ignore_errors=True)
    return _row(fault, name, tally)


def _row(fault: str, name: str, t: Tally) -> Tally:
    cells = (fault, name, t.rounds, t.faults, t.told, t.lost, t.silent, t.traces)
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return t


if __name__ == "__main__":
    sys.exit(main())
