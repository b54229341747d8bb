"""Freed memory stays with a command's process: the second pass takes hardly a page from the system."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from trimtab.cli.memory import tune_allocator
how, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
done = how != "give back" and tune_allocator(large=how == "keep large ones")
def use(): return [torch.ones(size) for _ in range(count)]
def taken(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(), use()
before = taken()
use()
print(taken() - before, done)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux counts them")
@pytest.mark.parametrize(
    ("how", "size", "count"), [("keep", 2_000_000, 20), ("keep large ones", 9_000_000, 5)]
)
def test_a_second_pass_finds_the_memory_of_the_first(how: str, size: int, count: int) -> None:
    (kept, done), (given_back, _) = (pages(way, size, count) for way in (how, "give back"))
    if not done:
        pytest.skip("this C library cannot be asked to")
    if given_back < 1_000:
        pytest.skip(f"this system hands memory out in large pages ({given_back} of them)")
    assert kept < given_back / 10


def pages(how: str, size: int, count: int) -> tuple[int, bool]:
    """How many a third pass takes from the system, and whether it was asked to leave them."""
    command = [sys.executable, "-c", SCRIPT, how, str(size), str(count)]
    taken, done = subprocess.run(command, capture_output=True, text=True).stdout.split()
    return int(taken), done == "True"
