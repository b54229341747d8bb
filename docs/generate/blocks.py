"""Parts of a page between `<!-- generated: NAME -->` and `<!-- end: NAME -->`."""

from __future__ import annotations

import re


def names(text: str) -> list[str]:
    """Return the names of all generated parts of a page."""
    return re.findall(r"<!-- generated: ([\w-]+) -->", text)


def content(text: str, name: str) -> str:
    """Return one generated part of a page."""
    return text.split(f"<!-- generated: {name} -->\n", 1)[1].split(f"<!-- end: {name} -->", 1)[0]


def replaced(text: str, name: str, part: str) -> str:
    """Return a page with one part written anew.

    Args:
        text: The page.
        name: Name of the part.
        part: Its new lines.
    """
    start, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
    before, _, rest = text.partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the page has no lines {start.strip()} and {end}")
    return f"{before}{start}{part.rstrip()}\n{end}{after}"
