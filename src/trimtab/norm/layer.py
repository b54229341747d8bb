"""A steered batch-norm layer: the stock layer, with the choices of its forward pass in a `Setting`.

`Steered` is mixed into the layer's own class (see `surgery`), so that keys, attributes and fused
activations stay. With a neutral setting it runs the stock forward pass and nothing else; otherwise the
pass in `_forward`. A branch is updated once per pass, from pooled moments, so a grouped or routed pass
leaves the same running statistics as a plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, cast

import torch.distributed as dist
from torch import Tensor, nn

from trimtab.norm._forward import steered_pass
from trimtab.norm.setting import MAIN, NEUTRAL, Setting
from trimtab.norm.synchronize import world_size


class Holder(nn.Module):
    """The module that holds a branch: the steered layer itself for "main", else a `Branch`."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor


class Branch(Holder):
    """Parameters and running statistics of another branch of a layer; a half that it shares is absent.

    Args:
        affine_of: The branch whose gamma and beta it shares; None if it has its own.
        statistics_of: The branch whose running statistics it shares; None if it has its own.
    """

    def __init__(self, affine_of: str | None, statistics_of: str | None) -> None:
        super().__init__()
        self.affine_of = affine_of
        self.statistics_of = statistics_of

    def extra_repr(self) -> str:
        """Return the halves that are shared, for printing."""
        shared = {"affine": self.affine_of, "statistics": self.statistics_of}
        return ", ".join(f"{half} of {owner}" for half, owner in shared.items() if owner)


class Steered(Holder):
    """Steer a batch-norm class that it is mixed into (`steered_class`); never constructed on its own."""

    setting: Setting
    """The current setting; `use` replaces and restores it."""
    rest: Setting
    """The setting outside of `use`: neutral unless `freeze` set it. Copies and pickles start from it."""
    synchronized: bool
    """Whether batch statistics are taken over all processes."""
    stock_class: ClassVar[type[nn.Module]]
    """Its class before `steer` and after `release`."""
    tail: ClassVar[Callable[[Any, Tensor], Tensor]]
    """What the stock forward pass does after normalizing (timm fuses drop-out and activation)."""

    num_features: int
    eps: float
    momentum: float | None
    track_running_stats: bool
    _check_input_dim: Callable[[Tensor], None]

    def forward(self, input: Tensor) -> Tensor:
        """Normalize a batch (N, C, ...) by the current setting."""
        if self.runs_stock(input):
            return super().forward(input)  # the stock class is next in line
        self._check_input_dim(input)
        return self.tail(steered_pass(self, input))

    # ---- branches -----------------------------------------------------------------------------------

    @property
    def branch_names(self) -> tuple[str, ...]:
        """Names of all branches, "main" first."""
        return (MAIN, *self.branch_modules)

    @property
    def branch_modules(self) -> Mapping[str, Branch]:
        """All branches but "main"; the submodule that holds them exists only once there is one."""
        box = self._modules.get("branches")
        return {} if box is None else cast(Mapping[str, Branch], box._modules)

    def holder(self, branch: str) -> Holder:
        """Return the module that holds a branch: the layer itself for "main", else its `Branch`.

        A layer without this branch returns that of "main" (AdvBN adds its branch to the tail's layers only).
        """
        return self.branch_modules.get(branch, self)

    def affine_holder(self, branch: str) -> Holder:
        """Return the module that holds gamma and beta of a branch."""
        holder = self.holder(branch)
        shares = isinstance(holder, Branch) and holder.affine_of
        return self.holder(shares) if shares else holder

    def statistics_holder(self, branch: str) -> Holder:
        """Return the module that holds the running statistics of a branch."""
        holder = self.holder(branch)
        shares = isinstance(holder, Branch) and holder.statistics_of
        return self.holder(shares) if shares else holder

    # ---- the knobs in effect: those of the stock layer where one is None --------------------------------

    def branch_now(self) -> str:
        """Return the active branch; "main" if the batch is routed to several."""
        return self.setting.branch if isinstance(self.setting.branch, str) else MAIN

    def source_now(self) -> str:
        """Return which statistics normalize the next batch: "batch", "running" or "blend"."""
        if self.setting.source is not None:
            blends_nothing = self.setting.source == "blend" and self.setting.rho == 0
            return "running" if blends_nothing else self.setting.source
        return "batch" if self.training or not self.keeps_statistics else "running"

    def update_now(self) -> bool | float | str:
        """Return how the next pass updates the running statistics; False if it does not."""
        if self.setting.update is not None:
            return self.setting.update
        return self.training and self.track_running_stats and self.keeps_statistics

    @property
    def keeps_statistics(self) -> bool:
        """Whether there are running statistics; without them the batch normalizes in every mode."""
        return self.running_mean is not None

    def pools_processes(self) -> bool:
        """Return whether statistics are taken over all processes: as in SyncBatchNorm, only in training."""
        return self.synchronized and self.training and world_size(self.processes) > 1

    @property
    def processes(self) -> Any:
        """The process group that statistics are taken over; None is all processes."""
        return getattr(self, "process_group", None)

    def runs_stock(self, input: Tensor) -> bool:
        """Return whether the stock forward pass can take this batch."""
        if isinstance(self, nn.SyncBatchNorm) and self.training:
            alone = not dist.is_available() or not dist.is_initialized()
            return self.setting == NEUTRAL and (
                alone or (self.synchronized and input.is_cuda)
            )  # it refuses others
        return self.setting == NEUTRAL and not self.pools_processes()

    # ---- copies ---------------------------------------------------------------------------------------

    def __fingerprint__(self) -> tuple[type[nn.Module], dict[str, Any]]:
        """The stock class and its attributes: steering changes nothing, a frozen setting does."""
        state = {name: value for name, value in vars(self).items() if name not in ("setting", "synchronized")}
        rest = {name: knob for name, knob in state.pop("rest")._asdict().items() if knob is not None}
        return self.stock_class, state if self.rest == NEUTRAL else state | {"rest": rest}

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = self.__dict__ | {"setting": self.rest}
        return _revive, (self.stock_class,), state


class Frozen(Steered):
    """Steer a `FrozenBatchNorm2d`: running statistics in every mode, and gamma and beta that are buffers."""

    eps = 1e-5  # that of DETR's, which has no attribute
    momentum = None
    track_running_stats = False
    num_batches_tracked = None  # type: ignore[assignment]

    @property
    def num_features(self) -> int:  # type: ignore[override]
        """Number of channels."""
        return len(self.running_mean)

    def source_now(self) -> str:
        """Return which statistics normalize the next batch: the running ones unless a knob is turned."""
        return "running" if self.setting.source is None else super().source_now()

    @staticmethod
    def _check_input_dim(input: Tensor) -> None:
        if input.dim() != 4:
            raise ValueError(f"expected 4D input, found {input.dim()}D")


def _revive(stock: type[nn.Module]) -> Steered:
    kind = steered_class(stock)
    return kind.__new__(kind)


# ---- which classes can be steered ------------------------------------------------------------------------

TAILS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "torch.nn.modules.batchnorm._BatchNorm.forward": lambda layer, y: y,
    "torch.nn.modules.batchnorm.SyncBatchNorm.forward": lambda layer, y: y,
    "timm.layers.norm_act.BatchNormAct2d.forward": lambda layer, y: layer.act(layer.drop(y)),
}
"""The supported forward passes, and what each does after normalizing."""
FROZEN = "FrozenBatchNorm2d.forward"
"""The layer of torchvision, detectron2 and DETR, which all compute the same."""


def after(layer: nn.Module) -> list[nn.Module]:
    """Return the modules that a fused layer runs after normalizing, in order."""
    return [child for name, child in layer.named_children() if name in ("drop", "act")]


def start(layer: Steered) -> None:
    """Initialize the attributes that a layer needs once its class is a steered one."""
    layer.__dict__.update(setting=NEUTRAL, rest=NEUTRAL, synchronized=isinstance(layer, nn.SyncBatchNorm))


def understood(kind: type[nn.Module]) -> bool:
    """Return whether layers of this class can be steered: whether its forward pass is a supported one."""
    return _tail_of(kind) is not None


def _steered_class(stock: type[nn.Module]) -> type[Steered]:
    body = {
        "stock_class": stock,
        "tail": _tail_of(stock),
        # In torch.nn by name, so that fx tracers take a steered layer as a leaf, as they do a stock one.
        "__module__": "torch.nn.modules.batchnorm",
    }
    base = Frozen if _forward_of(stock).endswith(FROZEN) else Steered
    return type(f"Steered{stock.__name__}", (base, stock), body)


steered_class: Callable[[type[nn.Module]], type[Steered]] = cache(_steered_class)  # type: ignore[assignment]
"""The steered subclass of a batch-norm class: one per class, so that types compare equal."""


def _tail_of(kind: type[nn.Module]) -> Callable[[Any, Tensor], Tensor] | None:
    forward = _forward_of(kind)
    return (lambda layer, y: y) if forward.endswith(FROZEN) else TAILS.get(forward)


def _forward_of(kind: type[nn.Module]) -> str:
    return f"{kind.forward.__module__}.{kind.forward.__qualname__}"
