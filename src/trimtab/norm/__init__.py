"""The core: batch-norm layers whose statistics are steered. Only this folder knows how such a layer works.

setting       the five knobs as one frozen value
layer         the steered layer and its branches
_routing      which images each branch takes
_forward      the pass: route, group, take moments, normalize
_update       running statistics from batch moments
_kernels      the arithmetic of the pass, fused
moments       arithmetic that other packages share: blends, robust estimates, AdvBN's perturbation
synchronize   moments over all processes
surgery       steer, release, branches
steering      use, observe, layers
packs         one branch as a file of kilobytes: save, load in place, gather
repair        re-estimate statistics that no longer fit the weights
merge         exact pooled statistics of shards
state         snapshot, restore, recalibrate, freeze, shift gradients
kinds         batch, group, instance, layer or no normalization, in any model
sensors       per-image moments at chosen layers
fold          conv + norm as one convolution, while statistics are fixed
audit         the state of every layer, with warnings and advice
"""

from typing import Any

from trimtab.norm.audit import Audit, audit
from trimtab.norm.fold import fold, is_fixed
from trimtab.norm.kinds import KINDS, make, swap
from trimtab.norm.layer import Branch, Steered
from trimtab.norm.merge import merge
from trimtab.norm.moments import blend, perturb, robust_moments
from trimtab.norm.packs import Pack, gather, load_pack, pack, read_pack, save_pack
from trimtab.norm.repair import repair
from trimtab.norm.setting import Moments, Route, Setting, Shift
from trimtab.norm.state import (
    Snapshot,
    affine_parameters,
    branches,
    clone,
    freeze,
    images_for,
    recalibrate,
    restore,
    running,
    set_statistics,
    shift_gradients,
    snapshot,
    statistics,
    synchronize,
    thaw,
    track_statistics,
)
from trimtab.norm.steering import Observations, layers, observe, unobserved, updating_layers, use, zero_shifts
from trimtab.norm.surgery import (
    active_branch,
    add_branch,
    branch_spec,
    extract_branch,
    rebuild,
    release,
    steer,
    steerable,
)

__all__ = [
    "KINDS",
    "Audit",
    "Branch",
    "Moments",
    "Observations",
    "Pack",
    "Route",
    "Setting",
    "Shift",
    "Snapshot",
    "Steered",
    "active_branch",
    "add_branch",
    "affine_parameters",
    "audit",
    "blend",
    "branch_spec",
    "branches",
    "clone",
    "extract_branch",
    "fold",
    "freeze",
    "gather",
    "images_for",
    "is_fixed",
    "layers",
    "load_pack",
    "make",
    "merge",
    "observe",
    "pack",
    "perturb",
    "read_pack",
    "rebuild",
    "recalibrate",
    "release",
    "repair",
    "restore",
    "robust_moments",
    "running",
    "save_pack",
    "set_statistics",
    "shift_gradients",
    "snapshot",
    "statistics",
    "steer",
    "steerable",
    "swap",
    "synchronize",
    "thaw",
    "track_statistics",
    "unobserved",
    "updating_layers",
    "use",
    "zero_shifts",
]  # fmt: skip

_RENAMED = {
    "adopt": "set_statistics",
    "Seen": "Observations",
    "copied": "clone",
    "in_force": "active_branch",
    "learners": "updating_layers",
    "plan": "branch_spec",
    "settled": "extract_branch",
    "start_statistics": "track_statistics",
}
"""Old names, which warn."""


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        import warnings

        new = _RENAMED[name]
        warnings.warn(f"norm.{name} is now norm.{new}", DeprecationWarning, stacklevel=2)
        return globals()[new]
    raise AttributeError(f"module 'trimtab.norm' has no attribute {name!r}")
