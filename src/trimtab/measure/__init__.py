"""Measurements on any classifier: they return values per sample or per set, and leave the model as it was."""

from trimtab.measure.accuracy import Accuracy, accuracy, clopper_pearson

__all__ = ["Accuracy", "accuracy", "clopper_pearson"]
