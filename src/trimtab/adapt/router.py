"""Choose between branches without labels: which branch's statistics describe these images?

Idea      every branch b runs its own pass; at early layers l the channel moments (m, v) of an image are
          compared with the branch's statistics,

              d_bl(x) = KL( N(m, v) || N(mu_bl, sigma_bl^2) ), averaged over channels,

          and the branch with the smallest sum_l log d_bl predicts. With `reference` images for each branch,
          the weights w(x) of the branches are the posterior of a linear discriminant analysis of log d, and
          the largest wins. `blend=True` averages the predictions: p(y|x) = sum_b w_b(x) p_b(y|x).
Papers    AdvBN (appendix A.3) lets an oracle choose between main and auxiliary BN for each data set;
          "Intriguing properties of adversarial training" leaves open how to choose between the clean and the
          adversarial branch of Mixture BN
Norm      branch b, source "running", update off, for each branch in turn
Cost      one forward pass per branch (their early parts cannot be shared: each normalizes differently)
Careful   a router is no defense. It recognizes the kinds of images in its reference; an attacker who
          knows it differentiates through the weights (`blend=True` is differentiable), or stays on the
          branch that is easier to attack. Quote the accuracy under that attack, and the worst branch. A
          choice per image is often wrong, since it rests on one sample; one per batch is right or wrong
          for all its images, whose outputs then depend on each other. Under corruptions that the reference
          lacks, no router beat the better single branch on average, and blending lost least. Measured:
          docs/results/statistics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab import norm
from trimtab._clone import deep_clone
from trimtab._mode import evaluation_mode
from trimtab.adapt.per_batch import Adapting
from trimtab.norm.sensors import image_moments
from trimtab.runtime import require_usable
from trimtab.types import BadInput

SHRINKAGE = 0.1
"""Weight of the identity (times the average variance) in the estimate of the pooled covariance."""


class Router(Adapting):
    """A copy of a model that predicts each image, or each batch, with the branch that describes it best.

    Args:
        model: A model with branches, or any model if `packs` are given; it is not changed.
        packs: Packs or their files by branch name, each loaded into a branch of that name; the model's own
            branches if None.
        reference: Unlabeled batches of the images that each branch is for, by branch name; if None, the
            nearest branch wins.
        per: "image", or "batch": one choice for the whole batch, which is then coupled.
        blend: Mix the branches' predictions by their weights instead of choosing one.
        layers: Number of layers to compare, from the first; by default half of those in all branches.
    """

    def __init__(
        self,
        model: nn.Module,
        packs: Mapping[str, norm.Pack | str | Path] | None = None,
        reference: Mapping[str, Iterable[Any]] | None = None,
        *,
        per: str = "image",
        blend: bool = False,
        layers: int | None = None,
    ) -> None:
        super().__init__()
        if per not in ("image", "batch"):
            raise BadInput(f'a router chooses per "image" or per "batch", found {per!r}')
        require_usable(model)
        self.per, self.blend = per, blend
        self.model = norm.steer(deep_clone(model)).eval()
        for name, pack in (packs or {}).items():
            if name not in norm.branches(self.model):
                norm.add_branch(self.model, name)
            norm.load_pack(self.model, pack, name)
        self.branches = tuple(packs or norm.branches(self.model))
        if len(self.branches) < 2:
            raise BadInput(f"a router needs two branches to choose between, found {', '.join(self.branches)}")
        self.names = self._sensors(layers)
        self.weight: Tensor
        self.bias: Tensor
        # Without a reference, a branch scores minus the sum of its log distances.
        nearest = -torch.eye(len(self.branches)).repeat_interleave(len(self.names), 1)
        nearest = nearest.to(next(model.parameters(), nearest).device)
        self.register_buffer("weight", nearest)  # (branches, branches * layers)
        self.register_buffer("bias", torch.zeros_like(nearest[:, 0]))
        if reference is not None:
            self._fit(reference)

    @property
    def couples_batch(self) -> bool:
        """Whether an image's output depends on its batch."""
        return self.per == "batch"

    @property
    def provenance(self) -> str:
        """Where the statistics come from, for trust cards."""
        return f"routed per {self.per} between the branches {', '.join(self.branches)}"

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the chosen branches, or the log-probabilities of their blend."""
        features, logits = self._passes(x)
        weights = self._weights(features)
        if self.blend:
            log_p = torch.stack([z.log_softmax(1) for z in logits], 1)  # (N, branches, classes)
            return torch.logsumexp(weights.clamp(min=1e-30).log()[:, :, None] + log_p, 1)
        choice = weights.argmax(1)  # (N,)
        return torch.stack(logits, 1)[torch.arange(len(x), device=choice.device), choice]

    def weights(self, x: Tensor) -> Tensor:
        """Return the weight of each branch for each image, (N, branches), in the order of `branches`."""
        return self._weights(self._passes(x)[0])

    def _weights(self, features: Tensor) -> Tensor:
        scores = features @ self.weight.T + self.bias
        if self.per == "batch":
            scores = scores.mean(0, keepdim=True).expand_as(scores)
        return scores.softmax(1)

    def _passes(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run every branch: log distances (N, branches * layers) and the logits of each branch."""
        columns, logits = [], []
        for branch in self.branches:
            with (
                norm.use(self.model, branch=branch, source="running", update=False),
                image_moments(self.model, self.names, gradients=True) as moments,
            ):
                logits.append(self.model(x))
            statistics = norm.running(self.model, branch)
            for name in self.names:
                of_image, of_branch = moments[name], statistics[name]
                kl = norm.divergence(of_image.mean, of_image.std**2, of_branch.mean, of_branch.var)
                columns.append(kl.clamp(min=1e-8).log())
        return torch.stack(columns, 1), logits

    def _sensors(self, count: int | None) -> list[str]:
        """Return the names of the first layers that all branches normalize with statistics of their own."""
        shared = set.intersection(*(set(norm.running(self.model, branch)) for branch in self.branches))
        names = [name for name in norm.layers(self.model) if name in shared]
        if not names:
            raise BadInput("the branches have no layer in common whose statistics could be compared")
        if count is not None and count < 1:
            raise BadInput(f"a router compares 1 layer or more, found {count}")
        return names[: count or max(1, len(names) // 2)]

    @torch.no_grad()
    def _fit(self, reference: Mapping[str, Iterable[Any]]) -> None:
        """Set weight and bias to those of linear discriminant analysis, with equal priors.

        w_b = S^-1 mean_b,  c_b = -mean_b . w_b / 2,  S the pooled covariance of the features.
        """
        if set(reference) != set(self.branches):
            expected, given = ", ".join(self.branches), ", ".join(reference)
            raise BadInput(f"reference needs images for each of {expected}, found {given or 'none'}")
        means, residuals = [], []
        with evaluation_mode(self.model):
            for branch in self.branches:
                batches = [self._passes(norm.images_for(self.model, batch))[0] for batch in reference[branch]]
                features = torch.cat(batches).double() if batches else torch.empty(0)
                if len(features) < 2:
                    raise BadInput(f"the reference of {branch!r} needs at least 2 images")
                means.append(features.mean(0))
                residuals.append(features - means[-1])
        scatter = torch.cat(residuals)
        covariance = scatter.T @ scatter / len(scatter)
        ridge = SHRINKAGE * covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
        mean = torch.stack(means)  # (branches, features)
        weight = torch.linalg.solve((1 - SHRINKAGE) * covariance + ridge, mean.T).T
        self.weight.copy_(weight)
        self.bias.copy_(-(mean * weight).sum(1) / 2)


def route(
    model: nn.Module,
    packs: Mapping[str, norm.Pack | str | Path] | None = None,
    reference: Mapping[str, Iterable[Any]] | None = None,
    *,
    per: str = "image",
    blend: bool = False,
    layers: int | None = None,
) -> Router:
    """Return a copy of `model` that chooses between its branches, or between packs, without labels.

    Args:
        model: A model with branches, or any model if `packs` are given; it is not changed.
        packs: Packs or their files by branch name; the model's own branches if None.
        reference: Unlabeled batches of the images that each branch is for, by branch name; a few hundred
            images are enough.
        per: "image", or "batch": one choice for the whole batch.
        blend: Mix the branches' predictions by their weights instead of choosing one.
        layers: Number of layers to compare, from the first; by default half of those in all branches.
    """
    return Router(model, packs, reference, per=per, blend=blend, layers=layers)
