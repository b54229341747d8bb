"""AdvBN images: decoded features whose statistics were perturbed adversarially.

Idea      z = encoder(x); perturb its channel statistics against classifier(decoder(z)); decode the result
Paper     Shu et al., AdvBN, section 3 and appendix B (ImageNet-AdvBN): 6 steps of 0.2, eps 1.1, batches of 32
          in the set's own order (ImageNet is sorted by class: a batch contains one or two)
Control   `identical=True`: the same encoder and decoder without the perturbation
Norm      running statistics everywhere; the perturbed feature need not be the output of a norm layer
Cost      `steps` forward/backward passes of decoder and classifier per batch
Careful   the perturbation is shared by a batch: only compare sets with the same batches
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from trimtab.attacks.feature import ascend, perturbed
from trimtab.construct.autoencoder import Autoencoder
from trimtab.data import Batch, Images
from trimtab.runtime import guard


@dataclass(frozen=True)
class AdvBNImages:
    """Construct AdvBN images, as in `build(AdvBNImages(auto), classifier, images, out)`.

    Args:
        auto: An encoder and the decoder trained for it.
        eps: Largest relative change of a statistic.
        steps: Gradient steps.
        step: Step size.
        identical: Whether to reconstruct without a perturbation, as a control.
        batch: Number of consecutive images that share a perturbation.
    """

    auto: Autoencoder
    eps: float = 1.1
    steps: int = 6
    step: float = 0.2
    identical: bool = False
    batch: int = 32
    version: ClassVar[int] = 1

    def __call__(
        self, model: nn.Module, batch: Batch, images: Images, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the AdvBN images of `batch`, and its labels."""
        parts = [
            self._perturbed(model, x, y)
            for x, y in zip(batch.x.split(self.batch), batch.y.split(self.batch), strict=True)
        ]
        return torch.cat(parts), batch.y

    def _perturbed(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        size, rectify = x.shape[2:], self.auto.rectified
        with guard(model), guard(self.auto):
            z = self.auto.encode(x)
            if not self.identical:
                d_mu, d_sigma = ascend(
                    lambda f: model(self.auto.decode(f, size)), z, y, self.eps, self.steps, self.step, rectify
                )
                z = perturbed(z, d_mu, d_sigma, rectify)
            with torch.no_grad():
                return self.auto.decode(z, size)
