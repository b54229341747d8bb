"""Training: every objective of the papers, in your own loop or in ours.

base         the caller of every objective          two_player   APART's and SAM's common scheme
processes    means and wholes over several of them
standard     Standard          gaussian  Gaussian   adversarial  Adversarial      mixture  Mixture, AdvProp
advbn        AdvBN             apart     Apart      sam          SAM              ligs     LIGS
recipe       a run as a frozen value                reader       YAML to frozen values, strictly
start        processes, images, network             loop         fit, resume
plan         what it will cost                      validate     accuracy on held-out images
optimise     optimisers and schedules               checkpoint   the state of a run on disk
runs         a run's folder                         watch        callbacks, progress, signals
"""

from trimtab.train.advbn import AdvBN
from trimtab.train.adversarial import Adversarial
from trimtab.train.apart import Apart
from trimtab.train.base import Objective, Passes
from trimtab.train.gaussian import Gaussian
from trimtab.train.ligs import LIGS
from trimtab.train.loop import fit, resume
from trimtab.train.mixture import AdvProp, Mixture
from trimtab.train.plan import Plan, plan
from trimtab.train.recipe import Recipe, read_recipe, shipped, write_recipe
from trimtab.train.runs import Run, new_folder
from trimtab.train.sam import SAM
from trimtab.train.standard import Standard
from trimtab.train.start import Engine
from trimtab.train.watch import Diverged, Event, Stopped, progress_bar, tensorboard

__all__ = [
    "LIGS", "SAM", "AdvBN", "AdvProp", "Adversarial", "Apart", "Diverged", "Engine", "Event", "Gaussian",
    "Mixture", "Objective", "Passes", "Plan", "Recipe", "Run", "Standard", "Stopped", "fit", "new_folder",
    "plan", "progress_bar", "read_recipe", "resume", "shipped", "tensorboard", "write_recipe",
]  # fmt: skip
