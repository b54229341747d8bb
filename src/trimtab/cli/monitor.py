"""`trimtab monitor`: watch the statistics of a stream of images for drift."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from trimtab.cli.lazy import adapt, console, data, norm
from trimtab.cli.options import FloatOrRatio, OnImages, OptionalPath, OptionalStr, first, parse_corruption
from trimtab.types import BadInput, at_least


@dataclass(frozen=True)
class MonitorCommand(OnImages):
    """Watch a stream of images for drift of the normalization statistics.

    Raises an alarm (falsely with at most the probability --alarm-rate), names the layers and channels that
    moved, and estimates the accuracy that was lost (--calibrate). Images are read in their stored order,
    which must not be sorted by class.

      monitor zoo:cifar10-standard --data cifar10
      monitor zoo:cifar10-standard --data cifar10 --corruption fog:4 --calibrate
      monitor file:mine --data folder:today --reference folder:held-out --state mine.state --log log.jsonl

    With --state the next call continues where this one ended, and needs no reference. A call that is
    killed does not change the state: run it again.
    """

    data: str = "sample"
    """The stream (`trimtab data list`)."""
    reference: OptionalStr = None
    """Held-out clean images, not training images; if not given, the first --reference-images of --data, which
    are then not monitored."""
    reference_split: Annotated[str, tyro.conf.arg(help="The part of --reference to take.")] = "test"
    reference_images: int = 500
    """Number of reference images."""
    calibrate: tyro.conf.FlagCreatePairsOff[bool] = False
    """Fit the accuracy estimate on the reference images, which need labels, under 19 corruptions."""
    packs: tuple[Path, ...] = ()
    """Packs of other domains; the result names the one that fits the stream."""
    corruption: OptionalStr = None
    """Corrupt the stream with NAME:SEVERITY, as a trial."""
    alarm_rate: FloatOrRatio = 0.01
    """Upper bound on the probability of ever raising a false alarm."""
    fraction: FloatOrRatio = 0.25
    """Fraction of the images to observe."""
    state: OptionalPath = None
    """Where the state is kept between calls."""
    log: OptionalPath = None
    """Append a JSON line here after every --every images."""
    every: int = 500
    """Number of images between two lines of the log."""
    html: OptionalPath = None
    """Write a page with charts here."""
    batch_size: int = 128
    strict: Annotated[
        tyro.conf.FlagCreatePairsOff[bool], tyro.conf.arg(help="Exit with 1 if there is an alarm.")
    ] = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        sizes = {
            "reference-images": self.reference_images,
            "every": self.every,
            "batch-size": self.batch_size,
        }
        at_least(1, **{f"--{name}": size for name, size in sizes.items()})
        if self.html is not None:
            from trimtab.report.page import require_folder

            require_folder(self.html)
        model, images = self.load_model_and_images()
        monitor, images = self._monitor(model, first(images, self.limit))
        rows = self._read_log(monitor)
        with console.progress(f"monitoring {self.data}") as update:
            for done in self._stream(monitor, images):
                update(done, len(images))
                if done % self.every < self.batch_size or done == len(images):
                    rows.append(monitor.status().to_json())
                    self._append(rows[-1])
        status = monitor.status()
        if self.state is not None:
            monitor.save(self.state)
        if self.html is not None:
            from trimtab.report.monitored import page

            page(rows, self.html, f"{self.model} on {self.data}", self.alarm_rate)
        if self.json:
            console.as_json({**self._measured(model, images), **status.to_json()})
        else:
            self._print(status)
        return int(self.strict and status.alarm)

    def _measured(self, model: Any, images: Any) -> dict[str, Any]:
        from trimtab.evaluate.stored_images import preprocessing

        return {
            **{"model": self.model, "data": self.data, "split": self.split, "digest": images.digest},
            **{"corruption": self.corruption, "batch_size": self.batch_size, "seed": self.seed},
            "preprocessing": preprocessing(model, images),
        }

    def _monitor(self, model: Any, images: Any) -> tuple[Any, Any]:
        """Return a monitor, new or continued, and the images that are left to monitor."""
        packs = {path.stem: path for path in self.packs}
        if self.state is not None and self.state.exists():
            return adapt.Monitor.load(model, self.state, packs), images
        if self.reference is None:
            if len(images) <= self.reference_images:
                raise BadInput(
                    f"the first {self.reference_images} of {len(images)} images are the reference, and none "
                    "is left to monitor; give --reference or fewer --reference-images"
                )
            reference = images.subset(slice(0, self.reference_images))
            images = images.subset(slice(self.reference_images, None))
        else:
            held_out = data.load(self.reference, self.reference_split, input=model.spec)
            reference = first(held_out, self.reference_images)
        batches = [(batch.x, batch.y) for batch in reference.batches(self.batch_size)]
        monitor = adapt.Monitor(
            model, batches, alarm_rate=self.alarm_rate, fraction=self.fraction, packs=packs, seed=self.seed
        )
        if self.calibrate:
            self._calibrate(monitor, batches)
        return monitor, images

    def _calibrate(self, monitor: Any, batches: Any) -> None:
        from trimtab.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS

        kinds, severities = (*CORRUPTIONS, *EXTRA_CORRUPTIONS), (1, 3, 5)
        total, done = len(batches) * len(kinds) * len(severities), 0
        with console.progress("calibrating") as update:

            def corrupt(x: Any, kind: str, severity: int) -> Any:
                nonlocal done
                done += 1
                update(done, total)
                return data.corrupt(x, kind, severity, self.seed)

            monitor.calibrate(batches, corrupt, kinds, severities)

    def _stream(self, monitor: Any, images: Any) -> Iterator[int]:
        """Run the images through the monitor; yield the number of images done after each batch."""
        import torch

        corrupted = None if self.corruption is None else parse_corruption(self.corruption)
        done = 0
        monitor.eval()
        for batch in images.batches(self.batch_size):
            x = batch.x
            if corrupted is not None:
                x = data.corrupt(x, *corrupted, self.seed, batch.ids)
            with torch.no_grad():
                monitor(norm.images_for(monitor.model, x))
            done += len(x)
            yield done

    def _read_log(self, monitor: Any) -> list[dict[str, Any]]:
        """Return the lines of the log up to the state; lines after it, of a killed call, are removed."""
        from trimtab.io import atomic_write, reading

        if self.log is None or not self.log.exists():
            return []
        with reading(self.log, "a log of JSON lines"):
            rows = [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]
            rows = [row for row in rows if row["images"] <= monitor.drift.images]
        with atomic_write(self.log) as part:
            part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return rows

    def _append(self, row: dict[str, Any]) -> None:
        from trimtab.io import readable_errors

        if self.log is not None:
            with readable_errors(self.log), open(self.log, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def _print(self, status: Any) -> None:
        title = f"{self.model} on {self.data}: {status.images:,} images, {status.observed:,} of them observed"
        moved: dict[str, list[str]] = {}
        for name, channel, shift in status.channels:
            moved.setdefault(name, []).append(f"{channel} ({shift:+.2f})")
        rows = [[name, f"{shift:.2f} std", ", ".join(moved.get(name, []))] for name, shift in status.layers]
        console.table(title, ["layer", "shift", "channels that moved most"], rows, right=[1])
        lines = [f"Evidence of drift {status.evidence:.3g}; an alarm is raised at {1 / self.alarm_rate:g}."]
        if status.accuracy is not None:
            lost, error = 100 * status.accuracy_lost, 100 * status.accuracy_error
            lines.append(
                f"Estimated accuracy of the latest images {status.accuracy:.1%}, {lost:.1f} points below "
                f"that of clean ones; the mean error of such estimates is {error:.1f} points."
            )
        lines.append(f"{status.advice[0].upper()}{status.advice[1:]}.")
        for line in lines:
            console.say(line)
