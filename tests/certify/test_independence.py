"""Only a fixed function of one image can be certified; everything else is refused, whatever its disguise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trimtab import adapt, certify, norm
from trimtab.types import BadInput

FREEZE = r"adapt\.frozen"


def network(normalize: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), normalize, nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        )  # fmt: skip


def images(n: int = 5) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class BatchStatistics(nn.Module):
    """Normalizes with the batch, to the share rho, in every mode."""

    def __init__(self, rho: float):
        super().__init__()
        self.rho = rho

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
        return (x - self.rho * mean) / (1 - self.rho + self.rho * std)


class BatchCount(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / len(x)


class Jitter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


@pytest.mark.parametrize("layer", [BatchStatistics(1.0), BatchStatistics(0.01), BatchCount()])
@pytest.mark.parametrize("n", [1, 5])
def test_a_model_that_looks_at_its_batch_is_refused(layer: nn.Module, n: int) -> None:
    with pytest.raises(BadInput, match=f"depends on the other images of its batch.*{FREEZE}"):
        certify.certify(network(layer), images(n), n=100)
    with pytest.raises(BadInput, match=FREEZE):
        certify.predict(network(layer), images(n), n=100)


def test_batch_norm_without_running_statistics_is_refused() -> None:
    with pytest.raises(BadInput, match=FREEZE):
        certify.certify(network(nn.BatchNorm2d(4, track_running_stats=False)), images(), n=100)


def test_a_network_steered_to_batch_statistics_is_refused_until_it_is_released() -> None:
    model = norm.steer(network(nn.BatchNorm2d(4)))
    with norm.use(model, source="batch"), pytest.raises(BadInput, match=FREEZE):
        certify.certify(model, images(), n=100)
    with norm.use(model, source="blend", rho=0.01), pytest.raises(BadInput, match=FREEZE):
        certify.certify(model, images(), n=100)
    assert len(certify.certify(model, images(), n=100)) == 5


def test_a_model_with_chance_inside_is_refused() -> None:
    with pytest.raises(BadInput, match="different logits for the same batch from call to call"):
        certify.certify(network(Jitter()), images(), n=100)


def test_adaptation_per_batch_and_by_stream_is_refused_and_left_as_it_was() -> None:
    source = network(nn.BatchNorm2d(4))
    for adapted in (
        adapt.per_batch(source, rho=0.01),
        adapt.per_batch(source),
        adapt.stream(source, prior=16),
    ):
        before = {key: value.clone() for key, value in adapted.state_dict().items()}
        with pytest.raises(BadInput, match=FREEZE):
            certify.certify(adapted, images(), n=100)
        assert all(torch.equal(before[key], value) for key, value in adapted.state_dict().items())
        assert getattr(adapted, "seen", 0) == 0


def test_frozen_statistics_are_certified_and_recorded() -> None:
    adapted = adapt.frozen(network(nn.BatchNorm2d(4)), images(), provenance="noisy training images")
    found = certify.certify(adapted, images(), n=100, alpha=0.05)
    assert found.statistics == "frozen on 5 noisy training images (rho=1)"


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.Dropout(0.5), nn.Identity()]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_networks_that_treat_images_one_by_one_are_certified(layer: nn.Module, dtype: torch.dtype) -> None:
    found = certify.certify(network(layer).to(dtype), images().to(dtype), n=100, alpha=0.05)
    assert len(found) == 5


class Returns(nn.Module):
    def __init__(self, value: Tensor):
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value.expand(len(x), *self.value.shape)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (torch.zeros(1), "one output.*two logits"),
        (torch.zeros(2, 3), r"shape \(N, classes\)"),
        (torch.tensor([0.0, float("nan")]), "NaN"),
    ],
)
def test_models_that_return_no_logits_are_refused(value: Tensor, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        certify.certify(Returns(value), images(), n=100)


def test_a_model_that_says_it_depends_on_others_is_refused_however_little_it_does() -> None:
    model = network(nn.BatchNorm2d(4)).eval()
    settled = adapt.stream(model)
    settled.seen = 10**6
    for one in (settled, nn.Sequential(adapt.per_batch(model, rho=1e-5))):
        with pytest.raises(BadInput, match=FREEZE):
            certify.certify(one, images(), n=100)
    certify.certify(adapt.per_batch(model, rho=0.0), images(), n=100)


def test_a_model_with_several_heads_is_told_in_a_sentence() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network(nn.BatchNorm2d(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.body(x), self.body(x)

    with pytest.raises(BadInput, match="must return logits"):
        certify.certify(Heads().eval(), images(), n=100)
