"""Estimate a classifier's accuracy on unlabeled images from its normalization statistics and logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RIDGE = 1.0
MARGIN = 0.005
"""Accuracies are kept this far from 0 and 1 before the logit is taken."""


@dataclass(frozen=True)
class AccuracyModel:
    """Ridge regression of logit(accuracy) on averaged features."""

    center: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    """One per feature, and the intercept."""
    error: float
    """Mean absolute error on groups left out of the fit."""
    worst: float
    """Largest absolute error there."""
    clean: float = float("nan")
    """Accuracy on the clean images of the calibration."""

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """What the estimate is computed from."""
        return {"center": self.center, "scale": self.scale, "weights": self.weights}

    @property
    def errors(self) -> dict[str, float]:
        """What is known about the estimate."""
        return {"error": self.error, "worst": self.worst, "clean": self.clean}

    def __call__(self, features: Sequence[float] | np.ndarray) -> float:
        """Return the accuracy estimated from averaged features."""
        x = (np.asarray(features) - self.center) / self.scale
        return float(1 / (1 + np.exp(-(x @ self.weights[:-1] + self.weights[-1]))))


def fit_accuracy(features: np.ndarray, accuracy: np.ndarray, groups: Sequence[str]) -> AccuracyModel:
    """Fit on all rows; the reported errors are leave-one-group-out (a group is a kind of corruption).

    Args:
        features: (rows, features), each row averaged over some images under one condition.
        accuracy: (rows,) in [0, 1].
        groups: (rows,) the group of each row; rows of a group are left out together.
    """
    kinds = np.asarray(groups)
    errors = []
    for kind in np.unique(kinds):
        kept = kinds != kind
        if kept.any():
            model = _fit(features[kept], accuracy[kept])
            errors += [abs(model(row) - a) for row, a in zip(features[~kept], accuracy[~kept], strict=True)]
    whole = _fit(features, accuracy)
    if not errors:
        return whole
    return AccuracyModel(
        whole.center, whole.scale, whole.weights, float(np.mean(errors)), float(np.max(errors))
    )


def _fit(features: np.ndarray, accuracy: np.ndarray) -> AccuracyModel:
    center, scale = features.mean(0), features.std(0) + 1e-9
    x = np.c_[(features - center) / scale, np.ones(len(features))]
    a = accuracy.clip(MARGIN, 1 - MARGIN)
    penalty = RIDGE * np.eye(x.shape[1])
    penalty[-1, -1] = 0  # the intercept is free
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ np.log(a / (1 - a)))
    return AccuracyModel(center, scale, weights, float("nan"), float("nan"))
