"""Parsing the command line; a mistake is refused in one sentence that suggests the nearest name."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING, fields, is_dataclass
from itertools import dropwhile, takewhile
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from trimtab.types import BadInput, nearest, number

NUMBERS: dict[type, tuple[Callable[[str], float], str]] = {
    int: (int, "a whole number"),
    float: (number, "a number"),
}
"""How each kind is read, and called."""


def parse(commands: Mapping[str, type[Any]], words: Sequence[str]) -> Any:
    """Return the command that the arguments name, an instance of one of the given dataclasses.

    Args:
        commands: the dataclasses by name.
        words: the arguments after the program's name.
    """
    if words[0] not in commands:
        what = "option" if words[0].startswith("-") else "command"
        near = nearest(words[0], commands)
        raise BadInput(f"there is no {what} {words[0]!r}{near}; see trimtab --help for all commands")
    kind, path = check(commands[words[0]], words[1:], f"trimtab {words[0]}")
    stderr = io.StringIO()
    try:
        with redirect_stderr(stderr):
            return tyro.cli(
                commands[words[0]],
                prog=f"trimtab {words[0]}",
                args=words[1:],
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
            )
    except SystemExit as exit:
        if not exit.code:
            raise
        problem = _unboxed(stderr.getvalue())
        if problem.startswith("missing from"):
            problem = _missing(kind, path, problem)
        raise BadInput(f"{problem}; see {path} --help") from None


def check(kind: type[Any], words: Sequence[str], path: str) -> tuple[type[Any], str]:
    """Refuse commands and options that do not exist, and numbers that cannot be read.

    Args:
        kind: the dataclass of a command.
        words: its arguments.
        path: the command as it is typed.

    Returns:
        The dataclass and path of the innermost command.
    """
    hints = get_type_hints(kind, include_extras=True)
    if "action" in hints and words and words[0] not in ("-h", "--help"):
        inner = {_marker(hint, "name"): get_args(hint)[0] for hint in get_args(hints["action"])}
        if words[0] not in inner:
            raise BadInput(f"there is no command {words[0]!r}{nearest(words[0], inner)}; see {path} --help")
        return check(inner[words[0]], words[1:], f"{path} {words[0]}")
    by_name = dict(_named_options(kind))
    known = {f"--{name}".replace("_", "-"): hint for name, hint in by_name.items() if not _hidden(hint)}
    for option, values in _options(words):
        if option == "--help":
            continue
        if option not in known:
            raise BadInput(f"there is no option {option}{nearest(option, known)}; see {path} --help")
        leaves = list(_leaves(known[option]))
        if ... in leaves and not values:
            raise BadInput(f"{option} takes at least one value, found none; see {path} --help")
        for leaf, (reader, called) in NUMBERS.items():
            taken = values[: None if leaf in leaves and ... in leaves else leaves.count(leaf)]
            unreadable = next((value for value in taken if not _reads(reader, value)), None)
            if unreadable is not None:
                raise BadInput(f"{option} takes {called}, found {unreadable!r}; see {path} --help")
    return kind, path


EXAMPLES = {"KIND": "D_R", "NAME": "cifar10"}
"""Values of arguments other than MODEL, for messages."""


def _missing(kind: type[Any], path: str, problem: str) -> str:
    """Name the arguments that are missing, with a command that has them."""
    hints = get_type_hints(kind, include_extras=True)
    model = "sample-standard" if getattr(kind, "data", None) == "sample" else "cifar10-standard"
    values = {"MODEL": f"zoo:{model}", **EXAMPLES}
    required = [_marker(hints[field.name], "metavar") for field in fields(kind) if field.default is MISSING]
    names = [name for name in required if name in values]
    missing = [name for name in names if re.search(rf"\b{name}\b", problem)]
    if not missing:
        return problem
    return f"Missing {' and '.join(missing)}, e.g. `{' '.join([path, *(values[name] for name in names)])}`"


def _named_options(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """The name and type of each option of a command; a group of options is a dataclass of its own."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint = hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _named_options(hint)
        else:
            yield _marker(hint, "name") or field.name, hint


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with its values."""
    options: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            options.append((option.replace("_", "-"), [value] if equals else []))
        elif options:
            options[-1][1].append(word)
    yield from options


def _reads(reader: Callable[[str], float], text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True


def _marker(hint: Any, attribute: str) -> str | None:
    """An attribute of the first marker in an annotation that has it, such as another name."""
    values = (getattr(marker, attribute, None) for marker in getattr(hint, "__metadata__", ()))
    return next((text for text in values if isinstance(text, str)), None)


def _hidden(hint: Any) -> bool:
    markers = getattr(hint, "__metadata__", ())
    return tyro.conf.Positional in markers or tyro.conf.Suppress in markers


def _leaves(hint: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    if get_origin(hint) is None:
        yield hint
    else:
        yield get_origin(hint)
        inner = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
        for part in inner:
            yield from _leaves(part)


def _unboxed(box: str) -> str:
    """The first paragraph below the title of a message in a frame, which may be colored or plain ASCII."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    lines = [line.strip("│| ") for line in plain.splitlines()[1:]]
    text = dropwhile(lambda line: not re.search(r"\w", line), lines)
    words = " ".join(" ".join(takewhile(lambda line: re.search(r"\w", line), text)).split()).rstrip(".")
    return words[:1].lower() + words[1:] or "the arguments cannot be parsed"
