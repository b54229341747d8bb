"""A network whose normalization statistics are inputs of its forward pass: one graph serves all packs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from trimtab._clone import deep_clone
from trimtab.norm.packs import pack
from trimtab.norm.surgery import release, steer

_STATE_KEYS = {"weight": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}


class StatisticsAsInputs(nn.Module):
    """A stock copy of a model in eval mode, called with images and the tensors of a pack.

    Args:
        model: Any model with batch-norm layers; it is not changed.
        branch: The branch whose statistics are the example.
    """

    def __init__(self, model: nn.Module, branch: str = "main") -> None:
        super().__init__()
        self.model = release(steer(deep_clone(model)), branch).eval()
        self.example = pack(steer(deep_clone(self.model))).tensors
        """The statistics of `branch`, by name (see `Pack.tensors`): the order of the inputs."""
        self._keys = [_state_key(name) for name in self.example]

    def forward(self, x: Tensor, statistics: Sequence[Tensor]) -> Any:
        """Run the model on x with these statistics, in the order of `example`."""
        state = dict(zip(self._keys, statistics, strict=True))
        return functional_call(self.model, state, (x,))


def _state_key(name: str) -> str:
    layer, _, half = name.rpartition(".")
    return f"{layer}.{_STATE_KEYS[half]}" if layer else _STATE_KEYS[half]
