"""Certified l2 radii by randomized smoothing.

bounds          exact confidence bounds, radii, the early-abstention rule
independence    refuses models whose output depends on the batch
sampling        noise per image, and its classification in batches
smoothing       predict, certify
accuracy        certified accuracy over radii, for one sigma and for several
"""

from trimtab.certify.accuracy import CertifiedCurve, certified_accuracy, envelope, fixed_sigma_per_radius
from trimtab.certify.bounds import max_radius
from trimtab.certify.smoothing import ABSTAIN, VERSION, Certificates, certify, join, predict

__all__ = [
    "ABSTAIN", "VERSION", "Certificates", "CertifiedCurve", "certified_accuracy", "certify", "envelope",
    "fixed_sigma_per_radius", "join", "max_radius", "predict",
]  # fmt: skip
