"""Attacks that leave no trace: on images, on batches, on the statistics of normalisation layers."""

from trimtab.attacks.base import Attack, Outcome
from trimtab.attacks.guard import couples_batch, guard
from trimtab.attacks.pgd import CW, FGSM, PGD
from trimtab.types import L2, Linf

__all__ = ["CW", "FGSM", "L2", "PGD", "Attack", "Linf", "Outcome", "couples_batch", "guard"]
