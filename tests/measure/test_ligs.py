"""LIGS against closed forms."""

import pytest
import torch
import torch.nn.functional as F
from tests.measure.networks import Quadratic, points
from torch import nn

from trimtab import measure
from trimtab.types import BadInput


@pytest.mark.parametrize("probe", measure.PROBES)
def test_ligs_of_a_two_class_linear_softmax_is_one(probe):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    found = measure.ligs(model, points(), torch.arange(10) % 2, probe=probe)
    torch.testing.assert_close(found, torch.ones(10, dtype=torch.float64))


def test_ligs_of_a_linear_softmax_is_the_cosine_of_its_error_vectors():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double()
    x, y = points(), torch.arange(10) % 5
    found = measure.ligs(model, x, y, probe="fgsm", size=0.3)
    W, b = model[1].weight.detach(), model[1].bias.detach()

    def slope(x):
        error = (x.flatten(1) @ W.T + b).softmax(1) - F.one_hot(y, 5)
        return error @ W

    aside = x + 0.3 * slope(x).sign().view_as(x)  # not clipped, as in the paper
    assert float(found.min()) < 0.999
    torch.testing.assert_close(found, F.cosine_similarity(slope(x), slope(aside), dim=1))
    clipped = measure.ligs(model, x, y, probe="fgsm", size=0.3, clip=True)
    torch.testing.assert_close(clipped, F.cosine_similarity(slope(x), slope(aside.clamp(0, 1)), dim=1))
    assert not torch.allclose(found, clipped)


@pytest.mark.parametrize("probe", measure.PROBES)
def test_no_probe_is_clipped_unless_asked(probe):
    model, y = Quadratic(), torch.zeros(10, dtype=torch.long)

    def ligs(x, **how):
        return measure.ligs(model, x, y, probe=probe, size=0.05, **how)

    corner, middle = (points() > 0.5).double(), 0.4 + 0.2 * points()
    assert torch.equal(ligs(corner), ligs(corner, clip=False))
    assert not torch.allclose(ligs(corner), ligs(corner, clip=True))
    assert torch.allclose(ligs(middle), ligs(middle, clip=True))  # no probe of 0.05 leaves [0, 1] from there


def test_ligs_under_pgd_walks_seven_steps_from_the_image_itself():
    model, x, y = Quadratic(), points(), torch.zeros(10, dtype=torch.long)
    A, size = model.A.detach(), 0.2

    def slope(x):  # up to a positive factor: that of class 0's cross-entropy
        return (x.flatten(1) - 0.5) @ A

    at = x.flatten(1)
    for _ in range(7):
        at = (at + 2.5 * size / 7 * slope(at).sign()).clamp(x.flatten(1) - size, x.flatten(1) + size)
    for seed in (0, 1):  # no random start
        found = measure.ligs(model, x, y, probe="pgd", size=size, seed=seed)
        torch.testing.assert_close(found, F.cosine_similarity(slope(x), slope(at), dim=1))


def test_ligs_of_a_quadratic_is_the_cosine_of_its_slopes():
    model, x = Quadratic(), points()
    y = torch.zeros(10, dtype=torch.long)
    found = measure.ligs(model, x, y, probe="fgsm", size=0.2)
    A = model.A.detach()
    d = x.flatten(1) - 0.5
    p = torch.sigmoid(0.5 * ((d @ A) * d).sum(1))
    slope = p[:, None] * (d @ A)  # of class 0's cross-entropy
    aside = x.flatten(1) + 0.2 * slope.sign() - 0.5
    torch.testing.assert_close(found, F.cosine_similarity(d @ A, aside @ A, dim=1))


def test_ligs_does_not_depend_on_the_batch():
    model, x, y = Quadratic(), points(), torch.arange(10) % 2
    whole = measure.ligs(model, x, y, seed=3)
    parts = [
        measure.ligs(model, x[i : i + 3], y[i : i + 3], seed=3, ids=range(i, min(i + 3, 10)))
        for i in range(0, 10, 3)
    ]
    torch.testing.assert_close(whole, torch.cat(parts), atol=1e-12, rtol=0)  # up to the rounding of a matmul


def test_a_gradient_of_zero_is_not_a_number_and_left_out_of_averages():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    nn.init.zeros_(flat[1].weight)
    found = measure.ligs(flat, points(4), torch.zeros(4, dtype=torch.long))
    assert bool(found.isnan().all())
    merged = measure.Average.of(found) + measure.Average.of(torch.tensor([0.5, 1.0]))
    assert (merged.mean, merged.count, merged.left_out) == (0.75, 2, 4)


def test_an_unknown_probe_is_told():
    with pytest.raises(BadInput, match="probe must be one of"):
        measure.ligs(Quadratic(), points(2), torch.zeros(2, dtype=torch.long), probe="laplace")


def test_the_callback_reports_usefulness_and_robustness_after_an_epoch(branched):
    from types import SimpleNamespace

    from trimtab.attacks import FGSM, Linf
    from trimtab.data import Batch

    class Images:
        def batches(self, size):
            yield Batch(points(8), torch.arange(8) % 2, torch.arange(8))

    told = measure.usefulness(Images(), FGSM(Linf(0.05)))
    assert told(SimpleNamespace(kind="step", model=branched)) is None
    found = told(SimpleNamespace(kind="epoch", model=branched))
    assert found["robust usefulness"] <= found["usefulness"]
    assert -1 <= found["ligs"] <= 1
