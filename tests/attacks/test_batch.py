"""Attacks that couple a batch: gradients run through its statistics, and others can be flipped."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trimtab import adapt, norm
from trimtab.attacks import EOT, PGD, CoBatch, Linf, ThroughBatch
from trimtab.attacks.eot import MeanProbability
from trimtab.types import BadInput


def test_through_batch_equals_pgd_on_the_stock_model_in_training_mode(model, images):
    x, y = (part[:16] for part in images)
    model = copy.deepcopy(model).double()
    x = x.double()
    attack = PGD(Linf("4/255"), steps=4, random_start=False)
    ours = ThroughBatch(attack)(model, x, y)
    stock = copy.deepcopy(model).train()
    adv = x.clone()
    for _ in range(4):
        adv.requires_grad_(True)
        (grad,) = torch.autograd.grad(F.cross_entropy(stock(adv), y, reduction="sum"), adv)
        adv = (adv.detach() + attack.step * grad.sign()).clamp(x - 4 / 255, x + 4 / 255).clamp(0, 1)
    torch.testing.assert_close(ours, adv, atol=1e-9, rtol=0)


def test_statistics_carry_one_images_gradient_to_the_others(model, images):
    x, y = (part[:8] for part in images)
    adaptive = adapt.per_batch(model)
    x = x.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(F.cross_entropy(adaptive(x)[:1], y[:1]), x)
    assert grad[1:].abs().sum() > 0


def test_co_batch_images_hurt_the_others_and_leave_them_untouched(model, images):
    x, y = (part[:32] for part in images)
    attack = CoBatch(images=8, steps=20, step_size="8/255")
    adv = attack(model, x, y)
    assert torch.equal(adv[:24], x[:24])
    adaptive = adapt.per_batch(model)
    with torch.no_grad():
        before, after = (F.cross_entropy(adaptive(b)[:24], y[:24]) for b in (x, adv))
        gray = torch.cat([x[:24], torch.full_like(x[24:], 0.5)])
        assert after > before
        assert after > F.cross_entropy(adaptive(gray)[:24], y[:24])
    assert float(adv.min()) >= 0
    assert float(adv.max()) <= 1


@pytest.mark.parametrize("shape", [(6,), (6, 1, 1)], ids=["features", "maps of one value"])
def test_targets_are_drawn_where_one_image_has_no_deviation(shape):
    torch.manual_seed(0)
    layer = nn.BatchNorm1d(6) if len(shape) == 1 else nn.BatchNorm2d(6)
    features = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.Unflatten(1, shape), layer)
    model = nn.Sequential(features, nn.Flatten(), nn.Linear(6, 3)).eval()
    x, y = torch.rand(8, 3, 4, 4), torch.arange(8) % 3
    adv = ThroughBatch(PGD(Linf("4/255"), steps=2, targeted=True))(model, x, y)
    assert not torch.equal(adv, x)


@pytest.mark.parametrize(
    "attack", [EOT(PGD(steps=1), m=1), ThroughBatch(PGD(steps=1)), CoBatch(1, 1)], ids=str
)
def test_what_cannot_be_attacked_is_refused_in_a_sentence(attack, model, images):
    x, y = images

    class Dictionary(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x):
            return {"logits": self.net(x)}

    with pytest.raises(BadInput, match="logits of shape"):
        attack(Dictionary(), x, y)
    with pytest.raises(BadInput, match="torch tensors, found ndarray"):
        attack(model, x.numpy(), y.numpy())
    with pytest.raises(BadInput, match=r"torch\.nn\.Module, found a function"):
        attack(lambda x: model(x), x, y)


def test_eot_on_no_image_gives_none(model, images):
    x, y = images
    assert EOT(PGD(steps=1), m=1)(model, x[:0], y[:0]).shape == x[:0].shape


def test_the_classifiers_of_eot_are_folded(model, images):
    folded = norm.fold(MeanProbability([model, copy.deepcopy(model)]), images[0][:4])
    assert not [part for part in folded.modules() if isinstance(part, nn.BatchNorm2d)]
