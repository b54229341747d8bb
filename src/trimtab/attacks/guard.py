"""Leave no trace: whatever runs inside the guard, the model comes out bit for bit as it went in.

Inside, the model is in eval mode, its steered layers normalise with running statistics that do not
learn, and its parameters are frozen, so that gradients exist for images only. The branch that an outer
`use` chose stays. On the way out, also after an exception, every submodule's mode, every buffer, every
`requires_grad` and every `.grad` is what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from trimtab import adapt, norm
from trimtab.layout import channels_last, lay_out_gradients
from trimtab.models.pixels import Pixels
from trimtab.straight import straightened
from trimtab.types import BadInput

PROBE = 4
"""Images that a network is tried on before it is attacked."""


@contextmanager
def guard(model: nn.Module, running: bool = True) -> Iterator[nn.Module]:
    """Freeze `model` while the block runs. `running=False` keeps what an outer `use` chose, but learning."""
    if torch.is_inference_mode_enabled():
        raise BadInput(
            "gradients cannot be taken inside torch.inference_mode(); leave it, or use torch.no_grad(), "
            "under which attacks and measurements work"
        )
    if any(p.is_inference() for p in model.parameters()):
        raise BadInput("this model was made inside torch.inference_mode(); load it outside of it")
    modes = [(module, module.training) for module in model.modules()]
    flags = [(p, p.requires_grad, p.grad, p._version) for p in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(held, held.clone()) for _, own in buffers for held in own.values() if held is not None]
    marks = [(module, module.snapshot()) for module in model.modules() if isinstance(module, adapt.Stream)]
    try:
        try:
            model.eval()
        except NotImplementedError as why:
            raise BadInput(
                "this model cannot change its mode, as torch.export leaves it; give the one it was made from"
            ) from why
        for parameter, *_ in flags:
            parameter.requires_grad_(False)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(norm.unobserved(model))
            if running and norm.layers(model):
                # As a stock layer in eval mode: by running statistics, wherever it keeps some.
                stack.enter_context(norm.use(model, source=None, update=False, groups=None, shift=None))
            elif norm.layers(model):
                stack.enter_context(norm.use(model, update=False))
            yield model
    finally:
        for parameter, requires_grad, grad, _ in flags:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for module, own in buffers:
                for name, held in own.items():
                    if name not in module._buffers or module._buffers[name] is not held:
                        module._buffers[name] = held
            for held, before in values:
                if not torch.equal(held, before):  # its version does not tell: a stock kernel raises none
                    held.copy_(before)
        for stream, mark in marks:
            stream.rollback(mark)
    if any(parameter._version != version for parameter, _, _, version in flags):
        raise BadInput("this model changes its own parameters in a forward pass; attack a frozen copy of it")


def bare(model: nn.Module) -> nn.Module:
    """The network inside DistributedDataParallel, whose wrapper waits for gradients of parameters."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def refuse_stream(model: nn.Module) -> None:
    if any(isinstance(module, adapt.Stream) for module in model.modules()):
        raise BadInput(
            "a stream learns from what it is shown and passes no gradient; take adapt.frozen or per_batch"
        )


def fast(model: nn.Module, x: Tensor, said: Tensor | None = None, tried: bool = True) -> nn.Module:
    """The quickest equivalent of a guarded model on images like x: norms folded, channels last, `straight`.

    The folding is tried on the first of them; what the model has `said` of these need not be asked again. If
    it is not `tried` here, whoever takes it must try it.
    """
    folded, trace = norm.folded(bare(model), x[:PROBE] if tried else None, said)
    if type(folded) is Pixels and x.dim() == 4:  # one inside another network may be given other sizes
        folded.normalise.spread(*x.shape[2:])
    net = channels_last(lay_out_gradients(folded, model))
    return straightened(net, trace, x)


def says_coupled(model: nn.Module) -> bool:
    """Whether a model, or a part of it, says that images of a batch influence each other."""
    return any(getattr(part, "couples_batch", False) for part in model.modules())


@torch.no_grad()
def couples_batch(model: nn.Module, x: Tensor, said: Tensor | None = None) -> bool:
    """Whether an image's output depends on the images beside it.

    A model may say so itself (`couples_batch`); else it is tried: the first images of `x`, with other
    neighbours. A model whose output is random does not count as coupled.
    """
    if says_coupled(model):
        return True
    if len(x) < 2:
        return False
    here = model(x[:PROBE]) if said is None else said
    if not isinstance(here, Tensor):
        raise BadInput("the model must return logits of shape (N, classes)")
    if same_beside_others(model, x, here):
        return False
    here = here[:1]
    scale = float(here.abs().max().clamp(min=1e-6))
    return bool((here - model(x[:PROBE])[:1]).abs().max() <= 1e-6 * scale)


@torch.no_grad()
def same_beside_others(net: nn.Module, x: Tensor, said: Tensor) -> bool:
    """Whether a network says of the first image, beside others than `x` has there, what was `said` of it."""
    try:
        elsewhere = net(torch.cat([x[:1], 1 - x[1:PROBE]]))[:1]
    except AttributeError:  # the forward pass asks a norm layer that was folded
        return False
    scale = float(said[:1].abs().max().clamp(min=1e-6))
    return bool((said[:1] - elsewhere).abs().max() <= 1e-4 * scale)
