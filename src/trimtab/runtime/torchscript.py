"""TorchScript modules as hashes of what their file format stores, equal in every process."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from itertools import groupby
from typing import Any

import torch

_MANGLED = re.compile(rb"[./]?___torch_mangle_\d+")
"""What torch puts into the name of a class whose name it has seen before."""


def script_hashes(module: Any) -> list[list[str]]:
    """Return the hashes of TorchScript code, constants and tensors, as its file format stores them."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    with zipfile.ZipFile(buffer) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    rows = []
    for name, content in files.items():
        if re.match(r"(code|data|constants)\b", name) and not name.endswith("debug_pkl"):
            # Without the counters in names, and without line breaks, which depend on them.
            content = _MANGLED.sub(b"", content)
            content = _ordered(content) if name.startswith("code") else content
            rows.append([_MANGLED.sub(b"", name.encode()).decode(), hashlib.sha256(content).hexdigest()])
    return sorted(rows)


def _ordered(code: bytes) -> bytes:
    """Return TorchScript code without line breaks, and with the constants of each class sorted by name.

    torch writes the constants in the order of a set, which differs between processes.
    """
    lines: list[bytes] = []
    for is_constant, group in groupby(code.splitlines(), lambda line: b" : Final[" in line):
        block = list(group)
        lines += sorted(block) if is_constant else block
    return b" ".join(b" ".join(lines).split())
