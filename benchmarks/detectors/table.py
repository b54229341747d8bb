"""The results of a half of the families as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch

from benchmarks.detectors.agreement import DEFECTS, LIMITS, Agreement
from benchmarks.detectors.drift import IMAGES, Drift
from benchmarks.detectors.networks import TUNING
from benchmarks.detectors.normalization import Record
from trimtab.measure import clopper_pearson
from trimtab.models.corrections import GAIN, SIGNIFICANCE, SKILL, UNLIKE
from trimtab.norm.audit import DRIFT

SEVERE = 0.10
"""Faults that cost at least this much accuracy must be detected."""
HEAD = """# Detectors of the trust card

How often the trust card detects planted faults, and how far sound networks stay from its thresholds.
The thresholds were chosen on the families {tuning}, and fixed before the others were measured (the skill that
a correction must reach was added for untrained networks, before any number of the held-out half was read).
This page reports the **{half}** families: {families}. One thread, torch {version}.

    python -m benchmarks.detectors
"""


def text(
    records: Sequence[Record],
    agreements: Sequence[Agreement],
    drifts: Sequence[Drift],
    half: str,
    unmeasured: Sequence[str],
) -> str:
    """Return the page.

    Args:
        records: of the normalization check.
        agreements: of the flags that rest on attacks or on logits; may be empty.
        drifts: of `trimtab audit`'s drift flag; may be empty.
        half: "tuning" or "held-out".
        unmeasured: names of networks without records.
    """
    families = list(dict.fromkeys(record.family for record in records))
    head = HEAD.format(
        tuning="; ".join(TUNING), half=half, families="; ".join(families), version=torch.__version__
    )
    parts = [head, _normalization(records)]
    if unmeasured:
        parts.append(f"Not measured yet: {', '.join(unmeasured)}.\n")
    if agreements:
        parts.append(_agreements(agreements))
    if drifts:
        parts.append(_drifts(drifts))
    return "\n".join(parts)


def _normalization(records: Sequence[Record]) -> str:
    severe = [r for r in records if r.kind == "fault" and r.cost >= SEVERE]
    mild = [r for r in records if r.kind == "fault" and r.cost < SEVERE]
    sound = [r for r in records if r.kind == "sound"]
    shifted = [r for r in records if r.kind == "shift"]
    lines = [
        "## Normalization",
        "",
        f"A fault is reported where a correction of the pixels gains at least {GAIN * 100:g} points, with "
        f"p < {SIGNIFICANCE:g} over all candidates (McNemar's exact test) and a skill of {SKILL:g} over "
        "predicting the most common label. It is certain, and stops attacks, "
        f"where the images' mean and std are within {UNLIKE:g} of ordinary ones (`unlike_constants`) or no "
        "kind of images resembles it (0..255, BGR).",
        "",
        "| cases | flag `normalization` | also `shift` |",
        "|---|---|---|",
        _rate(f"faults that cost at least {SEVERE * 100:g} points", severe),
        _rate("milder faults", mild),
        _rate("sound network x image subset", sound),
        _rate("sound network x corrupted images", shifted),
        "",
        "By fault (networks detected / networks, the costs, and the gain of the best correction in points):",
        "",
        "| fault | at least 10 points | cost | gain | milder | cost |",
        "|---|---|---|---|---|---|",
    ]
    for what in dict.fromkeys(r.what for r in records if r.kind == "fault"):
        strong, weak = ([r for r in group if r.what == what] for group in (severe, mild))
        gains = _range([r.after - r.before for r in strong])
        lines.append(
            f"| {what} | {_count(strong)} | {_range([r.cost for r in strong])} | {gains} "
            f"| {_count(weak)} | {_range([r.cost for r in weak])} |"
        )
    lines += [
        "",
        "By network (detected / faults that cost at least 10 points; false alarms / sound subsets):",
        "",
    ]
    lines += [
        "| network | accuracy | detected | false alarms | largest gain of a sound case |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(r.network for r in records):
        strong, right = ([r for r in group if r.network == name] for group in (severe, sound))
        gain = max((r.after - r.before for r in right), default=0.0)
        accuracy = right[0].before if right else float("nan")
        lines.append(f"| {name} | {accuracy:.1%} | {_count(strong)} | {_count(right)} | {gain * 100:.1f} |")
    undetected = [r for r in severe if r.flag != "normalization"]
    lines += ["", "Not detected: " + ("; ".join(map(_case, undetected)) or "none") + "."]
    lines += ["", "Milder faults: " + ("; ".join(map(_case, mild)) or "none") + "."]
    alarms = [r for r in (*sound, *shifted) if r.flag == "normalization"]
    lines += ["", "False alarms: " + ("; ".join(map(_case, alarms)) or "none") + ".", ""]
    return "\n".join(lines)


def _agreements(agreements: Sequence[Agreement]) -> str:
    sound = [a for a in agreements if not a.defect]
    lines = [
        "## Flags that rest on attacks or logits",
        "",
        f"The statistic that each threshold is compared with, on {len(sound)} sound networks "
        "(128 images, Linf 8/255; the value nearest to the threshold) and with a planted defect.",
        "",
        "| flag | raised | sound: nearest | with its defect |",
        "|---|---|---|---|",
    ]
    for flag, (side, limit) in LIMITS.items():
        nearest = (max if side == "above" else min)((a.statistics[flag] for a in sound), default=float("nan"))
        planted = [
            f"{a.statistics[flag]:.3g} ({a.defect}, {a.network})" for a in agreements if _target(a) == flag
        ]
        lines.append(
            f"| {flag} | {side} {limit:g} | {nearest:.3g} | {'; '.join(planted) or 'none planted'} |"
        )
    alarms = [f"{a.network}: {', '.join(a.flags)}" for a in sound if a.flags]
    missed = [f"{a.defect} in {a.network}" for a in agreements if a.defect and _target(a) not in a.flags]
    lines += [
        "",
        f"Flags of sound networks: {'; '.join(alarms) or 'none'}.",
        f"Defects missed: {'; '.join(missed) or 'none'}.",
    ]
    return "\n".join([*lines, ""])


def _drifts(drifts: Sequence[Drift]) -> str:
    names = list(dict.fromkeys(d.network for d in drifts))
    lines = [
        "## Drift",
        "",
        f"`trimtab audit --data` compares running statistics with those of {IMAGES} images. The flag is "
        f"raised where a layer's mean is off by {DRIFT:g} running stds, or its std by a factor of 2. It says "
        "that images are of another domain: corruptions raise it, and faults that change pixels little do "
        f"not. Networks with batch norm: {', '.join(names)}.",
        "",
        "| cases | flagged | mean: smallest, median, largest | std: smallest, median, largest |",
        "|---|---|---|---|",
    ]
    groups = {"sound network x image subset": [d for d in drifts if d.kind == "sound"]}
    for what in dict.fromkeys(d.what for d in drifts if d.kind != "sound"):
        groups[what] = [d for d in drifts if d.what == what and d.kind != "sound"]
    for name, group in groups.items():
        flagged = sum(d.flagged for d in group)
        values = [_spread([d.mean for d in group]), _spread([d.std for d in group])]
        lines.append(f"| {name} | {flagged} of {len(group)} | {values[0]} | {values[1]} |")
    alarms = [
        f"{d.network}, {d.what} ({d.mean:.2f}, {d.std:.2f})" for d in groups[next(iter(groups))] if d.flagged
    ]
    return "\n".join([*lines, "", f"Sound cases flagged: {'; '.join(alarms) or 'none'}.", ""])


def _spread(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in (min(values), median(values), max(values)))


def _target(agreement: Agreement) -> str:
    return DEFECTS[agreement.defect][0] if agreement.defect else ""


def _rate(name: str, group: Sequence[Record]) -> str:
    raised = sum(r.flag == "normalization" for r in group)
    either = sum(bool(r.flag) for r in group)
    if not group:
        return f"| {name} | 0 of 0 | 0 |"
    low, high = clopper_pearson(raised, len(group))
    rate = f"{raised / len(group):.1%}, {low:.1%} to {high:.1%}"
    return f"| {name} | {raised} of {len(group)} ({rate}) | {either} |"


def _count(group: Sequence[Record]) -> str:
    return f"{sum(r.flag == 'normalization' for r in group)}/{len(group)}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values) * 100:.0f} to {max(values) * 100:.0f}" if values else ""


def _case(record: Record) -> str:
    raised = f", flag {record.flag}" if record.flag and record.kind == "fault" else ""
    gain = (record.after - record.before) * 100
    return f"{record.network}, {record.what} (cost {record.cost * 100:.0f}, gain {gain:.0f} points{raised})"
