"""Evaluation that can be trusted, killed and resumed: cells of model x condition x norm state x seed.

driver       run: a suite, and the trust card under it     suites       what quick, standard and full hold
conditions   what is done to the images (lens, certified)  states       which statistics normalise
engine       cells in chunks, over processes               keys, store  what a result depends on; its place
trust        flags, each with what it saw                  probes       the measurements they rest on
card         rows, flags, provenance                       runs         list, compare, export
"""

from trimtab.evaluate import trust
from trimtab.evaluate.card import Card, Flag, Progress, Row
from trimtab.evaluate.conditions import Attacked, Clean, Condition, Corrupted, Noise
from trimtab.evaluate.driver import run
from trimtab.evaluate.images import images, rescore
from trimtab.evaluate.lens import Shifted, Similar
from trimtab.evaluate.runs import Run, compare, export, find, runs
from trimtab.evaluate.states import Branch, Frozen, NormState, PerBatch, Running
from trimtab.evaluate.store import Store
from trimtab.evaluate.suites import SUITES

__all__ = [
    "SUITES", "Attacked", "Branch", "Card", "Clean", "Condition", "Corrupted", "Flag", "Frozen", "Noise",
    "NormState", "PerBatch", "Progress", "Row", "Run", "Running", "Shifted", "Similar", "Store", "compare",
    "export", "find", "images", "rescore", "run", "runs", "trust",
]  # fmt: skip
