"""The ledger as a page: every claim, its verdict and intervals, and the paper's figures next to ours.

`ledger.json` is for scripts; `ledger.md` is for people and part of the documentation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trimtab.claims import ledger
from trimtab.claims.claim import PAPERS, Claim, everything
from trimtab.claims.ledger import Result, seeds_for
from trimtab.claims.nets import Net
from trimtab.claims.scales import PLANNED, WAVE1, amounts, scale_of
from trimtab.claims.verdicts import EXEMPT, INCONCLUSIVE, REFUTED, REPRODUCED, TOO_WEAK, Close, Judgement
from trimtab.train import write_text

HEAD = """A claim is tested by rules that were fixed before any measurement. *Reproduced*: the 95 % interval
of every contrast lies beyond 0 in the claimed direction (for "close": two one-sided tests of 5 %, within the
margin). *Not reproduced*: a part lies wholly on the other side of the smallest effect of interest, at 2.5 %
over all parts of the claim (Holm). *Inconclusive*: neither; the parts are counted. *Setting too weak*: a
precondition is not met under some seed. *Outside the paper's scope*: the paper itself exempts small settings.
Only the direction is tested; the paper's figures are those of its own, larger setting. Intervals are over
training seeds and, where outcomes are known per image, test images; over images only where training does not
vary."""


def publish(scale: str, out: Path) -> list[Result]:
    """Write `ledger.json` and `ledger.md` of a scale from its result files."""
    scale_of(scale, "mix")  # refuses an unknown scale
    ledger.require_open(out, scale)
    with ledger.shared_files(out, scale):
        return _publish(scale, out)


def _publish(scale: str, out: Path) -> list[Result]:
    results = [ledger.read(claim, scale, out) for claim in everything().values()]
    spent = ledger.times(out, scale)
    entries = [
        {
            "id": result.claim.id,
            "claim": result.claim.sentence,
            "paper": result.claim.paper,
            "verdict": result.verdict,
            "parts": result.tally,
            "note": result.note,
            "changed after numbers were seen": result.claim.changed,
            "preconditions": [str(need) for need in result.claim.needs],
            "figures": dict(result.claim.figures),
            "seeds": result.seeds,
            "failed": sorted(result.failed),
            "unit": result.claim.unit,
            "tests": [part_of(judged) for judged in result.judgements],
            "cpu": result.cpu,
            "minutes": round(sum(spent.get(result.claim.id, {}).values()) / 60, 1),
            "command": result.command,
        }
        for result in results
    ]
    texts = {
        "ledger.json": json.dumps(entries, indent=1) + "\n",
        "ledger.md": page(scale, results, spent),
    }
    for name, text in texts.items():
        path = out / scale / name
        if not path.exists() or path.read_text() != text:
            write_text(path, text)
    return results


def page(scale: str, results: Sequence[Result], times: Mapping[str, Mapping[str, float]]) -> str:
    """Return the page of a scale as Markdown.

    Args:
        scale: Name of the scale.
        results: The results of all claims.
        times: Seconds, as `ledger.times` returns them.
    """
    ran = [result for result in results if result.rows or result.failed]
    lines = [f"# The claims of the five papers, at scale {scale}", "", HEAD, ""]
    counts = {verdict: sum(result.verdict == verdict for result in ran) for verdict in VERDICTS}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    early = sum(0 < len(result.rows) < planned_seeds(result) for result in ran)
    summary += f"; {early} of these verdicts are provisional, since seeds are missing" if early else ""
    lines += [
        f"Of {len(results)} claims {len(ran)} were run: {summary}. {chance(ran)} {budget(scale, times)}",
        "",
    ]
    if scale == "smoke":
        lines += ["This scale only tests that every study runs: its verdicts have no meaning.", ""]
    lines += [*amounts_of(scale), ""]
    lines += ["| id | claim | verdict | seeds | minutes |", "|---|---|---|---|---|"]
    for result in results:
        minutes = f"{sum(times.get(result.claim.id, {}).values()) / 60:.1f}" if result.rows else ""
        link = f"[{result.claim.id}](#{result.claim.id.lower()})"
        cells = (link, result.claim.sentence, shown_verdict(result), seeds_of(result), minutes)
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    for result in results:
        lines += ["", *_section(result)]
    return "\n".join(lines) + "\n"


def planned_seeds(result: Result) -> int:
    """Return the number of seeds that the scale plans for a claim."""
    return seeds_for(result.claim, scale_of(result.scale, result.claim.paper))


def shown_verdict(result: Result) -> str:
    """Return the verdict; while seeds are missing it is provisional, since a test must not stop early."""
    early = 0 < len(result.rows) < planned_seeds(result)
    return f"{result.verdict}, provisional" if early else result.verdict


def seeds_of(result: Result) -> str:
    """Return the number of measured, planned and failed seeds as text."""
    failed = f", {len(result.failed)} failed" if result.failed else ""
    return f"{len(result.rows)} of {planned_seeds(result)}{failed}" if result.rows or result.failed else ""


def amounts_of(scale: str) -> list[str]:
    """Return a table of how much is trained and measured per paper, and what is less than was planned."""
    at = {paper: amounts(scale_of(scale, paper.lower())) for paper in PAPERS}
    lines = [f"| amounts | {' | '.join(at)} |", f"|---|{'---|' * len(at)}"]
    for name in at[PAPERS[0]]:
        cells = (_amount(of_paper[name]) for of_paper in at.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    less = [
        f"{paper.upper()} {name}: {_amount(actual)} instead of {planned:,}"
        for (paper, name), planned in PLANNED.get(scale, {}).items()
        if isinstance(actual := at[paper.upper()][name], int) and actual < planned
    ]
    less_than_planned = [f"Less than was planned for this scale: {'; '.join(less)}.", ""] if less else []
    others = (
        "APA-4 uses more images, LIG-9 and LIG-10 more epochs, claims about cost or length what they name."
    )
    return [*less_than_planned, *lines, "", f"Single networks differ: {others}"]


def _amount(value: int | str | None) -> str:
    return "as published" if value is None else f"{value:,}" if isinstance(value, int) else value


VERDICTS = (REPRODUCED, REFUTED, INCONCLUSIVE, TOO_WEAK, EXEMPT)


def _section(result: Result) -> list[str]:
    parts = f" ({result.tally})" if len(result.claim.tests) > 1 and result.tally else ""
    lines = [
        f"## {result.claim.id}",
        "",
        f"{result.claim.sentence}. **{shown_verdict(result).capitalize()}{parts}.**",
        "",
    ]
    if result.claim.changed:
        lines += [f"Changed after numbers were seen: {result.claim.changed}.", ""]
    if result.note:
        lines += [f"{result.note[0].upper()}{result.note[1:]}.", ""]
    if not result.rows:
        paper = "; ".join(f"{name}: {figure}" for name, figure in result.claim.figures.items())
        return [*lines, f"The paper: {paper}. Command: `{result.command}`"]
    exceptions = dict.fromkeys(test.exempt for test in result.claim.tests if test.exempt)
    if exceptions and result.scale != "paper":
        lines += [f"The paper's own exception, for tests marked *: {'; '.join(exceptions)}.", ""]
    lines += ["| part | contrast and interval | detectable | verdict |", "|---|---|---|---|"]
    for judged in result.judgements:
        marked = " *" if judged.exempt else ""
        verdict = f"{judged.verdict}: {judged.note}" if judged.note else judged.verdict
        lines.append(f"| {_cell(judged.test)}{marked} | {shown(judged)} | {detected(judged)} | {verdict} |")
    lines += ["", "| measured | here | the paper |", "|---|---|---|"]
    named = {**dict.fromkeys(result.claim.figures), **dict.fromkeys(result.means)}
    for name in named:
        ours = f"{result.means[name]:.3f}" if name in result.means else ""
        lines.append(f"| {_cell(name)} | {ours} | {_cell(result.claim.figures.get(name, ''))} |")
    unit = ", intervals over images" if result.claim.unit == "image" else ""
    return [*lines, "", f"Seeds {', '.join(map(str, result.seeds))}{unit}. Command: `{result.command}`"]


def shown(judged: Judgement) -> str:
    """Return the mean and the interval of a contrast as text."""
    if judged.interval is None:
        return f"{judged.mean:+.3f}, no interval"
    low, high = judged.interval
    return f"{judged.mean:+.3f} [{low:+.3f}, {high:+.3f}] ({100 * judged.level:.0f} %)"


def detected(judged: Judgement) -> str:
    """Return the smallest detectable effect of a part as text, next to the paper's effect."""
    if judged.detectable is None:
        return ""
    paper = f", the paper's {judged.paper:.3f}" if judged.paper is not None else ""
    return f"{judged.detectable:.3f}{paper}{', underpowered' if judged.underpowered else ''}"


def part_of(judged: Judgement) -> dict[str, Any]:
    """Return a part as data."""
    return {
        "test": judged.test,
        "verdict": judged.verdict,
        "effect": judged.mean,
        "interval": judged.interval,
        "level": judged.level,
        "over": judged.over,
        "detectable effect": judged.detectable,
        "the paper's effect": judged.paper,
    }


def chance(ran: Sequence[Result]) -> str:
    """Return the expected number of tests that chance alone would confirm, as a sentence."""
    tests = [test for result in ran for test in result.claim.tests]
    close = sum(isinstance(test, Close) for test in tests)
    expected = 0.025 * (len(tests) - close) + 0.05 * close
    return (
        f"They rest on {len(tests)} tests, each at its own level: if no claim were true, chance "
        f"alone would confirm about {expected:.1f} of them."
    )


def budget(scale: str, times: Mapping[str, Mapping[str, float]]) -> str:
    """Return the planned and the spent hours, as a sentence."""
    spent = sum(sum(seconds.values()) for seconds in times.values()) / 3600
    if scale == "desk":
        planned = sum(row.hours for row in WAVE1)
        return f"The budget of the first wave is {planned:.0f} hours on two cores; spent: {spent:.1f}."
    if scale == "paper":
        return f"Spent so far: {spent:.1f} hours; the budget is that of the papers, on GPUs."
    planned = sum(line["minutes"] for line in plan(list(everything().values()), scale)) / 60
    return f"The budget was {planned:.1f} hours on two cores, networks shared; spent: {spent:.1f}."


def hours_left(results: Sequence[Result], seeds: int | None = None) -> tuple[float, float]:
    """Return the planned hours of claims at the desk scale, and those that remain.

    The hours of a row of `WAVE1` are divided equally over its claims and seeds; other claims have none.
    """
    per_claim = {id: row.hours / len(row.ids) for row in WAVE1 for id in row.ids}
    planned = left = 0.0
    for result in results:
        hours, count = per_claim.get(result.claim.id, 0.0), planned_seeds(result)
        count, hours = seeds or count, hours * (seeds or count) / count
        planned += hours
        left += hours * max(0, count - len(result.rows)) / count
    return planned, left


def plan(claims: Sequence[Claim], scale: str, seeds: int | None = None) -> list[dict[str, Any]]:
    """Return the estimated minutes of claims on two cores; a network counts where it is first needed."""
    known: set[str] = set()
    lines = []
    for claim in claims:
        at = scale_of(scale, claim.paper)
        count = seeds or seeds_for(claim, at)
        fresh: list[tuple[Net, int]] = []
        for seed in range(count):
            for net in claim.nets(at):
                for needed in (*net.needs(), net):
                    key = needed.key(at, seed)
                    if key not in known:
                        fresh.append((needed, seed))
                    known.add(key)
        training = sum(net.seconds(at) for net, _ in fresh) / 60 if scale != "paper" else float("nan")
        measuring = {"smoke": 0.02, "laptop": claim.minutes}.get(scale, float("nan")) * count
        if scale == "desk":
            training, measuring = hours_left([Result(claim, scale, {})], seeds)[0] * 60, 0.0
        about = {"id": claim.id, "seeds": count, "networks": len(fresh), "training": training}
        lines.append({**about, "measuring": measuring, "minutes": training + measuring})
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
