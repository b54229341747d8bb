"""The core: batch-norm layers whose statistics are steered. Only this folder knows how such a layer works.

setting       the five knobs as one frozen value
layer         the steered layer and its branches
_forward      the pass: route, group, take moments, normalize, update
_kernels      the arithmetic of the pass, fused
moments       arithmetic that other packages share: blends, robust estimates, AdvBN's perturbation
synchronize   moments over all processes
surgery       steer, release, branches
steering      use, observe, layers
packs         one branch as a file of kilobytes: save, load in place, gather
pack_files    the pack as a value and as a file that may come from anyone
distance      how far apart two sets of statistics are
repair        re-estimate statistics that no longer fit the weights
inputs        a network whose statistics are inputs of its forward pass
merge         exact pooled statistics of shards
state         snapshot, restore, recalibrate, freeze, shift gradients
kinds         batch, group, instance, layer or no normalization, in any model
sensors       per-image moments at chosen layers
fold          conv + norm as one convolution, while statistics are fixed
audit         the state of every layer, with warnings and advice
"""

# ruff: noqa: F401 - names beyond __all__ are for trimtab's other folders; users need none of them
from typing import Any

from trimtab.norm.audit import Audit, audit
from trimtab.norm.distance import compare, divergence
from trimtab.norm.fold import fold
from trimtab.norm.kinds import KINDS, make, swap
from trimtab.norm.layer import Branch, Steered
from trimtab.norm.merge import averaging_error, merge
from trimtab.norm.moments import blend, perturb, robust_moments
from trimtab.norm.pack_files import Pack, read_pack, state_digest
from trimtab.norm.packs import gather, load_pack, pack, save_pack, weights_digest
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
    snapshot,
    statistics,
    synchronize,
    thaw,
    track_statistics,
)
from trimtab.norm.steering import (
    Observations,
    layers,
    observe,
    shift_gradients,
    unobserved,
    updating_layers,
    use,
    zero_shifts,
)
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
    "Pack", "Shift", "add_branch", "audit", "branches", "fold", "freeze", "gather", "layers", "load_pack",
    "merge", "observe", "perturb", "recalibrate", "release", "repair", "restore", "save_pack", "snapshot",
    "steer", "swap", "synchronize", "thaw", "use",
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
