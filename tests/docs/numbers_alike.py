"""Comparing printed text whose numbers depend a little on the machine."""

from __future__ import annotations

import re

import pytest

NUMBER = r"-?\d+(?:\.\d+)?"


def assert_alike(printed: str, stored: str, tolerance: float = 3.0) -> None:
    """The same words, and numbers that differ by at most `tolerance` (percent, say) or a tenth."""
    assert re.sub(NUMBER, "#", printed).split() == re.sub(NUMBER, "#", stored).split()
    for ours, theirs in zip(re.findall(NUMBER, printed), re.findall(NUMBER, stored), strict=True):
        absolute = 0.1 if "." in theirs else tolerance
        assert float(ours) == pytest.approx(float(theirs), rel=0.1, abs=absolute)
