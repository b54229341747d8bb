"""The same PGD in four libraries, called as their own documentation does; a maker imports only its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import trimtab
from benchmarks.race import Run
from trimtab import data, norm
from trimtab._accel import channels_last
from trimtab.attacks import APGD, PGD, Linf
from trimtab.cli.memory import tune_allocator
from trimtab.measure.ligs import input_gradient

EPS = 8 / 255
Work = Callable[[Tensor, Tensor], object]
"""Takes a batch and its labels, returns images."""

ANY, LAST = "trimtab, any iterate", "trimtab, last iterate"
ROUGH, SCRIPT = ", bfloat16 gradients", ", in a script"
OURS = tuple(rule + how for how in ("", ROUGH, SCRIPT) for rule in (ANY, LAST))
PEERS = ("torchattacks", "foolbox", "ART")
AUTO = ("trimtab, APGD", "torchattacks, APGD")
BARE = "trimtab, bare passes"
"""The input gradients that PGD cannot do without: of the folded network, channels last."""


def prepared(name: str, spec: str, steps: int, count: int, size: int, quick: bool) -> Run:
    """A contestant with a network and images of its own, in batches of that size."""
    work, (x, y) = contestant(name, trimtab.load(spec).eval(), steps), images(count, quick)

    def run() -> None:
        for part, labels in zip(x.split(size), y.split(size), strict=True):
            work(part, labels)

    return run


def images(count: int, quick: bool) -> tuple[Tensor, Tensor]:
    """The first test images of CIFAR-10."""
    if quick:  # what they show matters to no smoke run
        return torch.rand(count, 3, 32, 32), torch.arange(count) % 10
    batch = next(iter(data.load("cifar10", "test").batches(count)))
    return batch.x.contiguous(), batch.y


def contestant(name: str, model: nn.Module, steps: int) -> Work:
    """One of them, for a process of its own: ours keeps what it frees, as `trimtab evaluate` does."""
    if name.startswith("trimtab") and not name.endswith(SCRIPT):
        tune_allocator()
    peers = {"torchattacks": _torchattacks, "foolbox": _foolbox, "ART": _art}
    makers = peers | {AUTO[1]: _auto_pgd, BARE: _bare}
    if name in makers:
        return makers[name](model, steps, 2.5 * EPS / steps)
    early_stop = name.startswith(ANY)
    precision = "bfloat16" if name.endswith(ROUGH) else "full"
    pgd = PGD(Linf(EPS), steps, early_stop=early_stop, precision=precision)
    ours = APGD(Linf(EPS), steps) if name == AUTO[0] else pgd
    return lambda x, y: ours(model, x, y)


def _torchattacks(model: nn.Module, steps: int, step: float) -> Work:
    import torchattacks

    attack = torchattacks.PGD(model, eps=EPS, alpha=step, steps=steps, random_start=True)
    return lambda x, y: attack(x, y)


def _auto_pgd(model: nn.Module, steps: int, step: float) -> Work:
    import torchattacks

    attack = torchattacks.APGD(model, norm="Linf", eps=EPS, steps=steps, loss="ce", seed=0)
    return lambda x, y: attack(x, y)


def _foolbox(model: nn.Module, steps: int, step: float) -> Work:
    import foolbox

    attack = foolbox.attacks.LinfPGD(abs_stepsize=step, steps=steps, random_start=True)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    return lambda x, y: attack(wrapped, x, y, epsilons=EPS)[1]


def _art(model: nn.Module, steps: int, step: float) -> Work:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    loss, shape = nn.CrossEntropyLoss(), (3, 32, 32)
    wrapped = PyTorchClassifier(model, loss, shape, 10, clip_values=(0.0, 1.0), device_type="cpu")
    options = {"eps": EPS, "eps_step": step, "max_iter": steps, "num_random_init": 1, "verbose": False}

    def work(x: Tensor, y: Tensor) -> Tensor:
        attack = ProjectedGradientDescentPyTorch(wrapped, batch_size=len(x), **options)
        return torch.from_numpy(attack.generate(x.numpy(), y.numpy()))

    return work


def _bare(model: nn.Module, steps: int, step: float) -> Work:
    def work(x: Tensor, y: Tensor) -> None:
        x = x.contiguous(memory_format=torch.channels_last)
        for _ in range(steps):
            input_gradient(net, x, y)

    net = channels_last(norm.fold(model))
    return work
