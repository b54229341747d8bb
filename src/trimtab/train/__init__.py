"""Training: the objectives of the papers, for your own loop or for `fit`.

base         base class of the objectives            two_pass     common scheme of APART, SAM and AWP
standard     Standard          gaussian  Gaussian   adversarial  Adversarial      mixture  Mixture, AdvProp
advbn        AdvBN             apart     APART      sam          SAM              ligs     LIGS
recipe       a run as a frozen dataclass             reader       strict reading of YAML into dataclasses
optimizers   optimizers and schedules                _loop        fit, resume, plan, and the files of a run
"""

import warnings

from trimtab.train._loop.callbacks import Callback, Diverged, Event, Stopped, progress_bar, tensorboard
from trimtab.train._loop.fit import fit, resume
from trimtab.train._loop.plan import Plan, plan
from trimtab.train._loop.runs import Run, existing, new_folder, write_text
from trimtab.train._loop.start import Engine
from trimtab.train.advbn import AdvBN
from trimtab.train.adversarial import Adversarial
from trimtab.train.apart import APART
from trimtab.train.awp import AWP
from trimtab.train.base import Objective, Parts, Passes
from trimtab.train.gaussian import Gaussian
from trimtab.train.ligs import LIGS
from trimtab.train.mixture import AdvProp, Mixture
from trimtab.train.recipe import Recipe, read_recipe, shipped, write_recipe
from trimtab.train.sam import SAM
from trimtab.train.standard import Standard
from trimtab.train.trades import TRADES, DivergenceAttack

__all__ = [
    "APART", "AWP", "LIGS", "SAM", "TRADES", "AdvBN", "AdvProp", "Adversarial", "Callback", "Diverged",
    "DivergenceAttack", "Engine", "Event", "Gaussian", "Mixture", "Objective", "Parts", "Passes", "Plan",
    "Recipe", "Run", "Standard", "Stopped", "existing", "fit", "new_folder", "plan", "progress_bar",
    "read_recipe", "resume", "shipped", "tensorboard", "write_recipe", "write_text",
]  # fmt: skip


def __getattr__(name: str) -> type[APART]:
    """Return objectives under their old names."""
    if name == "Apart":
        warnings.warn("train.Apart is now train.APART", DeprecationWarning, stacklevel=2)
        return APART
    raise AttributeError(f"module 'trimtab.train' has no attribute {name!r}")
