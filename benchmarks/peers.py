"""The same PGD in four libraries, called as their own documentation does; a maker imports only its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trimtab import data
from trimtab.attacks import PGD, Linf

EPS = 8 / 255
Work = Callable[[Tensor, Tensor], object]
"""Takes a batch and its labels, returns images."""

ANY, LAST = "trimtab, any iterate", "trimtab, last iterate"
ROUGH = ", bfloat16 gradients"
OURS = tuple(rule + precision for precision in ("", ROUGH) for rule in (ANY, LAST))
PEERS = ("torchattacks", "foolbox", "ART")


def images(count: int, quick: bool) -> tuple[Tensor, Tensor]:
    """The first test images of CIFAR-10."""
    if quick:  # what they show matters to no smoke run
        return torch.rand(count, 3, 32, 32), torch.arange(count) % 10
    batch = next(iter(data.load("cifar10", "test").batches(count)))
    return batch.x.contiguous(), batch.y


def contestant(name: str, model: nn.Module, steps: int) -> Work:
    makers = {"torchattacks": _torchattacks, "foolbox": _foolbox, "ART": _art}
    if name in makers:
        return makers[name](model, steps, 2.5 * EPS / steps)
    score = "any" if name.startswith(ANY) else "last"
    precision = "bfloat16" if name.endswith(ROUGH) else "full"
    ours = PGD(Linf(EPS), steps, score=score, precision=precision)
    return lambda x, y: ours(model, x, y)


def _torchattacks(model: nn.Module, steps: int, step: float) -> Work:
    import torchattacks

    attack = torchattacks.PGD(model, eps=EPS, alpha=step, steps=steps, random_start=True)
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
