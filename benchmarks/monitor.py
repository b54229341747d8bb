"""The drift monitor on a published network: false alarms, detection delay, accuracy estimate, overhead.

    python -m benchmarks.features --folder PUBLISHED --out FEATURES
    python -m benchmarks.monitor --features FEATURES
    python -m benchmarks.monitor --folder PUBLISHED --overhead

The monitor is `adapt.Monitor` with its defaults (a quarter of the images observed); it judges a network that
returns stored features of ResNet-20 (`benchmarks.features`).

False alarms   200 streams of 10,000 clean images and, for each, a reference of 2,000, all drawn with
               replacement from the 10,000 test images, so that reference and stream are exchangeable
Delay          reference: test images 0 to 1,999; after 2,000 clean images the stream is corrupted for up to
               8,000; 20 streams for each corruption and severity; a delay counts images of all kinds, in
               batches of 20
Accuracy       calibrated on test images 2,000 to 2,499; estimated on 3,000 to 3,999 at five severities. The
               corruption is unseen in calibration: it is left out, and in the second column its whole
               family (noise, blur, weather, digital)
Overhead       time of batches through the monitor over that of the bare network, in turns, in one process
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from benchmarks.features import KINDS, Features, Replay, read
from benchmarks.published import network, write
from benchmarks.race import quartiles, race
from trimtab import adapt
from trimtab.measure import clopper_pearson
from trimtab.norm.sensors import ImageMoments

RATE, REFERENCE, LENGTH = 0.01, 2000, 10_000
FAMILIES = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "gaussian_blur"),
    "weather": ("snow", "frost", "fog", "brightness", "spatter"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression", "saturate"),
}
SEVERITIES = (1, 2, 3, 4, 5)


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
                before = torch.randint(REFERENCE, 10_000, (2000,), generator=rng)
                after = torch.randint(10_000, 10_000 + len(corrupted.labels), (8000,), generator=rng)
                monitor = adapt.Monitor(replay, [reference], alarm_rate=RATE, seed=seed)
                for part in torch.cat([before, after]).split(20):
                    monitor(part)
                    if monitor.drift.alarm_at is not None:
                        break
                at = monitor.drift.alarm_at
                early += at is not None and at <= 2000
                found.append(float("inf") if at is None else at - 2000)
            median = statistics.median(found)
            rows.append({
                "corruption": kind, "severity": severity, "accuracy": corrupted.accuracy, "early": early,
                "found": sum(delay < 8000 for delay in found), "streams": streams,
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
    start = {cell: 10_000 + 500 * place for place, cell in enumerate(calibration)}
    labels = clean.labels[2000:2500]
    replay, rows = Replay(stored), []

    def corrupt(index: torch.Tensor, kind: str, severity: int) -> torch.Tensor:
        return index - 2000 + start[kind, severity]

    for family in FAMILIES.values():
        for kind in family:
            row: dict[tuple[int, str], float] = {}
            for left_out, without in (("corruption", (kind,)), ("family", family)):
                monitor = adapt.Monitor(replay, [torch.arange(REFERENCE)], window=1000, fraction=1.0)
                known = [(torch.arange(2000, 2500), labels)]
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


def overhead(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Seconds of a batch through the monitor over those of the bare network."""
    rows = []
    for name, side, batch in (("resnet20", 32, 128), ("efficientnet_lite0", 224, 32)):
        net = network(name, folder)
        x = torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(0))
        monitor = adapt.Monitor(net, [x.roll(k, 3) for k in range(-(-200 // batch))])
        with torch.no_grad():
            times = race(
                {"bare": lambda net=net, x=x: net(x), "monitor": lambda m=monitor, x=x: m(x)}, rounds
            )
        ratios = [own / bare for own, bare in zip(times["monitor"], times["bare"], strict=True)]
        low, middle, high = quartiles(ratios)
        seconds = statistics.median(times["bare"])
        rows.append({"network": name, "batch": batch, "rounds": rounds, "seconds": seconds,
                     "ratio": middle, "low": low, "high": high})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--features", type=Path, help="what benchmarks.features wrote")
    parser.add_argument("--folder", type=Path, help="where the published networks are, for --overhead")
    parser.add_argument("--overhead", action="store_true", help="measure only the overhead")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("docs/results/monitor.json"))
    asked = parser.parse_args()
    if asked.overhead:
        command = "python -m benchmarks.monitor --folder PUBLISHED --overhead"
        rows = overhead(asked.folder, asked.rounds)
        write(asked.out.with_name("monitor-overhead.json"), command, {"rows": rows})
        return
    found = {
        "false alarms": false_alarms(asked.features, asked.streams),
        "estimates": estimates(asked.features),
        "delays": delays(asked.features, 20),
    }
    write(asked.out, "python -m benchmarks.monitor --features FEATURES", found)


if __name__ == "__main__":
    main()
