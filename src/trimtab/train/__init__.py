"""Training: every objective of the papers, in your own loop or in ours."""

from trimtab.train.advbn import AdvBN
from trimtab.train.adversarial import Adversarial
from trimtab.train.apart import Apart
from trimtab.train.base import Objective, Passes
from trimtab.train.gaussian import Gaussian
from trimtab.train.ligs import LIGS
from trimtab.train.mixture import AdvProp, Mixture
from trimtab.train.sam import SAM
from trimtab.train.standard import Standard

__all__ = [
    "LIGS", "SAM", "AdvBN", "AdvProp", "Adversarial", "Apart", "Gaussian", "Mixture", "Objective", "Passes",
    "Standard",
]  # fmt: skip
