"""Out of memory: whichever allocator raises it, the batch is halved, under a real limit as well."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trimtab.runtime import call_in_parts, is_out_of_memory, retry_halved

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory: you tried"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
    RuntimeError("could not create a primitive"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]
OTHERS = [
    RuntimeError("shapes cannot be multiplied"),
    RuntimeError("could not create a primitive descriptor for a convolution forward propagation primitive"),
    ValueError("out of memory"),
    OSError(errno.ENOSPC, "No space left on device"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=repr)
def test_every_allocators_error_is_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_are_not(error: Exception) -> None:
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=repr)
def test_the_size_is_halved_down_to_one(error: Exception) -> None:
    sizes: list[int] = []

    def work(size: int) -> int:
        sizes.append(size)
        if size > 1:
            raise error
        return size

    assert retry_halved(work, 13) == 1
    assert sizes == [13, 7, 4, 2, 1]


def test_what_does_not_fit_one_by_one_and_other_errors_are_raised_at_once() -> None:
    sizes: list[int] = []

    def fail(size: int, error: Exception) -> int:
        sizes.append(size)
        raise error

    with pytest.raises(MemoryError):
        retry_halved(lambda size: fail(size, MemoryError()), 2)
    with pytest.raises(RuntimeError, match="multiplied"):
        retry_halved(lambda size: fail(size, OTHERS[0]), 8)
    assert sizes == [2, 1, 8]


def test_a_call_in_parts_returns_all_rows_in_order() -> None:
    sizes: list[int] = []

    def double(part: torch.Tensor) -> torch.Tensor:
        sizes.append(len(part))
        if len(part) > 3:
            raise MemoryError
        return 2 * part

    x = torch.arange(10.0).view(5, 2)
    assert torch.equal(call_in_parts(double, x), 2 * x)
    assert sizes == [5, 3, 2]
    assert call_in_parts(double, x[:0]).shape == (0, 2)


CHILD = """
import ctypes, json, resource, sys
from pathlib import Path

import torch
from torch import nn

from trimtab.attacks import PGD, Linf
from trimtab.data.embedded import sample
from trimtab.evaluate import Clean, PerBatchMode, Store, run
from trimtab.runtime import is_out_of_memory
from trimtab.types import BadInput

torch.set_num_threads(1)
torch.manual_seed(0)
few = sample().subset(slice(0, 512))
model = nn.Sequential(  # a wide feature, cheap to compute: 100 MB for all images
    nn.Conv2d(1, 64, 1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
).eval()
suite = [Clean(), PGD(Linf("8/255"), steps=1)]


def measured(name):
    store = Store(Path(sys.argv[1]) / name)
    card = run(model, few, suite, store=store, chunk=512, batch_size=512, examine=False)
    return [row.correct for row in card.rows]


roomy = measured("roomy")
ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps of freed memory would be room to spare
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
refused = None
try:
    with torch.no_grad():
        model(few.take(torch.arange(512)).x)
except Exception as error:
    refused = is_out_of_memory(error)
tight = measured("tight")
try:
    store = Store(Path(sys.argv[1]) / "coupled")
    run(model, few, [Clean()], store=store, bn_modes=[PerBatchMode()], chunk=512)
    coupled = "fits"
except BadInput as error:
    coupled = str(error)
print(json.dumps({"refused": refused, "roomy": roomy, "tight": tight, "coupled": coupled}))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's address-space limit")
def test_under_an_address_space_limit_results_are_those_without_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["refused"]
    assert result["tight"] == result["roomy"]
    assert "belong together; give a smaller chunk" in result["coupled"]
