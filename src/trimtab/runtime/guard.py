"""Leave no trace: after the guard, the model is bit for bit as it was before, whatever ran inside.

Inside, the model is in eval mode, its steered layers normalize with running statistics that are not updated,
and its parameters are frozen, so that gradients exist for images only. The branch that an outer `use` chose
stays active. On exit, also after an exception, every submodule's mode, every buffer, every `requires_grad`
and every `.grad` is what it was, and modules with `snapshot()` and `rollback()` are rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from trimtab import norm
from trimtab._bfloat16 import require_usable
from trimtab._mode import restored_modes
from trimtab.types import BadInput


@contextmanager
def guard(model: nn.Module, running: bool = True) -> Iterator[nn.Module]:
    """Freeze `model` while the block runs.

    Args:
        model: The network; it is restored after the block.
        running: Normalize with running statistics. False keeps the source that an outer `use` chose; nothing
            is updated either way.
    """
    _require_guardable(model)
    with ExitStack() as stack:
        stack.enter_context(_parameters_unchanged(model))
        # Restored in this order: parameters, modes, buffers, what modules keep elsewhere.
        for restored in (_restored_snapshots, _restored_buffers, restored_modes, _frozen_parameters):
            stack.enter_context(restored(model))
        _to_eval(model)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(norm.unobserved(model))
        if norm.layers(model):
            # As a stock layer in eval mode: by running statistics, wherever it keeps some.
            stock = {"source": None, "groups": None, "shift": None} if running else {}
            stack.enter_context(norm.use(model, update=False, **stock))
        yield model


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside DistributedDataParallel, whose wrapper waits for gradients of parameters."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def _require_guardable(model: nn.Module) -> None:
    """Raise BadInput where gradients of this model cannot be taken."""
    if torch.is_inference_mode_enabled():
        raise BadInput(
            "gradients cannot be taken inside torch.inference_mode(); leave it, or use torch.no_grad(), "
            "under which attacks and measurements work"
        )
    if any(p.is_inference() for p in model.parameters()):
        raise BadInput("this model was made inside torch.inference_mode(); load it outside of it")
    require_usable(model)


def _to_eval(model: nn.Module) -> None:
    try:
        model.eval()
    except NotImplementedError as error:
        raise BadInput(
            "this model cannot change its mode, as torch.export leaves it; give the one it was made from"
        ) from error


@contextmanager
def _frozen_parameters(model: nn.Module) -> Iterator[None]:
    """Clear `requires_grad` of all parameters; restore it and `.grad` on exit."""
    before = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    try:
        for parameter, *_ in before:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, requires_grad, grad in before:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad


@contextmanager
def _parameters_unchanged(model: nn.Module) -> Iterator[None]:
    """Raise BadInput at the end of the block if it changed a parameter in place."""
    versions = [(p, p._version) for p in model.parameters()]
    yield
    if any(parameter._version != version for parameter, version in versions):
        raise BadInput("this model changes its own parameters in a forward pass; attack a frozen copy of it")


@contextmanager
def _restored_buffers(model: nn.Module) -> Iterator[None]:
    """Restore every module's buffers on exit: the same tensors with the same values."""
    before = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(b, b.clone()) for _, buffers in before for b in buffers.values() if b is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, buffers in before:
                for name, buffer in buffers.items():
                    if name not in module._buffers or module._buffers[name] is not buffer:
                        module._buffers[name] = buffer
            for buffer, value in values:
                if not torch.equal(buffer, value):  # versions do not show it: a stock kernel raises none
                    buffer.copy_(value)


@contextmanager
def _restored_snapshots(model: nn.Module) -> Iterator[None]:
    """Roll back modules that keep state of their own and offer `snapshot()` and `rollback()`."""
    snapshots = [(module, module.snapshot()) for module in model.modules() if _has_snapshots(module)]  # type: ignore[operator]
    try:
        yield
    finally:
        for module, snapshot in snapshots:
            module.rollback(snapshot)  # type: ignore[operator]


def _has_snapshots(module: Any) -> bool:
    return callable(getattr(module, "snapshot", None)) and callable(getattr(module, "rollback", None))
