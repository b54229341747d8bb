"""Words on a command line: understood, or refused in one sentence that names what was perhaps meant."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import fields
from itertools import dropwhile, takewhile
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from trimtab.types import BadInput, number

NUMBERS: dict[type, tuple[Callable[[str], float], str]] = {
    int: (int, "a whole number"),
    float: (number, "a number"),
}
"""How each kind is read, and called."""


def understood(commands: Any, words: Sequence[str], about: str) -> Any:
    """The command that the words ask for, a value of one of the types in `commands`."""
    if not words[0].startswith("-"):
        check(commands, words)
    heard = io.StringIO()
    try:
        with redirect_stderr(heard):
            return tyro.cli(
                commands,
                prog="trimtab",
                description=about,
                args=words,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
            )
    except SystemExit as done:
        if not done.code:
            raise
        help = "trimtab --help" if words[0].startswith("-") else f"trimtab {words[0]} --help"
        raise BadInput(f"{_unboxed(heard.getvalue())}; see {help}") from None


def check(commands: Any, words: Sequence[str], path: str = "trimtab") -> None:
    """Refuse commands and options that do not exist, and numbers that are none."""
    named = {_told(kind, "name"): kind for kind in get_args(commands)}
    if not words or words[0] in ("-h", "--help"):
        return
    if words[0] not in named:
        raise BadInput(
            f"there is no command {words[0]!r}{_near(words[0], named)}; see {path} --help for all of them"
        )
    kind, path = get_args(named[words[0]])[0], f"{path} {words[0]}"
    hints = get_type_hints(kind, include_extras=True)
    if "action" in hints:
        return check(hints["action"], words[1:], path)
    shown = {_told(hints[f.name], "name") or f.name: hints[f.name] for f in fields(kind)}
    known = {f"--{name}".replace("_", "-"): hint for name, hint in shown.items() if not _hidden(hint)}
    for option, values in _options(words[1:]):
        if option == "--help":
            continue
        if option not in known:
            raise BadInput(f"there is no option {option}{_near(option, known)}; see {path} --help")
        leaves = list(_leaves(known[option]))
        if ... in leaves and not values:
            raise BadInput(f"{option} takes at least one value, found none; see {path} --help")
        for leaf, (reader, called) in NUMBERS.items():
            taken = values[: None if leaf in leaves and ... in leaves else leaves.count(leaf)]
            wrong = next((value for value in taken if not _reads(reader, value)), None)
            if wrong is not None:
                raise BadInput(f"{option} takes {called}, found {wrong!r}; see {path} --help")


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with the words that follow it, up to the next one."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            found.append((option.replace("_", "-"), [value] if equals else []))
        elif found:
            found[-1][1].append(word)
    yield from found


def _near(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _reads(reader: Callable[[str], float], text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True


def _told(hint: Any, what: str) -> str | None:
    """What a marker in an annotation says, such as another name."""
    told = (getattr(marker, what, None) for marker in getattr(hint, "__metadata__", ()))
    return next((text for text in told if isinstance(text, str)), None)


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
        for one in inner:
            yield from _leaves(one)


def _unboxed(box: str) -> str:
    """The first paragraph below the title of a message in a frame, which may be coloured or plain ASCII."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    lines = [line.strip("│| ") for line in plain.splitlines()[1:]]
    told = dropwhile(lambda line: not re.search(r"\w", line), lines)
    words = " ".join(" ".join(takewhile(lambda line: re.search(r"\w", line), told)).split()).rstrip(".")
    return words[:1].lower() + words[1:] or "these words cannot be understood"
