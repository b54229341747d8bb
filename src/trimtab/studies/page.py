"""The ledger to read: every claim, its verdict, its intervals, and the paper's figures beside ours.

`ledger.json` for scripts and `ledger.md` for people, a page that the documentation shows as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.studies import ledger
from trimtab.studies.claim import PAPERS, Claim, everything
from trimtab.studies.ledger import Result, seeds_for
from trimtab.studies.nets import Net
from trimtab.studies.scales import PLANNED, amounts, scale_of
from trimtab.studies.verdicts import EXEMPT, INCONCLUSIVE, REFUTED, REPRODUCED, Close, Judgement
from trimtab.train.runs import write_text

HEAD = """A claim is tested by rules that were written before anything ran. *Reproduced*: the 95 % interval of
every contrast lies beyond 0 in the claimed direction (for "close": two one-sided tests of 5 %, within the
margin). *Not reproduced*: an interval lies wholly on the other side of the smallest effect of interest.
*Inconclusive*: neither, or the setting lacks what the claim needs. *Outside the paper's scope*: all tests
that were refuted are of the kind from which the paper itself excepts small settings. Only the direction is
judged; the paper's figures are of its own, larger setting. Intervals are over training seeds, or over images
where training is not what varies."""


def publish(scale: str, out: Path) -> list[Result]:
    """Write the ledger of a scale from what its result files hold."""
    scale_of(scale, "mix")  # a scale that there is
    with ledger.shared_files(out, scale):
        return _publish(scale, out)


def _publish(scale: str, out: Path) -> list[Result]:
    results = [ledger.read(claim, scale, out) for claim in everything().values()]
    about = [
        {
            "id": one.claim.id,
            "claim": one.claim.sentence,
            "verdict": one.verdict,
            "note": one.note,
            "seeds": one.seeds,
            "failed": sorted(one.failed),
            "unit": one.claim.unit,
            "tests": [f"{judged.test}: {shown(judged)}" for judged in one.judgements],
            "command": one.command,
        }
        for one in results
    ]
    texts = {
        "ledger.json": json.dumps(about, indent=1) + "\n",
        "ledger.md": page(scale, results, ledger.times(out, scale)),
    }
    for name, text in texts.items():
        place = out / scale / name
        if not place.exists() or place.read_text() != text:
            write_text(place, text)
    return results


def page(scale: str, results: Sequence[Result], times: Mapping[str, Mapping[str, float]]) -> str:
    ran = [one for one in results if one.rows or one.failed]
    lines = [f"# The claims of the five papers, at scale {scale}", "", HEAD, ""]
    counts = {word: sum(one.verdict == word for one in ran) for word in VERDICTS}
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    early = sum(0 < len(one.rows) < planned_seeds(one) for one in ran)
    told += f"; {early} of these verdicts are provisional, with seeds still to come" if early else ""
    lines += [
        f"Of {len(results)} claims {len(ran)} were run: {told}. {chance(ran)} {budget(scale, times)}",
        "",
    ]
    if scale == "smoke":
        lines += ["This scale only proves that every study runs: its verdicts mean nothing.", ""]
    lines += [*amounts_of(scale), ""]
    lines += ["| id | claim | verdict | seeds | minutes |", "|---|---|---|---|---|"]
    for one in results:
        minutes = f"{sum(times.get(one.claim.id, {}).values()) / 60:.1f}" if one.rows else ""
        link = f"[{one.claim.id}](#{one.claim.id.lower()})"
        cells = (link, one.claim.sentence, told_verdict(one), seeds_of(one), minutes)
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    for one in results:
        lines += ["", *_section(one)]
    return "\n".join(lines) + "\n"


def planned_seeds(one: Result) -> int:
    return seeds_for(one.claim, scale_of(one.scale, one.claim.paper))


def told_verdict(one: Result) -> str:
    """The verdict; provisional while seeds are still to come, since looking early is no test."""
    early = 0 < len(one.rows) < planned_seeds(one)
    return f"{one.verdict}, provisional" if early else one.verdict


def seeds_of(one: Result) -> str:
    failed = f", {len(one.failed)} failed" if one.failed else ""
    return f"{len(one.rows)} of {planned_seeds(one)}{failed}" if one.rows or one.failed else ""


def amounts_of(scale: str) -> list[str]:
    """How much was trained and measured, paper by paper, and where that is less than was planned."""
    at = {paper: amounts(scale_of(scale, paper.lower())) for paper in PAPERS}
    lines = [f"| amounts | {' | '.join(at)} |", f"|---|{'---|' * len(at)}"]
    for name in at[PAPERS[0]]:
        shown_as = (_amount(held[name]) for held in at.values())
        lines.append(f"| {name} | {' | '.join(shown_as)} |")
    less = [
        f"{paper.upper()} {name}: {_amount(found)} instead of {planned:,}"
        for (paper, name), planned in PLANNED.get(scale, {}).items()
        if isinstance(found := at[paper.upper()][name], int) and found < planned
    ]
    told = [f"Less than was planned for this scale: {'; '.join(less)}.", ""] if less else []
    others = (
        "APA-4 takes more images, LIG-9 and LIG-10 more epochs, claims about cost or length what they name."
    )
    return [*told, *lines, "", f"Single networks differ: {others}"]


def _amount(value: int | str | None) -> str:
    return "as published" if value is None else f"{value:,}" if isinstance(value, int) else value


VERDICTS = (REPRODUCED, REFUTED, INCONCLUSIVE, EXEMPT)


def _section(one: Result) -> list[str]:
    lines = [f"## {one.claim.id}", "", f"{one.claim.sentence}. **{told_verdict(one).capitalize()}.**", ""]
    if one.note:
        lines += [f"{one.note[0].upper()}{one.note[1:]}.", ""]
    if not one.rows:
        paper = "; ".join(f"{name}: {figure}" for name, figure in one.claim.figures.items())
        return [*lines, f"The paper: {paper}. Command: `{one.command}`"]
    exceptions = dict.fromkeys(test.exempt for test in one.claim.tests if test.exempt)
    if exceptions and one.scale != "paper":
        lines += [f"The paper's own exception, for tests marked *: {'; '.join(exceptions)}.", ""]
    lines += ["| test | contrast and interval | verdict |", "|---|---|---|"]
    for judged in one.judgements:
        marked = " *" if judged.exempt else ""
        word = f"{judged.verdict}: {judged.note}" if judged.note else judged.verdict
        lines.append(f"| {_cell(judged.test)}{marked} | {shown(judged)} | {word} |")
    lines += ["", "| measured | here | the paper |", "|---|---|---|"]
    named = {**dict.fromkeys(one.claim.figures), **dict.fromkeys(one.means)}
    for name in named:
        ours = f"{one.means[name]:.3f}" if name in one.means else ""
        lines.append(f"| {_cell(name)} | {ours} | {_cell(one.claim.figures.get(name, ''))} |")
    unit = ", intervals over images" if one.claim.unit == "image" else ""
    return [*lines, "", f"Seeds {', '.join(map(str, one.seeds))}{unit}. Command: `{one.command}`"]


def shown(judged: Judgement) -> str:
    if judged.interval is None:
        return f"{judged.mean:+.3f}, no interval"
    low, high = judged.interval
    return f"{judged.mean:+.3f} [{low:+.3f}, {high:+.3f}] ({100 * judged.level:.0f} %)"


def chance(ran: Sequence[Result]) -> str:
    """How many verdicts luck alone would turn."""
    tests = [test for one in ran for test in one.claim.tests]
    close = sum(isinstance(test, Close) for test in tests)
    turned = 0.025 * (len(tests) - close) + 0.05 * close
    return (
        f"They rest on {len(tests)} tests, each at its own level: if nothing claimed were true, chance "
        f"alone would confirm about {turned:.1f} of them."
    )


def budget(scale: str, times: Mapping[str, Mapping[str, float]]) -> str:
    spent = sum(sum(one.values()) for one in times.values()) / 3600
    if scale == "paper":
        return f"Spent so far: {spent:.1f} hours; the budget is that of the papers, on GPUs."
    planned = sum(one["minutes"] for one in plan(list(everything().values()), scale)) / 60
    return f"The budget was {planned:.1f} hours on two cores, networks shared; spent: {spent:.1f}."


def plan(claims: Sequence[Claim], scale: str, seeds: int | None = None) -> list[dict[str, Any]]:
    """What claims will cost, in minutes on two cores: a network counts where it is first needed."""
    known: set[str] = set()
    lines = []
    for claim in claims:
        at = scale_of(scale, claim.paper)
        count = seeds or seeds_for(claim, at)
        fresh: list[tuple[Net, int]] = []
        for seed in range(count):
            for net in claim.nets(at):
                for one in (*net.needs(), net):
                    key = one.key(at, seed)
                    if key not in known:
                        fresh.append((one, seed))
                    known.add(key)
        training = sum(net.seconds(at) for net, _ in fresh) / 60 if scale != "paper" else float("nan")
        measuring = {"smoke": 0.02, "laptop": claim.minutes}.get(scale, float("nan")) * count
        about = {"id": claim.id, "seeds": count, "networks": len(fresh), "training": training}
        lines.append({**about, "measuring": measuring, "minutes": training + measuring})
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
