"""What the verbs over statistics cost: repair, the monitor, swapping a pack.

Repair    `norm.repair` over the forward passes that it needs, of the stock network on the same batches: one
          in train mode and two in eval mode
Monitor   batches through `adapt.Monitor` with its defaults over the bare network
Swap      milliseconds of `norm.load_pack`, two packs in turns, once each was compared with the weights

Networks are published architectures with random weights, which do not matter here; ResNet-20 on 128x3x32x32,
EfficientNet-Lite0 on 16x3x224x224.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import cycle

import torch
from torch import Tensor, nn

from benchmarks.race import Asked, Row, Skipped, compare, quartiles, race
from trimtab import adapt, models, norm

BATCHES = 4
SWAPS = 20
"""Swaps a round."""
REFERENCE = 200


def rows(asked: Asked) -> Iterator[Row]:
    networks: list[tuple[str, Callable[[], nn.Module], int, int]] = [
        ("ResNet-20", lambda: models.build("resnet20", classes=10), 128, 32),
        ("EfficientNet-Lite0", lambda: from_timm("tf_efficientnet_lite0"), 16, 224),
    ]
    if asked.quick:
        networks = [("ResNet-8", lambda: models.build("resnet8", classes=10, width=4), 8, 32)]
    for title, build, batch, side in networks:
        torch.manual_seed(0)
        net = build().eval()
        x = torch.rand(BATCHES, batch, 3, side, side).unbind()
        times = race(repairs(net, x), asked.turns)
        yield compare("statistics", f"{title}, repair / its passes", times, "repair", "passes", "<= 1.1")
        times = race(monitors(net, x), asked.turns * BATCHES)
        yield compare("statistics", f"{title}, monitor / bare", times, "monitor", "bare", "<= 1.03")
    swapped = "ResNet-8" if asked.quick else "ResNet-50"
    low, median, high = swaps(networks[0][1]() if asked.quick else from_timm("resnet50"), asked.turns)
    yield Row("statistics", f"{swapped}, swap of a pack, milliseconds", median, (low, high), "<= 5")


def repairs(net: nn.Module, x: tuple[Tensor, ...]) -> dict[str, Callable[[], object]]:
    stock, repaired = deepcopy(net), norm.steer(deepcopy(net))
    labeled = [(batch, torch.zeros(len(batch), dtype=torch.long)) for batch in x]

    @torch.no_grad()
    def passes() -> None:
        for training in (False, True, False):
            stock.train(training)
            for batch in x:
                stock(batch)

    return {"passes": passes, "repair": lambda: norm.repair(repaired, labeled, always=True)}


def monitors(net: nn.Module, x: tuple[Tensor, ...]) -> dict[str, Callable[[], object]]:
    count = -(-REFERENCE // len(x[0]))
    monitor = adapt.Monitor(net, [x[0].roll(k, 3) for k in range(count)])

    @torch.no_grad()
    def through(model: nn.Module) -> object:
        return model(x[0])

    return {"bare": lambda: through(net), "monitor": lambda: through(monitor)}


def swaps(net: nn.Module, turns: int) -> tuple[float, float, float]:
    """Quartiles of the milliseconds of one swap."""
    norm.steer(net.eval())
    clean = norm.pack(net)
    moved = {name: layer._replace(mean=layer.mean + 1) for name, layer in clean.layers.items()}
    packs = (clean, norm.Pack(moved, clean.weights))
    for pack in packs:  # compared with the weights once
        norm.load_pack(net, pack)
    turn = cycle(packs)
    times = race({"swap": lambda: norm.load_pack(net, next(turn))}, turns * SWAPS)
    return quartiles([1000 * seconds for seconds in times["swap"]])


def from_timm(name: str) -> nn.Module:
    try:
        import timm
    except ModuleNotFoundError:
        raise Skipped("statistics", "timm is not installed; see requirements-dev.txt") from None
    return timm.create_model(name, pretrained=False)
