"""Validate the trust card's detectors and write docs/results/detectors.md and .json.

    python -m benchmarks.detectors [--half tuning|held-out] [--only FAMILY] [--no-attacks] [--cached]

Networks and finished cases are kept in ~/.cache/trimtab/detectors: an interrupted run resumes. CIFAR-10 must
have been fetched (trimtab data fetch cifar10); published networks and photographs are used where they are.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.detectors import table
from benchmarks.detectors.agreement import Agreement, agreements
from benchmarks.detectors.drift import Drift, drifts
from benchmarks.detectors.networks import CACHE, HELD_OUT, TUNING, cases
from benchmarks.detectors.normalization import Record, records
from trimtab.models import corrections

RESULTS = Path(__file__).parents[2] / "docs" / "results"
WITH_DEFECTS = ("plain, no norm on sample", "VGG on sample", "DenseNet on sample", "zoo:sample-standard")
"""Networks in which the defects are planted ..."""
WITH_ATTACKS = (*WITH_DEFECTS, "VGG on cifar10", "zoo:sample-adversarial", "zoo:cifar10-standard")
WITH_ATTACKS += ("zoo:sample-nobn", "zoo:sample-apart")
"""... and those that are attacked at all; the others would take hours on one core."""


def main() -> int:
    """Measure the missing cases, print the table of a half, and write that of the held-out half."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--half", choices=("tuning", "held-out"), default="held-out")
    parser.add_argument("--only", help="one family: " + ", ".join([*TUNING, *HELD_OUT]))
    parser.add_argument("--no-attacks", action="store_true", help="the normalization check alone")
    parser.add_argument("--cached", action="store_true", help="only what is finished; measure nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    families = TUNING if asked.half == "tuning" else HELD_OUT
    folder = CACHE / f"cases-{corrections.VERSION}"
    checked: list[Record] = []
    attacked: list[Agreement] = []
    drifted: list[Drift] = []
    unmeasured: list[str] = []
    for case in cases((asked.only,) if asked.only else families):
        print(case.name, file=sys.stderr, flush=True)
        drifted += drifts(case, folder, asked.cached)
        of_case = records(case, folder, asked.cached)
        checked += of_case
        unmeasured += [] if of_case else [case.name]
        if not asked.no_attacks and case.name in WITH_ATTACKS:
            attacked += agreements(case, folder, case.name in WITH_DEFECTS, asked.cached)
    text = table.text(checked, attacked, drifted, asked.half, unmeasured)
    print(text)
    if asked.half == "held-out" and not asked.only and not asked.no_attacks:
        about = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        (RESULTS / "detectors.md").write_text(text)
        rows = {"records": [asdict(r) for r in checked], "agreements": [asdict(a) for a in attacked]}
        rows["drifts"] = [asdict(d) for d in drifted]
        (RESULTS / "detectors.json").write_text(json.dumps(about | rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
