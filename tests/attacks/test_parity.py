"""The same attack in foolbox, torchattacks and ART, on the same network and budget, gives the same images."""

import warnings

import pytest
import torch

from trimtab.attacks import APGD, FGSM, L2, PGD, Linf, Square

LINF, L2_EPS, STEPS = 4 / 255, 0.2, 20


def accuracy(model, x, y) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def foolbox_pgd(model, x, y, norm):
    import foolbox

    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    kind, eps = (
        (foolbox.attacks.LinfPGD, LINF)
        if norm == "linf"
        else (foolbox.attacks.L2ProjectedGradientDescentAttack, L2_EPS)
    )
    attack = kind(abs_stepsize=2.5 * eps / STEPS, steps=STEPS, random_start=False)
    return attack(wrapped, x, y, epsilons=eps)[1]


def torchattacks_pgd(model, x, y, norm):
    import torchattacks

    if norm == "linf":
        attack = torchattacks.PGD(model, eps=LINF, alpha=2.5 * LINF / STEPS, steps=STEPS, random_start=False)
    else:
        attack = torchattacks.PGDL2(
            model, eps=L2_EPS, alpha=2.5 * L2_EPS / STEPS, steps=STEPS, random_start=False
        )
    return attack(x, y)


def art_pgd(model, x, y, norm):
    attack = _art(model, x, "ProjectedGradientDescentPyTorch")
    eps = LINF if norm == "linf" else L2_EPS
    made = attack(
        norm="inf" if norm == "linf" else 2, eps=eps, eps_step=2.5 * eps / STEPS, max_iter=STEPS,
        num_random_init=0, batch_size=256, verbose=False,
    )  # fmt: skip
    return torch.from_numpy(made.generate(x.numpy(), y.numpy()))


def _art(model, x, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from art.attacks import evasion
        from art.estimators.classification import PyTorchClassifier

    estimator = PyTorchClassifier(
        model, torch.nn.CrossEntropyLoss(), tuple(x.shape[1:]), 5, clip_values=(0.0, 1.0), device_type="cpu"
    )
    return lambda **options: getattr(evasion, name)(estimator, **options)


PEERS = {"foolbox": foolbox_pgd, "torchattacks": torchattacks_pgd, "art": art_pgd}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("peer", PEERS)
def test_pgd_from_the_image_equals_that_of_the_peers(model, images, peer, norm):
    x, y = images
    budget = Linf(LINF) if norm == "linf" else L2(L2_EPS)
    ours = PGD(budget, steps=STEPS, random_start=False)(model, x, y)
    theirs = PEERS[peer](model, x.clone(), y, norm)
    # Signs of gradients that are zero up to rounding may differ, so: robust accuracy to one image in this
    # set, and nearly all images the same.
    assert abs(accuracy(model, ours, y) - accuracy(model, theirs, y)) <= 1.01 / len(x)
    assert 0.02 < accuracy(model, ours, y) < 0.98  # a comparison at 0 or 1 would show nothing
    same = (ours - theirs).flatten(1).abs().amax(1) < 1e-4
    assert same.double().mean() > 0.9


@pytest.mark.filterwarnings("ignore")
def test_fgsm_equals_torchattacks(model, images):
    import torchattacks

    x, y = images
    theirs = torchattacks.FGSM(model, eps=LINF)(x, y)
    x = x.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
    (grad,) = torch.autograd.grad(loss.sum(), x)
    # Rounding decides the sign of the other gradients: near zero, or of an image with next to no loss.
    lossy = loss > 1e-3
    clear = (grad.abs() > 1e-3 * grad.abs().amax((1, 2, 3), True)) & lossy[:, None, None, None]
    assert lossy.sum() >= 20
    assert clear[lossy].float().mean() > 0.9
    assert ((FGSM(Linf(LINF))(model, x.detach(), y) - theirs).abs() * clear).max() < 1e-6


@pytest.mark.filterwarnings("ignore")
def test_random_start_pgd_is_as_strong_as_foolbox(model, images):
    import foolbox

    x, y = images
    torch.manual_seed(0)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    attack = foolbox.attacks.LinfPGD(abs_stepsize=2.5 * LINF / STEPS, steps=STEPS, random_start=True)
    theirs = accuracy(model, attack(wrapped, x, y, epsilons=LINF)[1], y)
    ours = accuracy(model, PGD(Linf(LINF), steps=STEPS)(model, x, y), y)
    noise = 3 * (2 * theirs * (1 - theirs) / len(x)) ** 0.5
    assert abs(ours - theirs) <= max(noise, 0.02)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("budget", [Linf(LINF), L2(L2_EPS)], ids=str)
def test_auto_pgd_is_as_strong_as_that_of_torchattacks(model, images, budget):
    import torchattacks

    x, y = images
    norm = "Linf" if isinstance(budget, Linf) else "L2"
    theirs = torchattacks.APGD(model, norm=norm, eps=budget.radius, steps=30, loss="ce", seed=0)(x, y)
    ours = APGD(budget, steps=30).outcome(model, x, y).success
    assert abs((1 - ours.double().mean()) - accuracy(model, theirs, y)) <= 0.04


@pytest.mark.filterwarnings("ignore")
def test_square_is_as_strong_as_that_of_torchattacks(model, images):
    import torchattacks

    x, y = (part[:48] for part in images)
    eps = 12 / 255
    theirs = torchattacks.Square(model, norm="Linf", eps=eps, n_queries=300, n_restarts=1, seed=0)(x, y)
    ours = Square(Linf(eps), queries=300).outcome(model, x, y).success
    p = accuracy(model, theirs, y)
    noise = 3 * (2 * max(p * (1 - p), 0.05) / len(x)) ** 0.5
    assert abs((1 - ours.double().mean()) - p) <= noise
    assert 0.02 < p < 0.98
