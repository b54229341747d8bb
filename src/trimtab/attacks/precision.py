"""Networks that compute in another precision than their caller."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trimtab._clone import deep_clone
from trimtab.types import BadInput


class CastTo(nn.Module):
    """A network that computes in its own precision; its input and output are float32.

    Args:
        net: The network.
        dtype: Its precision.
    """

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.net, self.dtype = net, dtype

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x in float32."""
        logits: Tensor = self.net(x.to(self.dtype)).float()
        return logits


class Bf16Gradients(nn.Module):
    """A network that runs as a bfloat16 copy when gradients are recorded, and as it is otherwise.

    An attack uses only the direction of a gradient, for which three digits are enough. A pass without
    gradients, by the network itself, decides whether an image is misclassified.

    Args:
        net: The network.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.copy = CastTo(deep_clone(net).to(torch.bfloat16), torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x: the copy's if a gradient is recorded, else the network's."""
        net = self.copy if x.requires_grad and torch.is_grad_enabled() else self.net
        logits: Tensor = net(x)
        return logits


def require_bf16_copy(net: nn.Module, x: Tensor) -> None:
    """Raise BadInput for a network whose bfloat16 copy does not run on x."""
    try:
        with torch.enable_grad():
            logits = net(x.detach().requires_grad_(True))
            if logits.requires_grad:
                logits.sum().backward()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0] or "no reason given"
        raise BadInput(
            f'this model does not run in bfloat16 ({reason}); set the attack\'s precision to "full"'
        ) from error
