"""Adaptive batch norm: normalise each batch with its own statistics, or with a blend.

Idea      mu = rho mu_batch + (1 - rho) mu_train,  s = rho s_batch + (1 - rho) s_train
Paper     Nandy et al., "Covariate shift adaptation for adversarially robust classifier", section 2;
          the blend of variances instead is Schneider et al. 2020
Norm      source "blend" (or "batch" at rho 1), update off, groups none
Cost      one forward pass with training-mode statistics
Careful   an image's output now depends on its batch: certificates do not apply (freeze it), an attacker
          may differentiate through the statistics (`attacks.ThroughBatch`) or sit in the batch
          (`attacks.CoBatch`), small or class-sorted batches mislead it. It did not help, in the paper,
          a standard network on defocus and Gaussian blur.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from trimtab import norm
from trimtab.types import BadInput, number

ESTIMATORS = {"mean": None, "median": norm.robust_moments}


class Adapting(nn.Module):
    """A copy of a model whose statistics follow the images that it is shown."""

    model: nn.Module

    @property
    def couples_batch(self) -> bool:
        """Whether an image's output depends on others."""
        return True


class PerBatch(Adapting):
    """A copy of a model that re-estimates its statistics on every batch, in `train()` and in `eval()`."""

    def __init__(self, model: nn.Module, rho: float | str, blend_of: str, estimator: str) -> None:
        super().__init__()
        estimator_named(estimator)
        self.model = steered_copy(model)
        self.rho, self.blend_of, self.estimator = number(rho), blend_of, estimator
        with self._steering():
            pass  # an impossible rho is told here, not at the first batch

    @property
    def couples_batch(self) -> bool:
        return self.rho > 0

    @property
    def provenance(self) -> str:
        of = "" if self.estimator == "mean" else f", by {self.estimator}"
        return f"re-estimated on every batch (rho={self.rho:g}{of})"

    def forward(self, x: Tensor) -> Tensor:
        with self._steering():
            y: Tensor = self.model(x)
        return y

    def _steering(self):  # type: ignore[no-untyped-def]  # a context manager
        source = "batch" if self.rho == 1 else "blend"
        return norm.use(
            self.model,
            source=source,
            rho=self.rho,
            blend_of=self.blend_of,
            update=False,
            estimator=estimator_named(self.estimator),
        )


def per_batch(
    model: nn.Module, rho: float | str = 1.0, blend_of: str = "std", estimator: str = "mean"
) -> PerBatch:
    """A copy of `model` that normalises each batch with `rho` of its own statistics.

    `blend_of` is "std" (the paper) or "var"; `estimator="median"` takes median and MAD, which a few
    hostile images in the batch cannot move far.
    """
    return PerBatch(model, rho, blend_of, estimator)


def estimator_named(name: str) -> Callable[[Tensor], norm.Moments] | None:
    """What takes the statistics of a batch; None is mean and variance."""
    if name not in ESTIMATORS:
        raise BadInput(f"estimator must be one of {', '.join(ESTIMATORS)}, found {name!r}")
    return ESTIMATORS[name]


def steered_copy(model: nn.Module) -> nn.Module:
    """A steered copy in eval mode, of the branch in use; a model without batch norm cannot be adapted.

    Of a model that adapts it is the one inside, with the statistics that it has now.
    """
    while isinstance(model, Adapting):
        model = model.model
    if any(isinstance(part, Adapting) for part in model.modules()):
        raise BadInput("a part of this model adapts already; adapt the model before it is put inside another")
    copied = norm.settled(model).eval()
    if not norm.layers(copied):
        raise BadInput("this model has no batch-norm layer whose statistics could be adapted")
    return copied
