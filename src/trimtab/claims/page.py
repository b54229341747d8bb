"""The ledger as data and as a page: every claim, its verdict and intervals, the paper's figures next to ours.

`ledger.json` is for scripts; `ledger.md` is made from it by `templates/ledger.md` for people, and part of the
documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from trimtab.claims import ledger, plan
from trimtab.claims.claim import everything
from trimtab.claims.power import too_small
from trimtab.claims.result import summary
from trimtab.claims.scales import OUT_OF_REACH, ROW_OF, scale_of
from trimtab.claims.verdicts import EXEMPT, INCONCLUSIVE, REFUTED, REPRODUCED, TOO_WEAK

VERDICTS = (REPRODUCED, REFUTED, INCONCLUSIVE, TOO_WEAK, EXEMPT)

Entry = Mapping[str, Any]
"""What `ledger.json` contains of a claim."""


def publish(scale: str, out: Path) -> dict[str, Any]:
    """Write `ledger.json` and `ledger.md` of a scale from its result files; return the former.

    Args:
        scale: Name of the scale.
        out: Folder of the results.
    """
    scale_of(scale, "mix")  # refuses an unknown scale
    with ledger.writing(out, scale):
        known = everything()
        planned = [known[id] for id in (ROW_OF if scale == "desk" else known) if id in known]
        budget, seconds = plan.budget(planned, scale, out), ledger.times(out, scale)
        claims = [
            summary(ledger.read(claim, scale, out))
            | {"minutes": round(sum(seconds.get(claim.id, {}).values()) / 60, 1)}
            | {"detectable before the run": plan.detectable_before(claim, scale, out)}
            | {"out of reach": OUT_OF_REACH.get(claim.id, "") if scale == "desk" else ""}
            for claim in known.values()
        ]
        content = {
            "scale": scale,
            "units": budget.units,
            "units done": budget.done,
            "core hours": round(budget.spent, 2),
            "claims": claims,
        }
        ledger.replace_text(out / scale / "ledger.json", content)
        ledger.replace_text(out / scale / "ledger.md", page(content))
    return content


def page(content: Mapping[str, Any]) -> str:
    """Return the page of a ledger as Markdown.

    Args:
        content: The content of `ledger.json`.
    """
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("trimtab.claims"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    pages.filters |= {"cell": lambda text: text.replace("|", "\\|"), "number": _number}
    pages.globals |= {"shown": shown, "too_small": too_small}
    ran = [entry for entry in content["claims"] if entry["seeds"] or entry["failed"]]
    return pages.get_template("ledger.md").render(ledger=content, ran=ran, verdicts=VERDICTS)


def shown(part: Entry) -> str:
    """Return the mean and the interval of a part as text."""
    effect = _number(part["effect"], "%+.3f")
    if part["interval"] is None:
        return f"{effect}, no interval"
    low, high = part["interval"]
    return f"{effect} [{low:+.3f}, {high:+.3f}] ({100 * part['level']:.0f} %)"


def _number(value: float | None, format: str) -> str:
    return "not a number" if value is None else format % value
