"""bfloat16 that cannot end the process: it is tried in a child process, once per machine, before it is used.

Virtual machines exist that advertise AMX and kill the process (SIGILL) at the first matrix product in
bfloat16; no exception can be caught. So a child process first tries a convolution, a matrix product and their
backward passes. The result is stored in the cache folder under the CPU model, the version of torch and
`ONEDNN_MAX_CPU_ISA`, the variable that limits which instructions are used.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn

from trimtab.io import atomic_write
from trimtab.types import BadInput

REMEDY = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16", "svebf16")
"""The names of bfloat16 instructions in /proc/cpuinfo, on x86 and ARM."""
_CHILD = """
import torch
print("started", flush=True)
conv, linear = torch.nn.Conv2d(64, 64, 3).bfloat16(), torch.nn.Linear(256, 256).bfloat16()
for layer, size in ((conv, (8, 64, 16, 16)), (linear, (64, 256))):
    x = torch.randn(size).bfloat16().requires_grad_()
    layer(x).sum().backward()
(torch.randn(256, 256).bfloat16() @ torch.randn(256, 256).bfloat16()).sum()
print("works", flush=True)
"""


class SlowBfloat16(UserWarning):
    """The CPU has no instructions for bfloat16."""


@dataclass(frozen=True)
class Probe:
    """The result of trying bfloat16 on this CPU."""

    works: bool
    """Whether the child process survived."""
    native: bool
    """Whether the CPU advertises instructions for it; without, it works but is slow."""

    @property
    def speed(self) -> str:
        """Describe the speed of bfloat16 here in a few words."""
        if not self.works:
            return "ends the process"
        return "native" if self.native else "slow (no instructions for it)"

    def __str__(self) -> str:
        if self.works:
            return f"bfloat16 works: {self.speed}"
        return f"bfloat16 ends the process on this CPU; set {REMEDY}"


def require_usable(model: nn.Module, x: Tensor | None = None) -> None:
    """Raise BadInput if the model, called on x, would use a bfloat16 that ends the process."""
    x = next(model.parameters(), torch.empty(0)) if x is None else x
    narrow = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    dtypes = {x.dtype, *(p.dtype for p in model.parameters())}
    if x.device.type == "cpu" and (narrow or torch.bfloat16 in dtypes):
        require_bfloat16()


def require_bfloat16() -> None:
    """Raise BadInput if bfloat16 would end the process on this CPU; warn once if it is slow here."""
    result = probe()
    if not result.works:
        raise BadInput(
            "bfloat16 ends the process on this CPU (a child process that tried it was killed); set "
            f"{REMEDY} in the environment, or use full precision"
        )
    if not result.native:
        _warn_slow()


@cache
def _warn_slow() -> None:
    warnings.warn("this CPU has no instructions for bfloat16; it will be slower", SlowBfloat16, stacklevel=3)


def probe() -> Probe:
    """Return whether bfloat16 works here, from the cache folder or by trying it in a child process."""
    return _probe(result_file())


def result_file() -> Path:
    """Return where the result for this machine is stored."""
    environment = [_cpu(), torch.__version__, os.environ.get("ONEDNN_MAX_CPU_ISA", "")]
    folder = Path(os.environ.get("TRIMTAB_DATA") or "~/.cache/trimtab").expanduser()
    return folder / f"bfloat16-{sha256(json.dumps(environment).encode()).hexdigest()[:16]}.json"


@cache
def _probe(path: Path) -> Probe:
    native = bool(set(_INSTRUCTIONS) & _flags()) or not _flags()
    with suppress(OSError, ValueError, KeyError, TypeError):
        return Probe(works=bool(json.loads(path.read_text())["works"]), native=native)
    works = _try_in_child()
    if works is None:  # the child could not start, which proves nothing
        return Probe(works=True, native=native)
    with suppress(OSError, BadInput), atomic_write(path) as part:
        part.write_text(json.dumps({"works": works, "cpu": _cpu(), "torch": torch.__version__}))
    return Probe(works, native)


def _try_in_child() -> bool | None:
    """Return whether the child survived bfloat16; None if it did not get as far as trying."""
    try:
        child = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if "started" not in child.stdout:
        return None
    return child.returncode == 0 and "works" in child.stdout


def _cpu() -> str:
    names = {value for key, value in _cpu_lines() if key in ("model name", "CPU part", "cpu family", "model")}
    return " ".join(sorted(names)) or platform.processor() or platform.machine()


def _flags() -> set[str]:
    return {word for key, value in _cpu_lines() if key in ("flags", "Features") for word in value.split()}


def _cpu_lines() -> list[tuple[str, str]]:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return [(line.partition(":")[0].strip(), line.partition(":")[2].strip()) for line in lines]
    return []
