"""Attacks that leave no trace: on images, on batches, on the statistics of normalization layers.

guard        restore the model after the block, bit for bit
base         the caller of every attack: checks the input, guards the model, judges the images
pgd          PGD, FGSM, CW                       losses, geometry   the losses they ascend, and the balls
apgd         APGD, TargetedAPGD                  square             Square (black box)
fab          FAB (the nearest image)             auto               AutoAttack
curve        accuracy over iterations
eot          EOT over sampled models             batch              ThroughBatch, CoBatch
statistics   SignStep, Ascent, RandomUniform, RandomSign, Scaled
feature      AdvBN's ascent on the statistics of one feature
"""

from trimtab.attacks.apgd import APGD, TargetedAPGD
from trimtab.attacks.auto import AutoAttack
from trimtab.attacks.base import Attack, Outcome
from trimtab.attacks.batch import CoBatch, ThroughBatch
from trimtab.attacks.curve import CurvePGD, curve, is_flat
from trimtab.attacks.eot import EOT, adaptive_sampler
from trimtab.attacks.fab import FAB
from trimtab.attacks.pgd import CW, FGSM, PGD
from trimtab.attacks.square import Square
from trimtab.attacks.statistics import Ascent, RandomSign, RandomUniform, Scaled, SignStep
from trimtab.runtime import couples_batch, guard
from trimtab.types import L2, Linf

__all__ = [
    "APGD", "CW", "EOT", "FAB", "FGSM", "L2", "PGD", "Ascent", "Attack", "AutoAttack", "CoBatch", "CurvePGD",
    "Linf", "Outcome", "RandomSign", "RandomUniform", "Scaled", "SignStep", "Square", "TargetedAPGD",
    "ThroughBatch", "adaptive_sampler", "couples_batch", "curve", "guard", "is_flat",
]  # fmt: skip
