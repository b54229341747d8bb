"""What a step of each objective costs in steps of standard training: counted, and measured in processor time.

    python -m benchmarks.cost [--rounds 5] [--batch 64]       writes docs/results/cost.json

ResNet-8 of width 16 on 3x32x32, one thread; objectives take turns, the first round warms up. Processor
time, not the clock, so that other processes on the machine matter little. `python -m docs.generate` puts the
result into docs/howto/scaling.md.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from trimtab import models, train
from trimtab.attacks import PGD, Linf
from trimtab.claims.ledger import cpu_name

OUT = Path(__file__).parents[1] / "docs" / "results" / "cost.json"
WIDTH, STEPS = 16, 7
ATTACK = PGD(Linf("8/255"), STEPS)
OBJECTIVES: dict[str, tuple[train.Objective, float]] = {  # with R as scaling.md counts it
    "Standard": (train.Standard(), 1),
    "Adversarial, PGD-7": (train.Adversarial(attack=ATTACK), (2 * STEPS + 3) / 3),
    "Mixture, PGD-7": (train.Mixture(attack=ATTACK), (2 * STEPS + 6) / 3),
    "APART, N = M": (train.APART(eps=0.1, groups=8), 2),
    "SAM": (train.SAM(), 2),
    "AdvBN after layer1, 6 steps": (train.AdvBN(cut="layer1"), (1 - 0.58 + 0.58 * 18) / 3),
    "LIGS regularizer": (train.LIGS(), 10 / 3),
}


def measured(batch: int, rounds: int) -> dict[str, list[float]]:
    """Per objective: its processor time over that of standard training, in each round."""
    torch.manual_seed(0)
    x = torch.rand(batch, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y, ids = torch.randint(10, (batch,)), torch.arange(batch)
    networks = {}
    for name, (objective, _) in OBJECTIVES.items():
        net = models.build("resnet8", classes=10, width=WIDTH).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        networks[name] = objective.prepare(net).train()
    ratios: dict[str, list[float]] = {name: [] for name in OBJECTIVES}
    for turn in range(rounds + 1):
        taken = {}
        for name, (objective, _) in OBJECTIVES.items():
            networks[name].zero_grad()
            began = time.process_time()
            objective(networks[name], x, y, ids=ids)
            taken[name] = time.process_time() - began
        for name in OBJECTIVES if turn else ():
            ratios[name].append(taken[name] / taken["Standard"])
    return ratios


def main(words: list[str] | None = None) -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--batch", type=int, default=64)
    asked.add_argument("--out", type=Path, default=OUT)
    given = asked.parse_args(words)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ratios = measured(given.batch, given.rounds)
    finally:
        torch.set_num_threads(before)
    rows = [
        {"objective": name, "counted": counted, "measured": [round(ratio, 3) for ratio in ratios[name]]}
        for name, (_, counted) in OBJECTIVES.items()
    ]
    command = f"python -m benchmarks.cost --rounds {given.rounds} --batch {given.batch}"
    about = {"command": command, "cpu": cpu_name(), "torch": torch.__version__, "rows": rows}
    given.out.write_text(json.dumps(about, indent=1) + "\n")
    print(given.out.read_text(), end="")


if __name__ == "__main__":
    main()
