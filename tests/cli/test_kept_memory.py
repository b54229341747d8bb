"""Freed memory stays with a command's process: the second pass takes hardly a page from the system."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from trimtab.cli.memory import keep_freed
if sys.argv[1] == "keep":
    keep_freed()
def use(): return [torch.ones(int(sys.argv[2])) for _ in range(20)]
def taken(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(), use()
before = taken()
use()
print(taken() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux counts them")
@pytest.mark.parametrize("size", [2_000_000, 9_000_000])  # the larger ones glibc would never keep by itself
def test_a_second_pass_finds_the_memory_of_the_first(size: int) -> None:
    kept, given_back = (pages(how, size) for how in ("keep", "give back"))
    if given_back < 1_000:
        pytest.skip(f"this system hands memory out in large pages ({given_back} for {size * 80 >> 20} MB)")
    assert kept < given_back / 10


def pages(how: str, size: int) -> int:
    """Taken from the system by a third pass."""
    command = [sys.executable, "-c", SCRIPT, how, str(size)]
    return int(subprocess.run(command, capture_output=True, text=True).stdout)
