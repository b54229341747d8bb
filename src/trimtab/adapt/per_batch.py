"""Adaptive batch norm: normalize each batch with its own statistics, or with a blend.

Idea      mu = rho mu_batch + (1 - rho) mu_train,  s = rho s_batch + (1 - rho) s_train
Paper     Nandy et al., "Covariate shift adaptation for adversarially robust classifier", section 2;
          the blend of variances instead is Schneider et al. 2020
Norm      source "blend" (or "batch" at rho 1), update off, groups none
Cost      one forward pass with training-mode statistics
Careful   an image's output now depends on its batch: certificates do not apply (use `adapt.frozen`), an
          attacker may differentiate through the statistics (`attacks.ThroughBatch`) or control other
          images of the batch (`attacks.CoBatch`), and small or class-sorted batches give biased
          statistics. In the paper it did not help a standard network on defocus and Gaussian blur.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from trimtab import norm
from trimtab.runtime import require_usable
from trimtab.types import BadInput, number

ESTIMATORS = {"mean": None, "median": norm.robust_moments}


class Adapting(nn.Module):
    """Base class of modules that wrap a copy of a model and adapt its statistics to the input."""

    model: nn.Module

    @property
    def couples_batch(self) -> bool:
        """Whether an image's output depends on other images."""
        return True


class PerBatch(Adapting):
    """A copy of a model that re-estimates its statistics on every batch, in `train()` and in `eval()`."""

    def __init__(self, model: nn.Module, rho: float | str, blend_of: str, estimator: str) -> None:
        super().__init__()
        estimator_named(estimator)
        self.model = steered_copy(model)
        self.rho, self.blend_of, self.estimator = number(rho), blend_of, estimator
        with self._steering():
            pass  # so that an invalid rho raises here, not at the first batch

    @property
    def couples_batch(self) -> bool:
        """Whether an image's output depends on its batch: not at rho = 0."""
        return self.rho > 0

    @property
    def provenance(self) -> str:
        """Where the statistics come from, for trust cards and certificates."""
        of = "" if self.estimator == "mean" else f", by {self.estimator}"
        return f"re-estimated on every batch (rho={self.rho:g}{of})"

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch, normalized with its own statistics."""
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
    """Return a copy of `model` that normalizes each batch with the batch's own statistics.

    Args:
        model: A model with batch norm; it is not modified.
        rho: Weight of the batch statistics; the running statistics have weight 1 - rho.
        blend_of: What is blended: "std" (the paper) or "var".
        estimator: "mean", or "median" (median and MAD), which a few adversarial images of the batch cannot
            move far.
    """
    return PerBatch(model, rho, blend_of, estimator)


def estimator_named(name: str) -> Callable[[Tensor], norm.Moments] | None:
    """Return the function that estimates the moments of a batch; None stands for mean and variance."""
    if name not in ESTIMATORS:
        raise BadInput(f"estimator must be one of {', '.join(ESTIMATORS)}, found {name!r}")
    return ESTIMATORS[name]


def steered_copy(model: nn.Module) -> nn.Module:
    """Return a steered copy, in eval mode, of the active branch; a model without batch norm is refused.

    Of an adapting module the wrapped model is copied, with its present statistics.
    """
    while isinstance(model, Adapting):
        model = model.model
    if any(isinstance(part, Adapting) for part in model.modules()):
        raise BadInput("a submodule of this model is adapted already; adapt the model before wrapping it")
    require_usable(model)
    copied = norm.extract_branch(model).eval()
    if not norm.layers(copied):
        raise BadInput("this model has no batch-norm layer whose statistics could be adapted")
    return copied
