"""Every attack on images keeps the same promises."""

import copy
import hashlib
import itertools

import pytest
import torch
from torch import nn

from trimtab import norm
from trimtab.attacks import (
    APGD,
    CW,
    EOT,
    FAB,
    FGSM,
    L2,
    PGD,
    AutoAttack,
    CoBatch,
    CurvePGD,
    Linf,
    Square,
    TargetedAPGD,
    ThroughBatch,
)  # fmt: skip
from trimtab.types import BadInput

INF, TWO = Linf("4/255"), L2(0.4)
ATTACKS = [
    PGD(INF, steps=3),
    PGD(TWO, steps=3, loss="cw", restarts=2),
    PGD(INF, steps=3, loss="dlr", early_stop=True),
    PGD(INF, steps=3, targeted=True, clean_start=0.5),
    FGSM(INF),
    CW(TWO, steps=3),
    CurvePGD(INF, steps=3, marks=(1, 3)),
    APGD(INF, steps=5),
    APGD(TWO, steps=5, loss="dlr"),
    TargetedAPGD(INF, steps=4, targets=2),
    Square(INF, queries=10),
    Square(TWO, queries=10),
    FAB(INF, steps=4, targets=2),
    FAB(TWO, steps=4, targets=0, restarts=2),
    FAB(TWO, steps=4, targets=1, early_stop=False),
    AutoAttack(INF, steps=3, targets=2, queries=5),
    AutoAttack(TWO, "plus", steps=2, targets=2, queries=5),
    AutoAttack(INF, "rand", steps=2),
    EOT(PGD(INF, steps=2), m=2),
    ThroughBatch(PGD(INF, steps=2), rho=0.5),
]
EVERY = pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: f"{a}"[:60])


def net() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2),
        nn.Conv2d(6, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 5 * 5, 5),
    )  # fmt: skip
    model(torch.rand(32, 3, 12, 12))
    # A partly frozen, partly training model with gradients lying about.
    model[0].weight.requires_grad_(False)
    model[1].eval()
    model[4].weight.grad = torch.randn_like(model[4].weight)
    return model


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(5)
    return torch.rand(10, 3, 12, 12, generator=g), torch.randint(0, 5, (10,), generator=g)


def fingerprint(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        digest.update(f"{name}{type(module)}{module.training}".encode())
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{name}{tensor.requires_grad}{id(tensor.grad)}".encode())
        digest.update(tensor.detach().numpy().tobytes())
        if tensor.grad is not None:
            digest.update(tensor.grad.numpy().tobytes())
    return digest.hexdigest()


@EVERY
@pytest.mark.parametrize("steered", [False, True])
def test_no_trace_is_left(attack, batch, steered):
    model = norm.steer(net()) if steered else net()
    before = fingerprint(model)
    attack(model, *batch)
    assert fingerprint(model) == before


@EVERY
def test_images_stay_in_the_budget_and_in_the_box(attack, batch):
    x, y = batch
    adv = attack(net(), x, y)
    delta = (adv - x).flatten(1)
    far = delta.abs().amax(1) if isinstance(attack.budget, Linf) else delta.norm(dim=1)
    assert float(far.max()) <= attack.budget.radius + 1e-6
    assert float(adv.min()) >= 0
    assert float(adv.max()) <= 1
    assert not adv.requires_grad


@EVERY
def test_the_seed_decides(attack, batch):
    model = net()
    assert torch.equal(attack(model, *batch, seed=3), attack(model, *batch, seed=3))


@EVERY
def test_it_works_under_no_grad_and_explains_inference_mode(attack, batch):
    model = net()
    with torch.no_grad():
        inside = attack(model, *batch)
    torch.testing.assert_close(inside, attack(model, *batch))
    with torch.inference_mode(), pytest.raises(BadInput, match="inference_mode"):
        attack(model, *batch)


@EVERY
def test_a_model_that_raises_is_restored(attack, batch):
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = net(), 0

        def forward(self, x):
            if (torch.is_grad_enabled() and x.requires_grad) or len(x) == 10:
                raise RuntimeError("out of luck")
            return self.net(x)

    model = Fails()
    before = fingerprint(model)
    with pytest.raises(RuntimeError, match="out of luck"):
        attack(model, *batch)
    assert fingerprint(model) == before


@pytest.mark.parametrize(
    "attack", [a for a in ATTACKS if not isinstance(a, EOT | ThroughBatch)], ids=lambda a: f"{a}"[:60]
)
def test_a_model_without_batch_norm_is_attacked_as_well(attack, batch):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 5))
    assert attack(plain, *batch).shape == batch[0].shape


def test_bad_input_is_told_in_one_sentence(batch):
    x, y = batch
    model, attack = net().eval(), PGD(INF, steps=1)
    cases = {
        r"pixels must lie in \[0, 1\]": lambda: attack(model, x * 255, y),
        "NaN": lambda: attack(model, x.index_fill(0, torch.tensor([0]), torch.nan), y),
        r"labels must lie in 0\.\.4": lambda: attack(model, x, y + 3),
        "one label per image": lambda: attack(model, x, y[:-1]),
        "divide bytes by 255": lambda: attack(model, (x * 255).to(torch.uint8), y),
        "did you mean 8/255": lambda: Linf(8),
        "must not be negative": lambda: L2(-1),
        "-3 steps": lambda: PGD(INF, steps=-3),
        "longer than 0": lambda: PGD(INF, step_size=0),
        "no loss 'hinge'": lambda: PGD(INF, loss="hinge"),
        "leave none to attack": lambda: CoBatch(images=10)(model, x, y),
        "is not a number": lambda: Linf("eight"),
        "one id per image": lambda: attack(model, x, y, ids=[1, 2]),
        "logits of shape": lambda: attack(nn.Identity(), x, y),
    }
    for words, act in cases.items():
        with pytest.raises(BadInput, match=words):
            act()


def test_an_empty_batch_comes_back_empty():
    empty = torch.zeros(0, 3, 12, 12)
    assert PGD(INF, steps=1)(net(), empty, torch.zeros(0, dtype=torch.long)).shape == empty.shape


def test_attacks_are_values():
    assert PGD(Linf("8/255")) == PGD(Linf(8 / 255))
    assert PGD(Linf("8/255"), steps=10).step == pytest.approx(2 / 255)
    assert copy.deepcopy(PGD(INF)) == PGD(INF)
    assert "step 1/255" in str(PGD(Linf("8/255"), steps=20))
