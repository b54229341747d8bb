"""The normalization check on planted faults, sound networks and corrupted images: one record per case."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.detectors.faults import SOUND, Faulty, faults
from benchmarks.detectors.networks import Case
from trimtab.data import corrupt
from trimtab.models import corrections
from trimtab.models.corrections import CHECKED, GAIN, SIGNIFICANCE, SKILL, UNLIKE, Constants

SUBSETS = 8
"""Disjoint subsets of the test images on which a sound network is checked: one of 512, the others of 128."""
SHIFTS = (("brightness", 3), ("brightness", 5), ("contrast", 3), ("contrast", 5), ("fog", 4))
SHIFTS += (("gaussian_noise", 3), ("pixelate", 4))


@dataclass(frozen=True)
class Record:
    """What the check measured on one network, fault and subset of images."""

    network: str
    family: str
    kind: str
    """"fault", "sound" or "shift" (sound, on corrupted images)."""
    what: str
    """The fault, subset or corruption."""
    n: int
    cost: float
    """Accuracy that the fault costs on these images."""
    before: float
    """Accuracy as given."""
    constant: float
    """The fraction of images with the most common label."""
    after: float
    """Accuracy with the best correction."""
    correction: str
    p_value: float
    unlike: float
    """How far the images' mean and std are from those of ordinary images."""
    resembled: bool
    """Whether images of another kind could have the same effect as the fault that the correction undoes."""

    @property
    def flag(self) -> str:
        """The flag that these numbers raise: "normalization", "shift" or none ("")."""
        skill = corrections.skill(self.after, self.constant)
        if self.after - self.before < GAIN or self.p_value >= SIGNIFICANCE or skill < SKILL:
            return ""
        return "normalization" if not self.resembled or self.unlike <= UNLIKE else "shift"


def records(case: Case, folder: Path, cached: bool = False) -> list[Record]:
    """All records of a network: those in its file in the cache, and the others measured now.

    Args:
        case: the network and its images.
        folder: where records are kept; one file per network, written after each record.
        cached: whether to leave out what has not been measured.
    """
    name = "".join(c if c.isalnum() else "-" for c in case.name)
    path = folder / f"normalization-{name}.json"
    stored = [Record(**fields) for fields in json.loads(path.read_text())] if path.exists() else []
    if cached:
        return stored
    done = {(record.kind, record.what): record for record in stored}
    for (kind, what), measure in _planned(case):
        if (kind, what) not in done:
            done[kind, what] = measure()
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_file = path.with_suffix(".part")
            partial_file.write_text(json.dumps([asdict(record) for record in done.values()]))
            partial_file.rename(path)
    return list(done.values())


def _planned(case: Case) -> Iterator[tuple[tuple[str, str], Callable[[], Record]]]:
    """The kind and name of each record of a network, and how to measure it; sound ones first."""
    images, spec = case.images, case.images.spec
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    large = images.take(order[:CHECKED])
    planted = faults(case)
    sound = Faulty(case.net, planted.pop(SOUND))
    known = {"the images": (tuple(spec.mean), tuple(spec.std))}
    record = partial(_record, case, known=known)
    yield ("sound", "subset 0"), partial(record, "sound", "subset 0", sound, large.x, large.y)
    for subset in range(1, SUBSETS):
        start = CHECKED + 128 * (subset - 1)
        if start + 128 <= len(images):
            x, y, _ = images.take(order[start : start + 128])
            what = f"subset {subset}"
            yield ("sound", what), partial(record, "sound", what, sound, x, y)
    best = _accuracy(sound, large.x, large.y)
    for what, receives in planted.items():
        model = Faulty(case.net, receives)
        yield ("fault", what), partial(record, "fault", what, model, large.x, large.y, best=best)
    for name, severity in SHIFTS if len(images) > 1000 else ():
        what = f"{name} {severity}"
        x = corrupt(large.x, name, severity, seed=0, ids=large.ids)
        yield ("shift", what), partial(record, "shift", what, sound, x, large.y)


def _record(
    case: Case,
    kind: str,
    what: str,
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    known: dict[str, Constants],
    best: float | None = None,
) -> Record:
    options = corrections.corrections(x.shape[1], known)
    as_given, corrected = corrections.compare(lambda part: _logits(model, part), x, y, options)
    most = int(corrected.sum(1).argmax())
    row, best_option = corrected[most], options[most]
    before, after = float(as_given.double().mean()), float(row.double().mean())
    return Record(
        network=case.name,
        family=case.family,
        kind=kind,
        what=what,
        n=len(x),
        cost=0.0 if best is None else best - before,
        before=before,
        constant=float((y == y.mode().values).double().mean()),
        after=after,
        correction=best_option.name,
        p_value=len(options) * corrections.p_better(row, as_given),
        unlike=corrections.unlike_constants(x, corrections.references(x.shape[1], known)),
        resembled=best_option.advice in (corrections.MISSING, corrections.TWICE, corrections.OTHER),
    )


@torch.no_grad()
def _logits(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(128)])


def _accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((_logits(model, x).argmax(1) == y).double().mean())
