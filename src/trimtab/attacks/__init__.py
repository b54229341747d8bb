"""Attacks that leave no trace: on images, on batches, on the statistics of normalisation layers.

guard        whatever runs inside, the model comes out as it went in
base         the caller: checks, guards, judges
pgd          PGD, FGSM, CW                       losses, geometry   what they climb, and where
apgd         APGD, TargetedAPGD                  square             Square (black box)
auto         AutoAttack-style ensemble           curve              accuracy over iterations
eot          EOT over drawn models               batch              ThroughBatch, CoBatch
statistics   SignStep, Ascent, RandomUniform, RandomSign, Scaled
feature      AdvBN's ascent on the statistics of one feature
"""

from trimtab.attacks.apgd import APGD, TargetedAPGD
from trimtab.attacks.auto import AutoAttack
from trimtab.attacks.base import Attack, Outcome
from trimtab.attacks.batch import CoBatch, ThroughBatch
from trimtab.attacks.curve import CurvePGD, curve, is_flat
from trimtab.attacks.eot import EOT, adaptive_sampler
from trimtab.attacks.guard import couples_batch, guard
from trimtab.attacks.pgd import CW, FGSM, PGD
from trimtab.attacks.square import Square
from trimtab.attacks.statistics import Ascent, RandomSign, RandomUniform, Scaled, SignStep
from trimtab.types import L2, Linf

__all__ = [
    "APGD", "CW", "EOT", "FGSM", "L2", "PGD", "Ascent", "Attack", "AutoAttack", "CoBatch", "CurvePGD",
    "Linf", "Outcome", "RandomSign", "RandomUniform", "Scaled", "SignStep", "Square", "TargetedAPGD",
    "ThroughBatch", "adaptive_sampler", "couples_batch", "curve", "guard", "is_flat",
]  # fmt: skip
