"""The drift monitor on a published network: false alarms, detection delay, accuracy estimate.

    python -m benchmarks.features --folder PUBLISHED --out FEATURES
    python -m benchmarks.monitor --features FEATURES [--only "false alarms" estimates delays]

The monitor is `adapt.Monitor` with its defaults (a quarter of the images observed); it judges a network that
returns stored features of ResNet-20 (`benchmarks.features`).

False alarms   200 streams of 10,000 clean images and, for each, a reference of 2,000, all drawn with
               replacement from the 10,000 test images, so that reference and stream are exchangeable
Delay          reference: test images 0 to 1,999; after 500 clean images the stream is corrupted for up to
               4,000; 5 streams for each corruption and severity; a delay counts all images, observed or
               not, in batches of 20
Accuracy       calibrated on test images 2,000 to 2,499 at severities 1, 3 and 5; estimated on 3,000 to 3,499
               at five severities. The corruption is unseen in calibration: it is left out, and in the
               second column its whole family (noise, blur, weather, digital)

Overhead is timed by `trimtab bench statistics`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from benchmarks.features import CALIBRATE, KINDS, Features, Replay, read
from benchmarks.published import write
from trimtab import adapt
from trimtab.measure import clopper_pearson
from trimtab.norm.sensors import ImageMoments

RATE, REFERENCE, LENGTH = 0.01, 2000, 10_000
CLEAN, CORRUPTED = 500, 4000
"""Images of a stream before and after the change."""
FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
}
SEVERITIES = (1, 2, 3, 4, 5)
SIZE = CALIBRATE.stop - CALIBRATE.start


def joined(*parts: Features) -> Features:
    moments = {
        name: ImageMoments(*(torch.cat([p.moments[name][half] for p in parts]) for half in (0, 1)))
        for name in parts[0].moments
    }
    logits, labels = (torch.cat([getattr(p, kind) for p in parts]) for kind in ("logits", "labels"))
    return Features(moments, logits, labels)


@torch.no_grad()
def false_alarms(folder: Path, streams: int) -> dict[str, Any]:
    """Alarms on clean streams, each with a reference of its own."""
    replay, alarms, evidence = Replay(read(folder, "test")), 0, []
    for seed in range(streams):
        rng = torch.Generator().manual_seed(seed)
        index = torch.randint(10_000, (REFERENCE + LENGTH,), generator=rng)
        monitor = adapt.Monitor(replay, [index[:REFERENCE]], alarm_rate=RATE, seed=seed)
        for part in index[REFERENCE:].split(1000):
            monitor(part)
        status = monitor.status()
        alarms += status.alarm
        evidence.append(status.evidence)
        if seed % 20 == 19:
            print(f"{seed + 1} clean streams: {alarms} alarms", flush=True)
    return {
        "streams": streams, "images": LENGTH, "alarm_rate": RATE, "alarms": alarms,
        "interval": clopper_pearson(alarms, streams),
        "p_value": float(stats.binomtest(alarms, streams, RATE, alternative="greater").pvalue),
        "median evidence": statistics.median(evidence),
    }  # fmt: skip


@torch.no_grad()
def delays(folder: Path, streams: int) -> list[dict[str, Any]]:
    """Images from the change to the alarm, for each corruption and severity."""
    clean, rows = read(folder, "test"), []
    for kind in KINDS:
        for severity in SEVERITIES:
            corrupted = read(folder, "estimate", kind, severity)
            replay, found, early = Replay(joined(clean, corrupted)), [], 0
            reference = torch.arange(REFERENCE)
            for seed in range(streams):
                rng = torch.Generator().manual_seed(seed)
                before = torch.randint(REFERENCE, 10_000, (CLEAN,), generator=rng)
                after = torch.randint(10_000, len(replay.features.labels), (CORRUPTED,), generator=rng)
                monitor = adapt.Monitor(replay, [reference], alarm_rate=RATE, seed=seed)
                for part in torch.cat([before, after]).split(20):
                    monitor(part)
                    if monitor.drift.alarm_at is not None:
                        break
                at = monitor.drift.alarm_at
                early += at is not None and at <= CLEAN
                found.append(float("inf") if at is None else at - CLEAN)
            median = statistics.median(found)
            rows.append({
                "corruption": kind, "severity": severity, "accuracy": corrupted.accuracy, "early": early,
                "found": sum(delay <= CORRUPTED for delay in found), "streams": streams,
                "median": None if median == float("inf") else median,
            })  # fmt: skip
        print(kind, [row["median"] for row in rows[-5:]], flush=True)
    return rows


@torch.no_grad()
def estimates(folder: Path) -> list[dict[str, Any]]:
    """True and estimated accuracy under every corruption, which the calibration did not see."""
    clean = read(folder, "test")
    calibration = {(k, s): read(folder, "calibrate", k, s) for k in KINDS for s in (1, 3, 5)}
    stored = joined(clean, *calibration.values())
    start = {cell: 10_000 + SIZE * place for place, cell in enumerate(calibration)}
    labels = clean.labels[CALIBRATE]
    replay, rows = Replay(stored), []

    def corrupt(index: torch.Tensor, kind: str, severity: int) -> torch.Tensor:
        return index - CALIBRATE.start + start[kind, severity]

    for family in FAMILIES.values():
        for kind in family:
            row: dict[tuple[int, str], float] = {}
            for left_out, without in (("corruption", (kind,)), ("family", family)):
                monitor = adapt.Monitor(replay, [torch.arange(REFERENCE)], window=1000, fraction=1.0)
                known = [(torch.arange(10_000)[CALIBRATE], labels)]
                monitor.calibrate(known, corrupt, [k for k in KINDS if k not in without])
                for severity in SEVERITIES:
                    shown = read(folder, "estimate", kind, severity)
                    monitor.drift.average = None
                    monitor.drift.observed = 0
                    replay.features = shown
                    monitor(torch.arange(len(shown.labels)))
                    replay.features = stored
                    row[severity, left_out] = monitor.drift.accuracy() or 0.0
            for severity in SEVERITIES:
                true = read(folder, "estimate", kind, severity).accuracy
                rows.append({"corruption": kind, "severity": severity, "accuracy": true,
                             "estimate": row[severity, "corruption"],
                             "estimate without the family": row[severity, "family"]})  # fmt: skip
    return rows


def main() -> None:
    parts: dict[str, Callable[[Path], Any]] = {
        "false alarms": lambda folder: false_alarms(folder, 200),
        "estimates": estimates,
        "delays": lambda folder: delays(folder, 5),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--features", type=Path, required=True, help="what benchmarks.features wrote")
    parser.add_argument("--only", nargs="*", default=list(parts), choices=list(parts))
    parser.add_argument("--out", type=Path, default=Path("docs/results/monitor.json"))
    asked = parser.parse_args()
    stored = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    found = {name: stored[name] for name in parts if name in stored}
    for name in asked.only:
        found[name] = parts[name](asked.features)
        write(asked.out, "python -m benchmarks.monitor --features FEATURES", found)


if __name__ == "__main__":
    main()
