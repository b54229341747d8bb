"""Attacks on published networks against every peer.

    trimtab bench races --published FOLDER --out docs/results/races

Networks     ResNet-20 and ResNet-44 (32 pixels; FOLDER holds their files), EfficientNet-Lite0 and timm's
             ResNet-50 (224 pixels; random weights if its published ones are not in timm's cache)
PGD          the same budget, steps and step size on the same images, from a random start. "Same rule": every
             image takes all steps, in ours as in the peers. "Early stopping": ours as `early_stop=True`
AutoAttack   version standard, against its authors' package
Peers        torchattacks, foolbox, ART, adv-lib, secml-torch; a ratio is the fastest one's median over ours
Memory       the peak above what the process held after the same attack on two images: the leanest peer's over
             ours
Threads      one, and as many as --threads asks for

Labels are the network's own predictions, so that every image begins classified correctly. Each contestant is
a process of its own; all take turns, in the opposite order every second round. Rounds end when the contest's
part of `MINUTES` is used up, after at least two.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import trimtab
from benchmarks import published
from benchmarks.alone import alone, fresh_process
from benchmarks.peak import CLEAR, kilobytes
from benchmarks.peers import PEERS, Work
from benchmarks.race import Asked, Row, Skipped, Times, compare, threads
from trimtab.attacks import PGD, AutoAttack, Linf
from trimtab.models.architectures import extra
from trimtab.types import BadInput

MINUTES = 22
"""Of all contests together, beside the time in which processes start."""
EPS = 8 / 255
SAME, EARLY = "trimtab, same rule", "trimtab, early stopping"
CONTESTANTS = (SAME, EARLY, *PEERS, "adv-lib", "secml-torch")
AUTO = ("trimtab, AutoAttack", "pyautoattack")
NETWORKS = {"resnet20": (64, 10), "resnet44": (32, 10), "lite0": (8, 4), "timm:resnet50": (4, 2)}
"""By name: images and steps."""
TARGETS = {SAME: ">= 1.3", EARLY: ">= 6", AUTO[0]: ">= 6"}


@dataclass(frozen=True)
class Contest:
    """One network, number of threads and kind of attack."""

    network: str
    threads: int
    folder: str
    images: int
    steps: int

    def setting(self, **more: str) -> dict[str, str]:
        return {"network": self.network, "threads": str(self.threads), **more}


def rows(asked: Asked) -> Iterator[Row | Skipped]:
    """Every contest in turn; one whose network is missing says why."""
    if asked.published is None:
        raise Skipped("races", "name the folder of published networks with --published")
    counts = dict.fromkeys((1, asked.threads))
    share = 60 * MINUTES / (len(NETWORKS) * len(counts))
    for name, (images, steps) in NETWORKS.items():
        try:
            network(name, asked.published)
        except (BadInput, SystemExit, ValueError) as why:
            yield Skipped(f"races, {name}", str(why).splitlines()[0])
            continue
        for count in counts:
            few = (2, 1) if asked.quick else (images, steps)
            contest = Contest(name, count, str(asked.published), *few)
            with threads(count):
                yield from pgd(contest, asked, 0.8 * share)
                yield from auto(contest, asked, 0.2 * share)


def pgd(contest: Contest, asked: Asked, seconds: float) -> Iterator[Row]:
    times, peaks = run(contest, CONTESTANTS, asked, seconds)
    peers = [name for name in CONTESTANTS if name not in (SAME, EARLY)]
    fastest = min(peers, key=lambda name: median(times[name]))
    leanest = min(peers, key=lambda name: peaks[name])
    title = f"PGD-{contest.steps}, {contest.network}, {contest.threads} thread(s)"
    for ours in (SAME, EARLY):
        rule = ours.partition(", ")[2]
        row = compare("races", f"{title}, {rule}: {fastest} / ours", times, fastest, ours, TARGETS[ours])
        seconds_of_all = {name: compare("", "", times, name, ours).seconds[name] for name in times}
        yield replace(row, seconds=seconds_of_all, setting=contest.setting(rule=rule, peer=fastest))
        if not asked.quick:
            ratio = peaks[leanest] / max(peaks[ours], 1)
            megabytes = f"{leanest}, {peaks[leanest]:.0f} MB / ours, {peaks[ours]:.0f} MB"
            setting = contest.setting(rule=f"{rule}, memory", peer=leanest)
            yield Row("races", f"{title}, {rule}: {megabytes}", ratio, (ratio,) * 2, ">= 2", {}, setting)


def auto(contest: Contest, asked: Asked, seconds: float) -> Iterator[Row]:
    ours, theirs = AUTO
    times, _ = run(replace(contest, images=min(contest.images, 16)), AUTO, asked, seconds)
    what = f"AutoAttack, {contest.network}, {contest.threads} thread(s): {theirs} / ours"
    row = compare("races", what, times, theirs, ours, TARGETS[ours])
    yield replace(row, setting=contest.setting(rule="AutoAttack", peer=theirs))


def run(
    contest: Contest, names: tuple[str, ...], asked: Asked, seconds: float
) -> tuple[Times, dict[str, float]]:
    """Seconds of each contestant in every round, and the most megabytes above idle."""
    times: Times = {name: [] for name in names}
    with ExitStack() as stack:
        shared = stack.enter_context(fresh_process()) if asked.quick else None  # nothing is compared then
        runs = {name: stack.enter_context(alone(contestant, name, contest, process=shared)) for name in names}
        peaks = {name: turn()[1] for name, turn in runs.items()}
        end = time.monotonic() + seconds
        for turn in range(asked.turns):
            if turn > 1 and time.monotonic() > end:
                break
            for name in names if turn % 2 == 0 else reversed(names):
                times[name].append(runs[name]()[0])
    return times, peaks


# ---- in the process of a contestant ----------------------------------------------------------------------


def contestant(name: str, contest: Contest) -> Any:
    """A contestant's turn: its seconds, and its peak above idle so far, in megabytes."""
    extra("torchvision")  # which peers import; it may lack its compiled operators
    model = network(contest.network, Path(contest.folder))
    side = 32 if contest.network in published.FILES else 224
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(contest.images, 3, side, side, generator=generator)
    if contest.network in published.FILES and contest.images > 2:
        x = next(trimtab.data.load("cifar10", "test").batches(contest.images)).x.contiguous()
    with torch.no_grad():
        y = torch.cat([model(part).argmax(1) for part in x.split(8)])
    work = MAKERS[name](model, contest.steps, x)
    work(x[:2], y[:2])
    idle = measured_idle()

    def turn() -> tuple[float, float]:
        began = time.perf_counter()
        work(x, y)
        taken = time.perf_counter() - began
        return taken, (kilobytes("VmHWM") - idle) / 1024 if idle else 0.0

    return turn


def measured_idle() -> int:
    """Kilobytes that the process holds; its high-water mark is set back to them. 0 where none is kept."""
    try:
        CLEAR.write_text("5")
        return kilobytes("VmRSS")
    except OSError:
        return 0


def network(name: str, folder: Path) -> nn.Module:
    if not name.startswith("timm:"):
        return published.network(name, folder)
    torch.manual_seed(0)
    try:
        return trimtab.load(f"{name}+pretrained").eval()
    except BadInput:
        return trimtab.load(name).eval()


def _ours(model: nn.Module, steps: int, early_stop: bool) -> Work:
    attack = PGD(Linf(EPS), steps, early_stop=early_stop)
    return lambda x, y: attack(model, x, y)


def _torchattacks(model: nn.Module, steps: int, x: Tensor) -> Work:
    import torchattacks

    attack = torchattacks.PGD(model, eps=EPS, alpha=2.5 * EPS / steps, steps=steps, random_start=True)
    return lambda x, y: attack(x, y)


def _foolbox(model: nn.Module, steps: int, x: Tensor) -> Work:
    import foolbox

    attack = foolbox.attacks.LinfPGD(abs_stepsize=2.5 * EPS / steps, steps=steps, random_start=True)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    return lambda x, y: attack(wrapped, x, y, epsilons=EPS)[1]


def _art(model: nn.Module, steps: int, x: Tensor) -> Work:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    with torch.no_grad():
        classes = model(x[:1]).shape[1]
    loss, shape = nn.CrossEntropyLoss(), tuple(x.shape[1:])
    wrapped = PyTorchClassifier(model, loss, shape, classes, clip_values=(0.0, 1.0), device_type="cpu")
    options = {"eps": EPS, "eps_step": 2.5 * EPS / steps, "max_iter": steps, "num_random_init": 1}

    def work(x: Tensor, y: Tensor) -> object:
        attack = ProjectedGradientDescentPyTorch(wrapped, batch_size=len(x), verbose=False, **options)
        return attack.generate(x.numpy(), y.numpy())

    return work


def _adv_lib(model: nn.Module, steps: int, x: Tensor) -> Work:
    import secmlt.adv.evasion  # noqa: F401, which stands in for a plotting client that adv-lib imports
    from adv_lib.attacks import pgd_linf

    return lambda x, y: pgd_linf(model, x, y, EPS, steps=steps, absolute_step_size=2.5 * EPS / steps)


def _secml(model: nn.Module, steps: int, x: Tensor) -> Work:
    from secmlt.adv.backends import Backends
    from secmlt.adv.evasion.perturbation_models import LpPerturbationModels
    from secmlt.adv.evasion.pgd import PGD as SecmlPGD
    from secmlt.models.pytorch.base_pytorch_nn import BasePyTorchClassifier
    from torch.utils.data import DataLoader, TensorDataset

    attack = SecmlPGD(
        perturbation_model=LpPerturbationModels.LINF, epsilon=EPS, num_steps=steps,
        step_size=2.5 * EPS / steps, random_start=True, backend=Backends.NATIVE,
    )  # fmt: skip
    wrapped = BasePyTorchClassifier(model)
    return lambda x, y: attack(wrapped, DataLoader(TensorDataset(x, y), batch_size=len(x)))


def _our_autoattack(model: nn.Module, steps: int, x: Tensor) -> Work:
    attack = AutoAttack(Linf(EPS))
    return lambda x, y: attack(model, x, y)


def _pyautoattack(model: nn.Module, steps: int, x: Tensor) -> Work:
    import pyautoattack

    logging.getLogger("auto-attack").setLevel(logging.ERROR)
    attack = pyautoattack.AutoAttack(model, norm="Linf", eps=EPS, version="standard", seed=0)
    attack.verbose = False
    return lambda x, y: attack.run_standard_evaluation(x, y, batch_size=len(x))[0]


MAKERS: Mapping[str, Any] = {
    SAME: lambda model, steps, x: _ours(model, steps, False),
    EARLY: lambda model, steps, x: _ours(model, steps, True),
    "torchattacks": _torchattacks,
    "foolbox": _foolbox,
    "ART": _art,
    "adv-lib": _adv_lib,
    "secml-torch": _secml,
    AUTO[0]: _our_autoattack,
    AUTO[1]: _pyautoattack,
}
