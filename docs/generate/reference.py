"""The reference: a page per package of the Python API, the command line, and the keys of a recipe."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import io
import re
import sys
import types
import typing
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import trimtab

PACKAGES = tuple(sorted(trimtab._FOLDERS))
"""The public packages, each a page."""

ABOUT = {
    "trimtab": "What is typed most. The other names live in the packages below.",
}


def names(package: types.ModuleType) -> list[str]:
    """Return the public names of a package that are not packages themselves.

    Args:
        package: The package.
    """
    return [name for name in package.__all__ if not inspect.ismodule(getattr(package, name))]


def home(package: types.ModuleType, name: str) -> str:
    """Return the package in whose page a public name is documented.

    Args:
        package: A package that exports the name.
        name: The name.
    """
    return f"trimtab.{trimtab._HOMES[name]}" if package is trimtab else package.__name__


def pages() -> dict[str, str]:
    """Return the Markdown of every page of the reference by its path."""
    packages = {name: importlib.import_module(f"trimtab.{name}") for name in PACKAGES}
    written = {f"reference/{name}.md": _package(package) for name, package in packages.items()}
    written["reference/index.md"] = _top(packages)
    written["reference/cli.md"] = commands()
    written["reference/recipes.md"] = recipe_keys()
    return written


def _top(packages: dict[str, types.ModuleType]) -> str:
    lines = ["# Python API", "", "## trimtab", ""]
    lines += ["| name | does |", "|---|---|"]
    for name in names(trimtab):
        lines.append(
            f"| [`trimtab.{name}`][{home(trimtab, name)}.{name}] | {_first(getattr(trimtab, name))} |"
        )
    lines += ["", "## Packages", "", "| package | contents |", "|---|---|"]
    lines += [f"| [`trimtab.{name}`]({name}.md) | {_first(package)} |" for name, package in packages.items()]
    lines += ["", "Also: the [command line](cli.md) and the [keys of a recipe](recipes.md).", ""]
    return "\n".join(lines)


def _first(thing: Any) -> str:
    """The first sentence of a docstring, in one line of a table."""
    paragraph = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return paragraph.replace("|", "\\|")


def _package(package: types.ModuleType) -> str:
    """One page: its names under the modules that define them."""
    groups: dict[str, list[str]] = {}
    for name in names(package):
        thing = getattr(package, name)
        module = getattr(thing, "__module__", "") if not isinstance(thing, typing._SpecialForm) else ""
        module = (
            module if isinstance(module, str) and module.startswith("trimtab.") else _defining(package, name)
        )
        groups.setdefault(module, []).append(name)
    lines = [f"# {package.__name__}", "", _first(package), ""]
    lines += [f"| {' | '.join(('name', 'does'))} |", "|---|---|"]
    for name in names(package):
        lines.append(f"| [`{name}`][{package.__name__}.{name}] | {_summary(package, name)} |")
    for module, members in sorted(groups.items()):
        title = module.removeprefix(f"{package.__name__}.")
        lines += ["", f"## {title if title != package.__name__ else 'values'}", ""]
        for name in members:
            public, path = f"{package.__name__}.{name}", identifier(package, name)
            lines += [f"[](){{#{public}}}", ""] if path != public else []
            lines += [f"::: {path}"]
            if hasattr(getattr(package, name), "_fields"):  # a named tuple: its fields are its parameters
                lines += ["    options: {show_if_no_docstring: true}"]
            lines += [""]
    return "\n".join(lines)


def identifier(package: types.ModuleType, name: str) -> str:
    """Return the path under which a name is documented: some modules are named like a function.

    Args:
        package: The package.
        name: The name.
    """
    public = f"{package.__name__}.{name}"
    is_module = importlib.util.find_spec(public) is not None
    return f"{getattr(package, name).__module__}.{name}" if is_module else public


def _defining(package: types.ModuleType, name: str) -> str:
    """The module that a value (which does not know its own) was imported from."""
    value = getattr(package, name)
    for module_name, module in sorted(sys.modules.items()):
        if module_name.startswith(f"{package.__name__}.") and vars(module).get(name) is value:
            return module_name
    return package.__name__


def _summary(package: types.ModuleType, name: str) -> str:
    thing = getattr(package, name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return _first(thing)
    return "constant"


# ---- the command line ------------------------------------------------------------------------------------


def command_names() -> list[str]:
    """Return the names of all commands, as `trimtab --help` lists them."""
    listed = re.findall(r"^[\s\u2502\u2022]*([a-z]+)(?=\s)", _help(), re.M)
    usage = re.search(r"\{([a-z,-]+)\}", _help())
    names = [*(usage.group(1).split(",") if usage else []), *listed]
    return [name for name in dict.fromkeys(names) if f"usage: trimtab {name}" in _help(name)]


def commands() -> str:
    """Return the page of the command line: the help of every command."""
    lines = [
        "# Command line",
        "",
        "What `trimtab COMMAND --help` prints. Exit codes: 0, done; 1, done, and it",
    ]
    lines += ["found what it was asked to fail on; 2, bad input, with one line on stderr.", ""]
    for name in command_names():
        lines += [f"## trimtab {name}", "", "```text", unboxed(_help(name)), "```", ""]
    return "\n".join(lines)


def _help(*words: str) -> str:
    """What a command prints for --help, 100 columns wide."""
    import os

    from trimtab.cli.main import main

    kept = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(io.StringIO()):
            main([*words, "--help"])
    except SystemExit:
        pass
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())


def unboxed(text: str) -> str:
    """Return help without the lines of its boxes.

    Args:
        text: What a command printed.
    """
    lines = []
    for line in text.splitlines():
        title = re.fullmatch(r"\u256d\u2500 (.+?) \u2500*\u256e", line)
        if title:
            lines += ["", f"{title.group(1)}:"]
        elif not re.fullmatch(r"[\u2570\u2502\u2500\u256f\u256e\u256d ]+", line):
            lines.append("  " + line[2:-1].rstrip() if line.startswith("\u2502") else line.rstrip())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


# ---- recipes ---------------------------------------------------------------------------------------------


def recipe_keys() -> str:
    """Return the page of a recipe's keys: every dataclass that a YAML file can name."""
    from trimtab.train import Objective, Recipe, reader

    lines = [
        "# Recipe keys",
        "",
        "A recipe is a YAML file; `trimtab train RECIPE --KEY VALUE` overrides a key",
    ]
    lines += [
        "(inner keys with dots, as `--optimizer.lr 0.1`). An unknown key is refused with the nearest one.",
        "Objectives and attacks name their kind, as `objective: {kind: mixture, attack: {kind: pgd}}`.",
        "",
    ]
    lines += ["## Top level", "", *_table(Recipe), ""]
    for field, kind in typing.get_type_hints(Recipe).items():
        for inner in (kind, *typing.get_args(kind)):
            if dataclasses.is_dataclass(inner) and not issubclass(inner, Objective):
                lines += [f"## {field}", "", _first(inner), "", *_table(inner), ""]
    for heading, kinds in (("objective", reader.OBJECTIVES), ("attack", reader.ATTACKS)):
        for name, kind in kinds.items():
            lines += [f"## {heading}: {name}", "", _first(kind), "", *_table(kind), ""]
    lines += [
        "## budget",
        "",
        "`{linf: 8/255}` or `{l2: 0.5}`: name of the norm and radius in pixel units.",
        "",
    ]
    return "\n".join(lines)


def _table(kind: type) -> list[str]:
    about = _documented(kind)
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.default is not dataclasses.MISSING:
            default = repr(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
            default = type(value).__name__ + "(...)" if dataclasses.is_dataclass(value) else repr(value)
        else:
            default = "required"
        meaning = about.get(field.name, "").replace("|", "\\|")
        lines.append(f"| `{field.name}` | `{default.replace('|', chr(92) + '|')}` | {meaning} |")
    return lines if len(lines) > 2 else []


def _documented(kind: type) -> dict[str, str]:
    """What the docstrings of a dataclass and of its bases say about each field."""
    about: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        block = re.search(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", text + "\n", re.M)
        for name, words in re.findall(
            r"^    (\w+)(?: \([^)]*\))?: ((?:.*\n?(?:     .*\n?)*))", block.group(1) if block else "", re.M
        ):
            about[name] = " ".join(words.split())
    return about
