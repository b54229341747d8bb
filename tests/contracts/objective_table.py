"""Every objective, ready for a tiny network, and how to train that network: shared by the contracts.

Run as a script it is one of two processes (`torchrun ... FOLDER`), or kills and resumes runs (`kill FOLDER`).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from trimtab import train
from trimtab.attacks import PGD, Linf
from trimtab.data.sets import ImageSet, from_arrays
from trimtab.train.recipe import Data, OptimizerConfig, Recipe, Schedule

ATTACK = PGD(Linf("8/255"), steps=2)
OBJECTIVES: dict[str, train.Objective] = {
    "standard": train.Standard(label_smoothing=0.1),
    "gaussian": train.Gaussian(sigma=0.1),
    "adversarial": train.Adversarial(ATTACK),
    "adversarial half clean": train.Adversarial(ATTACK, clean=0.5, alp=0.5),
    "mixture": train.Mixture(ATTACK, alp=0.5),
    "advprop": train.AdvProp(),
    "advbn": train.AdvBN(cut="act1", steps=2, eps=0.5),
    "advbn random": train.AdvBN(cut="act1", attack="random", eps=0.5),
    "apart": train.APART(eps=0.1, groups=2),
    "apart some": train.APART(eps=0.1, samples=4),
    "apart sam": train.APART(eps=0.1, groups=2, samples=4, sam_rho=0.1),
    "sam": train.SAM(rho=0.1),
    "sam adversarial": train.SAM(rho=0.1, inner=train.Adversarial(ATTACK)),
    "ligs": train.LIGS(weight=1.0),
    "trades": train.TRADES(attack=train.DivergenceAttack(Linf("8/255"), steps=2, step_size="4/255")),
    "awp": train.AWP(gamma=0.05, inner=train.Adversarial(ATTACK)),
    "trades awp": train.AWP(inner=train.TRADES(attack=ATTACK)),
}
CLASSES, BATCH, STEPS = 4, 8, 3


def tiny(seed: int = 0) -> nn.Module:
    """Two convolutions with batch norm, named so that it can be cut."""
    torch.manual_seed(seed)
    net = nn.Sequential()
    for i, (incoming, outgoing) in enumerate([(3, 6), (6, 8)], start=1):
        net.add_module(f"conv{i}", nn.Conv2d(incoming, outgoing, 3, stride=i, padding=1, bias=False))
        net.add_module(f"bn{i}", nn.BatchNorm2d(outgoing))
        net.add_module(f"act{i}", nn.ReLU())
    net.add_module("pool", nn.AdaptiveAvgPool2d(1))
    net.add_module("flatten", nn.Flatten())
    net.add_module("fc", nn.Linear(8, CLASSES))
    return net


def images(n: int = BATCH * STEPS, size: int = 8) -> ImageSet:
    g = torch.Generator().manual_seed(5)
    pixels = torch.randint(256, (n, 3, size, size), generator=g, dtype=torch.uint8)
    labels = torch.arange(n) % CLASSES
    return from_arrays(pixels, labels)


def recipe(objective: train.Objective, **changes: object) -> Recipe:
    plain: dict[str, object] = {
        "data": Data(augment=("flip",), validation=0),
        "optimizer": OptimizerConfig(lr=0.05),
        "schedule": Schedule(kind="constant"),
        "epochs": 1,
        "batch_size": BATCH,
    }
    return Recipe(objective=objective, **(plain | changes))  # type: ignore[arg-type]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def two_processes(folder: Path) -> None:
    """Train every objective as one of two processes, and keep what the first one ends with."""
    for name, objective in OBJECTIVES.items():
        net = tiny().double()
        if os.environ["RANK"] == "1":  # whatever it starts with, the first process's weights count
            for value in net.parameters():
                torch.nn.init.normal_(value)
        run = train.fit(net, images(), recipe(objective), folder / name)
        if torch.distributed.get_rank() == 0:
            torch.save(weights(run.model), folder / f"{name}.pt")  # type: ignore[arg-type]


# ---- kill -9 ------------------------------------------------------------------------------------------


def go_on(name: str, folder: Path, die_in_write: int | None = None) -> None:
    """Start or resume a run of two epochs that saves after every step."""
    if die_in_write is not None:
        replace, calls = os.replace, [0]

        def dying(a: object, b: object) -> None:
            calls[0] += 1
            if calls[0] == die_in_write:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(a, b)  # type: ignore[arg-type]

        os.replace = dying  # type: ignore[assignment]
    how = recipe(OBJECTIVES[name], epochs=2, checkpoint_steps=1, ema=0.9)
    if (folder / "checkpoints" / "last.safetensors").exists():
        run = train.resume(folder, tiny(), images())
    else:
        run = train.fit(tiny(), images(), how, folder)
    torch.save(weights(run.model), folder / "end.pt")  # type: ignore[arg-type]


def forked(*arguments: object, kill_after: float | None = None) -> bool:
    """Run `go_on` in a child; whether it reached its end."""
    child = os.fork()
    if child == 0:
        go_on(*arguments)  # type: ignore[arg-type]
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == 0


def kill_and_resume(folder: Path) -> None:
    """For every objective: one run left in peace, one killed while it writes and then at random moments."""
    chance = random.Random(time.time_ns())
    for name in OBJECTIVES:
        began = time.perf_counter()
        assert forked(name, folder / "peace" / name)
        usual = time.perf_counter() - began
        hurt = folder / "killed" / name
        assert not forked(name, hurt, chance.randint(4, 9))
        for _ in range(2):
            if forked(name, hurt, kill_after=chance.uniform(0.1, 1.0) * usual):
                break
        assert forked(name, hurt)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "kill":
        kill_and_resume(Path(sys.argv[2]))
    else:
        two_processes(Path(sys.argv[1]))
        # A process that ends while the group's threads still run may be aborted.
        torch.distributed.destroy_process_group()
