"""The source that a model's own code consists of, as hashes: its files and every file that they import.

Files of installed packages do not count, only the packages' versions.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
import uuid
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_BY_NAME = {*sys.stdlib_module_names, "torch", "trimtab"}
"""Packages whose code is known by its name (and its `version`)."""
_OURS = Path(__file__).parent.parent
_STDLIB = Path(sysconfig.get_path("stdlib"))


def source_hashes(modules: Iterable[str]) -> list[str] | str:
    """Return the hashes of the source files of these modules and of what they import, wherever the files are.

    Installed packages count by name and version. If the source of a module cannot be read, it may have
    changed: then the result is a new random string in every call.
    """
    hashes, queue = [], list(dict.fromkeys(modules))
    for name in queue:
        if is_installed(name):
            top = name.partition(".")[0]
            if top not in _BY_NAME:
                hashes.append(f"{top} {getattr(sys.modules.get(top), '__version__', '')}")
            continue
        file = _file_of(name)
        if file is None or file.suffix != ".py":
            return uuid.uuid4().hex
        source = file.read_bytes()
        hashes.append(hashlib.sha256(source).hexdigest())
        imports = _imports(source, name, file)
        queue += [item for item in imports if item not in queue and not is_installed(item)]
    return sorted(set(hashes))


def _imports(source: bytes, name: str, file: Path) -> list[str]:
    """Return the modules that a file imports, anywhere in it."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imported: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
            imported |= dict.fromkeys(
                item for item in names if item == base or _spec_origin(item) is not None
            )
    parents = [item.rpartition(".")[0] for item in imported]
    return [item for item in [*imported, *parents] if item and _spec_origin(item) is not None]


def _file_of(name: str) -> Path | None:
    loaded = getattr(sys.modules.get(name), "__file__", None)
    origin = loaded or _spec_origin(name)
    return Path(origin) if origin and Path(origin).is_file() else None


def _spec_origin(name: str) -> str | None:
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # not a module, or not installed
        return None
    return spec.origin if spec is not None else None


def is_installed(name: str) -> bool:
    """Return whether a module belongs to Python, to an installed package, or to trimtab."""
    if name.partition(".")[0] in _BY_NAME:
        return True
    file = _file_of(name)
    return file is not None and _is_library(file)


@cache
def _is_library(file: Path) -> bool:
    packages = {"site-packages", "dist-packages"} & {*file.parts}
    return bool(packages) or file.is_relative_to(_STDLIB) or file.is_relative_to(_OURS)
