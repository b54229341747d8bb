"""The ledger as data and as a page: every claim, its verdict and intervals, the paper's figures next to ours.

`ledger.json` is for scripts; `ledger.md` is made from it for people, and part of the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.claims import ledger, plan
from trimtab.claims.claim import everything
from trimtab.claims.power import too_small
from trimtab.claims.result import summary
from trimtab.claims.scales import OUT_OF_REACH, WAVE1, scale_of
from trimtab.claims.verdicts import EXEMPT, INCONCLUSIVE, REFUTED, REPRODUCED, TOO_WEAK

HEAD = """A claim is tested by rules that were fixed before any measurement. *Reproduced*: the 95 % interval
of every contrast lies beyond 0 in the claimed direction (for "close": two one-sided tests of 5 %, within the
margin). *Not reproduced*: a part lies wholly on the other side of the smallest effect of interest, at 2.5 %
over all parts of the claim (Holm). *Inconclusive*: neither; the parts are counted. *Setting too weak*: a
precondition is not met under some seed. *Outside the paper's scope*: the paper itself exempts small settings.
Only the direction is tested; the paper's figures are those of its own, larger setting. Intervals are over
training seeds and, where outcomes are known per image, test images. A test of no effect is confirmed by
chance in 2.5 % of cases (closeness: 5 %)."""
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
    ledger.require_open(out, scale)
    with ledger.shared_files(out, scale):
        known = everything()
        wave = [known[id] for row in WAVE1 for id in row.ids if id in known]
        planned = wave if scale == "desk" else list(known.values())
        budget, seconds = plan.budget(planned, scale, out), ledger.times(out, scale)
        claims = [
            summary(ledger.read(claim, scale, out))
            | {"minutes": round(sum(seconds.get(claim.id, {}).values()) / 60, 1)}
            | {"detectable before the run": plan.detectable_before(claim, scale, out)}
            | {"out of reach": OUT_OF_REACH.get(claim.id, "") if scale == "desk" else ""}
            for claim in everything().values()
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
    claims, scale = content["claims"], content["scale"]
    ran = [entry for entry in claims if entry["seeds"] or entry["failed"]]
    counts = {verdict: sum(entry["verdict"] == verdict for entry in ran) for verdict in VERDICTS}
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    early = sum(entry["provisional"] for entry in ran)
    lines = [f"# The claims of the five papers, at scale {scale}", "", HEAD, ""]
    if content["units done"] < content["units"]:
        lines += [
            '!!! warning "Unfinished"',
            f"    {content['units done']} of {content['units']} units (trained networks and measurements of "
            f"a claim and seed) are done. Verdicts with missing seeds are provisional.",
            "",
        ]
    lines += [f"Of {len(claims)} claims {len(ran)} were run: {counted}; {early} of them provisional. "]
    lines[-1] += f"Spent: {content['core hours']:.1f} core hours."
    if scale == "smoke":
        lines += ["", "This scale only tests that every study runs: its verdicts have no meaning."]
    lines += ["", "| id | claim | verdict | seeds | minutes |", "|---|---|---|---|---|"]
    for entry in claims:
        link, minutes = f"[{entry['id']}](#{entry['id'].lower()})", entry["minutes"] or ""
        cells = (link, entry["claim"], shown_verdict(entry), seeds_of(entry), str(minutes))
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join([*lines, *(line for entry in claims for line in _section(entry))]) + "\n"


def shown_verdict(entry: Entry) -> str:
    """Return the verdict; while seeds are missing it is provisional, since a test must not stop early."""
    return f"{entry['verdict']}, provisional" if entry["provisional"] else str(entry["verdict"])


def seeds_of(entry: Entry) -> str:
    """Return the number of measured, planned and failed seeds as text."""
    failed = f", {len(entry['failed'])} failed" if entry["failed"] else ""
    return f"{len(entry['seeds'])} of {entry['planned seeds']}{failed}" if entry["seeds"] or failed else ""


def _section(entry: Entry) -> list[str]:
    parts = f" ({entry['parts']})" if len(entry["tests"]) > 1 and entry["parts"] else ""
    lines = [
        "",
        f"## {entry['id']}",
        "",
        f"{entry['claim']}. **{shown_verdict(entry).capitalize()}{parts}.**",
    ]
    if entry["changed after numbers were seen"]:
        lines += ["", f"Changed after numbers were seen: {entry['changed after numbers were seen']}."]
    if entry["reason"]:
        lines += ["", f"{entry['reason'][0].upper()}{entry['reason'][1:]}."]
    if entry["preconditions"]:
        lines += ["", *(f"- Precondition: {_needed(need)}" for need in entry["preconditions"])]
    if entry["out of reach"]:
        command = f"`trimtab reproduce {entry['id']} --scale paper`"
        lines += ["", f"Out of reach at this scale ({entry['out of reach']}): {command}."]
    exceptions = dict.fromkeys(part["the paper's exception"] for part in entry["tests"])
    if any(exceptions) and entry["scale"] != "paper":
        lines += [
            "",
            f"The paper's own exception, for tests marked *: {'; '.join(filter(None, exceptions))}.",
        ]
    if entry["tests"]:
        lines += ["", "| part | contrast and interval | detectable | verdict |", "|---|---|---|---|"]
    for part in entry["tests"]:
        marked = " *" if part["the paper's exception"] else ""
        verdict = f"{part['verdict']}: {part['note']}" if part["note"] else part["verdict"]
        lines.append(f"| {_cell(part['test'])}{marked} | {shown(part)} | {detected(part)} | {verdict} |")
    lines += ["", "| measured | here | the paper |", "|---|---|---|"]
    for name in dict.fromkeys([*entry["figures"], *entry["means"]]):
        ours = f"{entry['means'][name]:.3f}" if name in entry["means"] else ""
        lines.append(f"| {_cell(name)} | {ours} | {_cell(entry['figures'].get(name, ''))} |")
    seeds = f"Seeds {', '.join(map(str, entry['seeds']))}. " if entry["seeds"] else ""
    return [*lines, "", f"{seeds}Command: `{entry['command']}`"]


def _needed(need: Entry) -> str:
    """Return a precondition with its values, by seed."""
    values = ["not a number" if v is None else f"{v:.3f}" for v in need["by seed"].values()]
    outcome = f" ({'met' if need['met'] else 'not met'}: {', '.join(values)})" if values else ""
    return f"{need['needed']}{outcome}"


def shown(part: Entry) -> str:
    """Return the mean and the interval of a part as text."""
    effect = "not a number" if part["effect"] is None else f"{part['effect']:+.3f}"
    if part["interval"] is None:
        return f"{effect}, no interval"
    low, high = part["interval"]
    return f"{effect} [{low:+.3f}, {high:+.3f}] ({100 * part['level']:.0f} %)"


def detected(part: Entry) -> str:
    """Return the smallest detectable effect of a part as text, next to the paper's effect."""
    effect, paper = part["detectable effect"], part["the paper's effect"]
    if effect is None:
        return ""
    weak = ", underpowered" if too_small(effect, paper) else ""
    return f"{effect:.3f}{'' if paper is None else f', the paper has {paper:.3f}'}{weak}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
