"""What AdvBN looks like: images painted from features whose statistics were pushed to hurt a classifier.

Idea      z = encoder(x); perturb its channel statistics against classifier(decoder(z)); paint the result
Paper     Shu et al., AdvBN, section 3 and appendix B (ImageNet-AdvBN): 6 steps of 0.2, eps 1.1, batches of 32
          in the set's own order (ImageNet's is sorted by class, so that a batch holds one or two)
Control   `identical=True`: the same encoder and decoder without the perturbation
Norm      running statistics everywhere; the perturbed feature need not be a norm layer's
Cost      `steps` forward/backward passes of decoder and classifier per batch
Careful   the perturbation is shared by a batch: batches must be those of the published set to compare
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from trimtab.attacks.feature import ascend, perturbed
from trimtab.attacks.guard import guard
from trimtab.construct.autoencoder import Autoencoder
from trimtab.data import Batch, Images


@dataclass(frozen=True)
class AdvBNImages:
    """A construction: `build(AdvBNImages(auto), classifier, images, out)`; its batches are of 32."""

    auto: Autoencoder
    eps: float = 1.1
    """Radius of every relative change of a statistic."""
    steps: int = 6
    step: float = 0.2
    identical: bool = False
    """Only reconstruct: the control."""
    batch: int = 32
    version: ClassVar[int] = 1

    def __call__(
        self, model: nn.Module, batch: Batch, images: Images, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        made = [
            self._one(model, x, y)
            for x, y in zip(batch.x.split(self.batch), batch.y.split(self.batch), strict=True)
        ]
        return torch.cat(made), batch.y

    def _one(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
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
