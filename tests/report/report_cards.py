"""Cards made by hand, so that every number a report derives from them can be worked out on paper."""

from collections.abc import Mapping

from trimtab.evaluate import BNMode, Card, Flag, FrozenMode, PerBatchMode, Row, RunningMode
from trimtab.evaluate.records import (
    AttackRecord,
    BudgetRecord,
    CleanRecord,
    ConditionRecord,
    CorruptionRecord,
    Curve,
    ImagesRecord,
    NoiseRecord,
    OtherRecord,
)
from trimtab.measure.accuracy import clopper_pearson

RUNNING = RunningMode()
PER_BATCH = PerBatchMode(1.0)
FROZEN = FrozenMode(1.0, 256)
LINF = BudgetRecord("l_inf", 8 / 255)
PGD = AttackRecord("PGD", "PGD-20 (ce), l_inf 8/255, step 1/255, early stopping", LINF, 20, 1 / 255, "ce")
CURVE = AttackRecord("PGD", "PGD-100 (ce), l_inf 8/255, step 1/255, last iterate", LINF, 100, 1 / 255, "ce")
NOISE = NoiseRecord(0.1, clip=False)


def other(kind: str, label: str = "") -> OtherRecord:
    """A condition of a user's own."""
    return OtherRecord(label or kind, kind)


def corruption(name: str, severity: int = 3) -> CorruptionRecord:
    return CorruptionRecord(name, severity)


def row(
    condition: ConditionRecord,
    mode: BNMode,
    correct: int,
    n: int = 1000,
    seed: int = 0,
    figures: Mapping[str, float] | None = None,
    curve: Curve | None = None,
) -> Row:
    """A row made by hand: `correct` of the first n images."""
    return Row(
        condition=condition,
        bn_mode=mode,
        images=ImagesRecord("sample", "d1", 0, n),
        seed=seed,
        accuracy=correct / n,
        interval=clopper_pearson(correct, n),
        correct=correct,
        n=n,
        iterate="early stopping" if condition.kind == "attack" else "",
        batch_size=256 if mode.couples else None,
        figures=figures or {},
        curve=curve,
        key=f"{condition}/{mode}/{seed}",
    )


CLEAN = CleanRecord()


def card(model: str = "net", command: str | None = "trimtab evaluate file:net --data sample") -> Card:
    """Per batch: +30 points under fog, +10 under noise, -5 on clean images; frozen: nothing for certain."""
    rows = [
        row(CLEAN, RUNNING, 900),
        row(NOISE, RUNNING, 600),
        row(corruption("fog", 3), RUNNING, 400),
        row(corruption("contrast", 3), RUNNING, 500),
        row(corruption("contrast", 5), RUNNING, 300),
        row(PGD, RUNNING, 120),
        row(CURVE, RUNNING, 100, curve=Curve("iterations", ((10, 0.2), (20, 0.12), (100, 0.1)))),
        row(CLEAN, PER_BATCH, 850),
        row(NOISE, PER_BATCH, 700),
        row(corruption("fog", 3), PER_BATCH, 700),
        row(CLEAN, FROZEN, 902),
        row(corruption("fog", 3), FROZEN, 405),
    ]
    flags = (Flag("batch", "the same images differ by 4.0%", "use running statistics", PER_BATCH),)
    provenance = {
        "trimtab": "0.1.0",
        "data": "d1",
        "model": "m1",
        "command": command,
        "pixels": {"size": [28, 28]},
    }
    return Card(model, "sample", "quick", tuple(rows), flags, provenance)
