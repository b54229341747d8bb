"""Trace a network's forward pass with torch.fx, without leaving anything on it."""

from __future__ import annotations

from torch import fx, nn

from trimtab._clone import restored_attributes


class Tracer(fx.Tracer):
    """torch's tracer, which also records reads of buffers and gives up instead of raising."""

    proxy_buffer_attributes = True  # so that a forward pass that reads statistics itself is noticed

    def attempt(self, model: nn.Module) -> fx.Graph | None:
        """Return the graph of the model; None if it cannot be traced."""
        try:
            with restored_attributes(model):
                return self.trace(model)
        except Exception:  # tracing runs the user's own forward pass, which may raise anything at all
            return None
