"""Old names of commands and options: still accepted, each with one line on stderr."""

from __future__ import annotations

from collections.abc import Sequence

COMMANDS = {"lens": "analyze"}
OPTIONS = {
    "evaluate": {"--states": "--bn-modes", "--page": "--html", "--insist": "--force"},
    "train": {"--plan": "--dry-run"},
}
"""By command, under its new name."""


def modernize(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments with new names, and a warning for each old one.

    >>> modernize(["evaluate", "zoo:x", "--states=running"])
    (['evaluate', 'zoo:x', '--bn-modes=running'], ['--states is now --bn-modes'])
    """
    if not words:
        return [], []
    warnings = []
    command = COMMANDS.get(words[0], words[0])
    if command != words[0]:
        warnings.append(f"the command {words[0]} is now {command}")
    modern = [command]
    for word in words[1:]:
        option, equals, value = word.partition("=")
        new = OPTIONS.get(command, {}).get(option)
        if new and f"{option} is now {new}" not in warnings:
            warnings.append(f"{option} is now {new}")
        modern.append(f"{new or option}{equals}{value}")
    return modern, warnings
