"""The page "what we learned": a sentence per claim under the heading of its verdict, with its numbers.

The sentences are in `docs/results/sentences.yml`. Where an edition lacks a number that a sentence quotes, the
claim is shown by its own words.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from docs.generate import claims as ledger
from docs.generate.claims import PAPERS, Claim

SENTENCES: dict[str, str] = yaml.safe_load((ledger.RESULTS / "sentences.yml").read_text())

HEADINGS = {
    "reproduced": "Reproduced",
    "inconclusive": "Inconclusive",
    "not reproduced": "Not reproduced",
    "setting too weak": "Setting too weak to tell",
    "outside the paper's scope": "Exempt by the paper itself",
}

ADVICE = """## What to do with it

- Images that come noisy or foggy, in batches of 32 or more: try `adapt.per_batch` before training anything.
  `trimtab evaluate --bn-modes running batch` shows what it gains on your images.
- Never count test-time adaptation as a defense: an attacker who knows of it attacks through the batch. Report
  `attacks.ThroughBatch` with it.
- If the statistics of a deployed network may drift, APART gives tolerance; do not expect more clean
  accuracy from it in a short training.
- Before attributing robustness to normalization, compare networks of equal clean accuracy.
"""

OLD = {"regularized": "regularised"}
"""Words of quantities that the first edition spells differently."""


def page(results: Path = ledger.RESULTS) -> str:
    """Return the page.

    Args:
        results: Folder of all results.
    """
    name = ledger.edition(results)
    found = ledger.read(name, results)
    lines = [
        "# What we learned",
        "",
        f"From the [ledger of claims](index.md), {ledger.EDITIONS[name]}. Every claim is",
    ]
    lines += [
        "listed under its verdict; intervals are 95 %. A claim that was not reproduced at this scale is not"
    ]
    lines += ["refuted where the paper works.", ""]
    for verdict, heading in HEADINGS.items():
        mine = [claim for claim in found if claim.verdict == verdict]
        if mine:
            lines += [f"## {heading}", ""]
            lines += [
                f"- [{claim.id}](index.md#{claim.id.lower()}), {PAPERS[claim.paper][0]}: {sentence(claim)}"
                for claim in mine
            ]
            lines.append("")
    return "\n".join([*lines, ADVICE])


def sentence(claim: Claim) -> str:
    """Return what to say about a claim.

    Args:
        claim: The claim.
    """
    parts = [test.verdict for test in claim.tests]
    count = parts.count("reproduced")
    good = f" ({count} of {len(parts)} parts reproduced)" if count < len(parts) and len(parts) > 1 else ""
    own = f"claimed: *{claim.sentence}.*{good}"
    try:
        return (
            re.sub(r"\{([^}]+)\}", lambda match: _quoted(claim, match.group(1)), SENTENCES[claim.id]) + good
        )
    except KeyError:
        return own


def _quoted(claim: Claim, name: str) -> str:
    if name.startswith("effect: "):
        test = ledger.contrast([claim], claim.id, name.removeprefix("effect: "))[1]
        unit = " points" if test.points else ""
        return f"{ledger.amount(test.effect, test.points)}{unit} {test.shown_interval()}"
    measured = dict(claim.measured)
    old = name
    for new_word, old_word in OLD.items():
        old = old.replace(new_word, old_word)
    return ledger.plain(claim.id, name, measured[name] if name in measured else measured[old])
