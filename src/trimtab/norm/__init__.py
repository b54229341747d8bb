"""The core: batch-norm layers whose statistics are steered. Only this folder knows how such a layer works.

setting       the five knobs as one frozen value
layer         the steered layer: route, group, take moments, normalise, learn
moments       the arithmetic behind it
groups        its full-size passes, fused, where each group has statistics of its own
shifted       a shorter way for one group under a constant shift
parts         the same for blends and for statistics that parts or processes share
synchronise   moments over all processes
surgery       steer, release, branches
steering      use, observe, layers
state         snapshot, restore, recalibrate, freeze, shift gradients
kinds         batch, group, instance, layer or no normalisation, in any model
fold          conv + norm as one convolution, while statistics are fixed
audit         what is wrong, and what to do about it
"""

from trimtab.norm.audit import Audit, audit
from trimtab.norm.fold import fold, folded, is_fixed
from trimtab.norm.kinds import KINDS, make, swap
from trimtab.norm.layer import Branch, Steered
from trimtab.norm.moments import blend, perturb, robust_moments
from trimtab.norm.setting import Moments, Route, Setting, Shift
from trimtab.norm.state import (
    Snapshot,
    adopt,
    affine_parameters,
    branches,
    copied,
    freeze,
    images_for,
    recalibrate,
    restore,
    running,
    shift_gradients,
    snapshot,
    start_statistics,
    statistics,
    synchronise,
    thaw,
)
from trimtab.norm.steering import Seen, layers, learners, observe, unobserved, use, zero_shifts
from trimtab.norm.surgery import add_branch, in_force, plan, rebuild, release, settled, steer, steerable

__all__ = [
    "KINDS", "Audit", "Branch", "Moments", "Route", "Seen", "Setting", "Shift", "Snapshot", "Steered",
    "add_branch", "adopt", "affine_parameters", "audit", "blend", "branches", "copied", "fold", "folded",
    "freeze", "images_for", "in_force", "is_fixed", "layers", "learners", "make", "observe", "perturb",
    "plan", "rebuild", "recalibrate", "release", "restore", "robust_moments", "running", "settled",
    "shift_gradients", "snapshot", "start_statistics", "statistics", "steer", "steerable", "swap",
    "synchronise", "thaw", "unobserved", "use", "zero_shifts",
]  # fmt: skip
