"""What was measured, written down: lines for a terminal, JSON for scripts, Markdown for the docs.

With the numbers go the machine, the version of torch, the threads and the commit; no date, so that nothing
but a measurement changes the files.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import growth
from benchmarks.race import Asked, Row, Skipped
from trimtab.io import atomic_write

ROOT = Path(__file__).parents[1]


def circumstances(asked: Asked, sections: Sequence[str]) -> dict[str, Any]:
    """Where, how and of what the numbers are."""
    cpu, info = platform.machine(), Path("/proc/cpuinfo")
    if info.exists():
        names = [
            text.partition(":")[2].strip() for text in info.read_text().splitlines() if "model name" in text
        ]
        cpu = names[0] if names else cpu
    words = ["python -m benchmarks", *sections, f"--rounds {asked.rounds} --threads {asked.threads}"]
    words += ["--quick"] * asked.quick
    words += [f"--{kind} {name}" for kind in ("standard", "robust") if (name := getattr(asked, kind))]
    words += ["--published FOLDER"] * (asked.published is not None)
    return {
        "command": " ".join(words),
        "machine": f"{cpu}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__,
        "threads": asked.threads,
        "commit": commit(),
    }


def commit() -> str:
    """The commit that was measured, and whether the code differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (", with changes" if changed else "")


def line(row: Row) -> str:
    """A row for a terminal."""
    low, high = row.spread
    found = f"{row.ratio:8.3f}  [{low:.3f}, {high:.3f}]"
    return f"{row.section:<12}{row.what:<72}{found:<28}{row.wanted:<9}{row.verdict}".rstrip()


def as_json(rows: Sequence[Row], skipped: Sequence[Skipped], about: Mapping[str, Any]) -> str:
    found = [asdict(row) | {"seconds": _named(row), "met": row.met} for row in rows]
    why = {one.section: one.why for one in skipped}
    return json.dumps({"about": about, "rows": found, "skipped": why}, indent=1)


def markdown(rows: Sequence[Row], skipped: Sequence[Skipped], about: Mapping[str, Any]) -> str:
    lines = [
        "# Speed",
        "",
        f"`{about['command']}` on {about['machine']}; torch {about['torch']}, {about['threads']} threads, "
        f"commit {about['commit']}. Wall clock, contestants in turns; ratios of medians, with the quartiles "
        "of the ratios within each round. What is compared, and why that is fair, stands at the top of each "
        "section's file in `benchmarks/`.",
    ]
    for section in dict.fromkeys(row.section for row in rows):
        lines += [
            "",
            f"## {section}",
            "",
            "| what | ratio | quartiles | wanted | | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            if row.section == section:
                low, high = row.spread
                times = ", ".join(f"{name} {q.median:.3g}" for name, q in row.seconds.items())
                cells = (
                    row.what,
                    f"{row.ratio:.3f}",
                    f"{low:.3f} to {high:.3f}",
                    row.wanted,
                    row.verdict,
                    times,
                )
                lines.append("| " + " | ".join(cells) + " |")
    lines += [line for one in skipped for line in ("", f"## {one.section}", "", f"Skipped: {one.why}.")]
    return "\n".join(lines) + "\n"


def write(out: Path, rows: Sequence[Row], skipped: Sequence[Skipped], about: Mapping[str, Any]) -> list[Path]:
    """OUT.md and OUT.json, each whole or not at all, and the picture of growth if it was measured."""
    found = {".md": markdown(rows, skipped, about), ".json": as_json(rows, skipped, about) + "\n"}
    files = [out.with_name(out.name + ending) for ending in found]
    for path, text in zip(files, found.values(), strict=True):
        with atomic_write(path) as part:
            part.write_text(text)
    grown = [row for row in rows if row.section == "growth"]
    return files + (growth.picture(grown, out.parent) if grown else [])


def _named(row: Row) -> dict[str, dict[str, float]]:
    return {name: q._asdict() for name, q in row.seconds.items()}
