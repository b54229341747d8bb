"""The ledger's files as rows: every claim with its verdict, and every test with its effect and interval."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.claims import everything

RESULTS = Path(__file__).parents[1] / "results"
EDITIONS = {"desk": "second edition", "laptop": "first edition, on small settings"}
"""Folders of results, the one to show first; and what its numbers are labeled as."""

PAPERS = {
    "MIX": ("Mixture BN", "mixture-bn"),
    "ADV": ("AdvBN", "advbn"),
    "APA": ("APART", "apart"),
    "ADA": ("Adaptive BN", "adaptive-bn"),
    "LIG": ("LIGS", "ligs"),
}
"""The papers by the first letters of their claims: name, and page under `methods/`."""

VERDICTS = {
    "reproduced": "reproduced",
    "inconclusive": "inconclusive",
    "setting too weak": "setting too weak",
    "outside the paper's scope": "exempt",
    "not reproduced": "not reproduced",
    "": "not run",
}
"""Verdicts in the order of a stacked bar, as a chart names them."""

HEADLINES = {
    "MIX": [
        ("MIX-4", "MBN adv, robust > mixed, robust", "robust accuracy, Mixture BN vs. one shared BN"),
        ("MIX-9", "MBN, gain > 0", "robust accuracy from a running-statistics tail"),
    ],
    "ADV": [("ADV-1", "standard, mCE > AdvBN, mCE", "corruption error removed by AdvBN fine-tuning")],
    "APA": [
        ("APA-1", "APART > standard, 2x", "clean accuracy, APART vs. standard training at equal cost"),
        ("APA-7", "standard, lost to a scaled mean > APART, lost to a scaled mean",
         "accuracy kept when means are scaled"),
    ],
    "ADA": [
        ("ADA-6", "Adv_inf, static, gap > Adv_inf, adapted, gap", "gap to clean accuracy closed by adapting"),
        ("ADA-2", "Adv_inf, adapted, r = 0.5 > Adv_inf, static, r = 0.5",
         "certified accuracy, adapted vs. static"),
    ],
    "LIG": [
        ("LIG-1", "ResNet BN, clean > ResNet none, clean", "clean accuracy of a ResNet, BN vs. none"),
        ("LIG-1", "ResNet none, PGD > ResNet BN, PGD", "robust accuracy of a ResNet, no BN vs. BN"),
    ],
}  # fmt: skip
"""The contrasts that the README shows, by paper: claim, test, and what is compared in plain words."""

OLD_NAMES = {"r = 0.5": "r = sigma", "difference of stds": "difference of deviations", "fraction": "share"}
"""Words of tests that the first edition names differently."""

HEADLINE_IDS = (
    *("MIX-4", "MIX-9", "ADV-1", "APA-1", "APA-6", "APA-7", "ADA-1", "ADA-2", "ADA-4", "ADA-6"),
    *("LIG-1", "LIG-6", "LIG-8", "LIG-9"),
)
"""The headline claims, fixed before the first edition ran."""


@dataclass(frozen=True)
class Test:
    """One contrast of a claim."""

    claim: str
    """The claim's id."""
    text: str
    """What is compared, as the ledger prints it."""
    effect: float
    interval: tuple[float, float] | None
    level: float
    verdict: str
    paper: float | None
    """The paper's own effect, in the same units, where it prints the numbers."""

    @property
    def points(self) -> bool:
        """Whether the effect is a difference of fractions, shown in percentage points."""
        return is_fraction(self.claim, self.text)

    @property
    def bound(self) -> tuple[float, float] | None:
        """For "within a margin of": the margin's interval around 0; else None."""
        match = re.search(r" within ([\d.]+) of ", self.text)
        return (-float(match.group(1)), float(match.group(1))) if match else None

    @property
    def plain(self) -> str:
        """The text without the smallest effect of interest."""
        return re.sub(r" \(of interest from [^)]*\)", "", self.text)

    def shown(self) -> str:
        """Return effect and interval as text: percentage points, or the raw number."""
        return f"{amount(self.effect, self.points)} {self.shown_interval()}"

    def shown_interval(self) -> str:
        """Return the interval as text."""
        if self.interval is None:
            return "(no interval)"
        low, high = (amount(value, self.points) for value in self.interval)
        return f"[{low}, {high}]"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper with what was measured."""

    id: str
    sentence: str
    verdict: str
    parts: str
    seeds: int
    tests: tuple[Test, ...]
    command: str
    note: str
    measured: tuple[tuple[str, float], ...]
    """Mean of every measured quantity, by name."""
    figures: tuple[tuple[str, str], ...]
    """What the paper prints, by name."""

    @property
    def paper(self) -> str:
        """The first letters of the id: the paper."""
        return self.id.partition("-")[0]


def amount(value: float, points: bool) -> str:
    """Return a difference as text.

    Args:
        value: The difference.
        points: Whether it is one of fractions, shown in percentage points.
    """
    shown = f"{100 * value:+.1f}" if points else f"{value:+.3f}"
    return shown.replace("-", "\N{MINUS SIGN}")


def is_fraction(id: str, name: str) -> bool:
    """Return whether a quantity is a fraction (an accuracy or an error rate), shown in percent.

    Args:
        id: The claim's id.
        name: What was measured, or a test.
    """
    if id in ("ADV-6", "APA-8", "LIG-14", "ADA-10", "MIX-8") or "LIGS" in name or "gradient" in name:
        return False
    return (
        id not in ("LIG-6", "LIG-7", "LIG-11", "LIG-12")
        or re.search("clean|PGD|CW|accuracy", name) is not None
    )


def plain(id: str, name: str, value: float) -> str:
    """Return a measured value as text: percent where it is a fraction.

    Args:
        id: The claim's id.
        name: What was measured.
        value: The value.
    """
    return f"{100 * value:.1f} %" if is_fraction(id, name) and abs(value) < 2 else f"{value:.3g}"


def edition(results: Path = RESULTS) -> str:
    """Return the folder of the edition to show: the newest whose units are all done."""
    return next(name for name in EDITIONS if _is_whole(results / name / "ledger.json"))


def _is_whole(path: Path) -> bool:
    content = json.loads(path.read_text()) if path.exists() else None
    return content is not None and (isinstance(content, list) or content["units done"] >= content["units"])


def read(name: str, results: Path = RESULTS) -> list[Claim]:
    """Return the claims of an edition.

    Args:
        name: Name of the edition's folder.
        results: Folder of all results.
    """
    content = json.loads((results / name / "ledger.json").read_text())
    entries = content if isinstance(content, list) else content["claims"]
    return [_claim(entry, results / name) for entry in entries]


def _claim(entry: dict[str, Any], folder: Path) -> Claim:
    path = folder / f"{entry['id']}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    figures = entry.get("figures") or stored.get("paper") or {}
    rows = [test for test in [*entry.get("tests", []), *stored.get("tests", [])] if isinstance(test, dict)]
    tests: dict[str, Test] = {}
    for row in rows:
        mean = row.get("effect", row.get("mean"))
        if row["test"] not in tests and mean is not None:
            tests[row["test"]] = Test(
                entry["id"],
                row["test"],
                mean,
                tuple(row["interval"]) if row.get("interval") else None,
                row.get("level", 0.95),
                row.get("verdict", ""),
                row.get("the paper's effect") or _papers(row["test"], figures),
            )
    verdict = entry["verdict"] if entry["verdict"] in VERDICTS else ""
    seeds = entry.get("seeds", [])
    means = tuple((stored.get("means") or {}).items())
    known, note = everything().get(entry["id"]), entry.get("reason") or entry.get("note", "")
    return Claim(
        entry["id"], known.sentence if known else entry["claim"], verdict, entry.get("parts") or "",
        len(seeds), tuple(tests.values()), entry.get("command", ""), note, means,
        tuple(figures.items()),
    )  # fmt: skip


def _papers(test: str, figures: dict[str, str]) -> float | None:
    """The paper's effect on accuracies or errors, where it prints one number in percent for each side."""
    match = re.fullmatch(r"(.+?) > (.+?)(?: [+-] [\d.]+)?(?: \(of interest from [^)]*\))?", test)
    if not match:
        return None
    sides = [_percent(figures.get(side, "0" if side == "0" else "")) for side in match.groups()]
    return None if None in sides else sides[0] - sides[1]  # type: ignore[operator]


def _percent(text: str) -> float | None:
    number = re.match(r"[+-]?\d+(?:\.\d+)?(?=$| \()", text)
    return float(number.group()) / 100 if number else None


def contrast(claims: list[Claim], id: str, text: str) -> tuple[Claim, Test]:
    """Return a claim and its test that begins with a text.

    Args:
        claims: The claims of an edition.
        id: The claim's id.
        text: The test, as `HEADLINES` has it.
    """
    old = text
    for new_word, old_word in OLD_NAMES.items():
        old = old.replace(new_word, old_word)
    claim = next(claim for claim in claims if claim.id == id)
    for test in claim.tests:
        if test.plain in (text, old):
            return claim, test
    raise KeyError(f"{id} has no test {text!r}; docs/generate/claims.py names it")
