"""Names and texts are in the plain American English of the field: the scan of `src/` that keeps them so."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import trimtab

ROOT = Path(trimtab.__file__).parent

WORDS = {
    r"deviations?": "std",
    r"slopes?": "gradient",
    r"optimis\w*": "optimiz-",
    r"normalis\w*": "normaliz-",
    r"(?:colour|behaviour|neighbour)\w*": "American spelling",
    r"fallen": "misclassified",
    r"so many": "N",
    r"beside": "next to, with",
    r"any iterate": "early stopping",
    r"norm states?": "BN mode",
    r"goes on": "resumes, continues",
    r"way back": "backward",
    r"(?:is|was|are|were|be|what|been) told": "given, logged, shown",
    r"(?:network|model|layer)s? (?:says?|said)": "returns",
    r"what (?:a|the|its) (?:network|model)s? (?:says?|said)": "logits, predictions",
    r"unchanged images?": "clean images",
    r"disturbed": "corrupted",
    r"told from chance": "significant",
    r"bare passes": "forward/backward baseline",
}
"""Patterns of words in texts (docstrings, comments, string literals), and what to write."""

NAMES = {
    *("deviation", "slope", "slopes", "told", "said", "found", "own", "one", "held", "mark", "wanted"),
    *("trouble", "doubt", "doubts", "optimiser", "normalise", "victim", "Victim", "determined_by"),
    *("halving", "ran_out", "settled", "in_force", "side_by_side", "keep_freed", "keep_features"),
}
"""Identifiers that do not say what the value is, or that have been renamed."""

STORED = {
    ("train/reader.py", "optimiser"), ("train/_loop/checkpoint.py", "optimiser"), ("data/sets.py", "beside"),
}  # fmt: skip
"""Old names in recipes, checkpoints and code that users have, by the file that accepts them."""

_PATTERN = re.compile(r"\b(?:" + "|".join(WORDS) + r")\b", re.IGNORECASE)


def part(path: Path) -> str:
    """The folder, or the file, at the top of the package."""
    return path.relative_to(ROOT).parts[0]


def words_of(source: str) -> Iterator[tuple[int, str]]:
    """Every old word of a file with its line: in comments and strings, and as a name that it binds."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            for found in _PATTERN.finditer(" ".join(token.string.split())):
                line = token.string[: token.string.find(found.group().split()[0])].count("\n")
                yield token.start[0] + line, found.group()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in NAMES:
            yield node.lineno, node.name
        elif isinstance(node, ast.arg) and node.arg in NAMES:
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMES:
            yield node.lineno, node.id


FILES = [*sorted(ROOT.rglob("*.py"))]


@pytest.mark.parametrize("where", sorted({part(path) for path in FILES}))
def test_texts_and_names_are_in_the_words_of_the_field(where: str) -> None:
    wrong = [
        f"src/trimtab/{path.relative_to(ROOT)}:{line}: {word}"
        for path in FILES
        if part(path) == where
        for line, word in sorted(set(words_of(path.read_text(encoding="utf-8"))))
        if (path.relative_to(ROOT).as_posix(), word) not in STORED
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""The deviation."""', [(1, "deviation")]),
        ('x = 1\n"""Two\nlines: so many."""', [(3, "so many")]),
        ("y = 2  # the image beside it", [(1, "beside")]),
        ("found = [one for one in 'ab']", [(1, "found"), (1, "one")]),
        ("def settled(own): pass", [(1, "own"), (1, "settled")]),
        ('"standard std, besides, optimize"', []),
        ("x.found", []),
    ],
)
def test_the_scan_finds_old_words_and_no_others(source: str, words: list[tuple[int, str]]) -> None:
    assert sorted(words_of(source)) == words
