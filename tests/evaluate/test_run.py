"""Runs: right numbers, nothing measured twice, and the same result whatever the batch size.

Also tests evaluate.bn_modes, evaluate.card, evaluate.certified, evaluate.chunks, evaluate.conditions,
evaluate.driver, evaluate.engine, evaluate.progress, evaluate.request, evaluate.stored_images,
evaluate.suites.
"""

import copy
import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import trimtab
from nets import Net, trained
from trimtab import adapt, data, models, norm
from trimtab.attacks import APGD, EOT, FGSM, PGD, AutoAttack, CurvePGD, Linf, ThroughBatch
from trimtab.data import Batch
from trimtab.data.corruptions import corrupt
from trimtab.data.embedded import sample
from trimtab.evaluate import (
    Attacked,
    BranchMode,
    Clean,
    Condition,
    Corrupted,
    EvaluationStatus,
    FrozenMode,
    Noise,
    PerBatchMode,
    RunningMode,
    Store,
    cells,
    engine,
    images,
    rescore,
    run,
)
from trimtab.evaluate.bn_modes import BNMode
from trimtab.evaluate.card import Row
from trimtab.evaluate.certified import Certified
from trimtab.evaluate.records import CleanRecord
from trimtab.evaluate.trust import health
from trimtab.runtime import fingerprint
from trimtab.types import BadInput, InputSpec

WEAK = PGD(Linf("8/255"), steps=5, early_stop=True)


def ledger(model: nn.Module, condition: Condition, store: Store, n: int, **how: object) -> dict[str, Tensor]:
    subject = cells.Subject(model, sample(), store, **how)  # type: ignore[arg-type]
    return engine.measure(cells.Cell(subject, condition, RunningMode(), 0, n))


def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def test_rows_hold_what_a_plain_loop_finds(store: Store) -> None:
    model, few = trained(), sample().subset(slice(0, 200))
    x, y, ids = few.take(torch.arange(200))
    card = run(model, few, [Clean(), Corrupted("contrast", 3), FGSM()], store=store, chunk=64, examine=False)
    expected = [
        by_hand(model, x, y),
        by_hand(model, corrupt(x, "contrast", 3, seed=0, ids=ids), y),
        by_hand(model, FGSM()(model, x, y), y),
    ]
    assert [row.accuracy for row in card.rows] == expected
    assert [row.kind for row in card.rows] == ["clean", "corruption", "attack"]
    assert all(row.n == 200 and row.interval[0] < row.accuracy < row.interval[1] for row in card.rows)


def test_noise_has_the_deviation_it_says() -> None:
    x = torch.full((4, 1, 64, 64), 0.5)
    shown = Noise("0.1").shown(Batch(x, torch.zeros(4).long(), torch.arange(4)), seed=0)
    assert float((shown - x).std()) == pytest.approx(0.1, rel=0.02)
    assert float((shown - x).mean()) == pytest.approx(0, abs=0.005)


@dataclass(frozen=True)
class Counted(Condition):
    """A condition from outside: it counts its calls, and may be told to fail."""

    kind: ClassVar[str] = "counted"
    asked: ClassVar[list[int]] = []
    fails_at: ClassVar[int | None] = None

    def columns(self, model: nn.Module, batch: Batch, seed: int) -> dict[str, Tensor]:
        if Counted.fails_at in batch.ids.tolist():
            raise RuntimeError("power cut")
        Counted.asked.extend(batch.ids.tolist())
        return {"correct": batch.ids % 2 == 0, "size": batch.ids.double()}

    def figures(self, columns: dict[str, Tensor]) -> dict[str, float]:
        return {"size": float(columns["size"].mean())}

    def __str__(self) -> str:
        return "counted"


@pytest.fixture
def counted() -> Counted:
    Counted.asked, Counted.fails_at = [], None
    return Counted()


def test_a_condition_from_outside_needs_no_change_elsewhere(store: Store, counted: Counted) -> None:
    (row,) = run(trained(), sample(), [counted], store=store, limit=100, chunk=32).rows
    assert (row.accuracy, row.figures["size"], row.kind) == (0.5, 49.5, "counted")


def test_finished_chunks_are_never_measured_again(store: Store, counted: Counted) -> None:
    Counted.fails_at = 70
    with pytest.raises(RuntimeError, match="power cut"):
        run(trained(), sample(), [counted], store=store, limit=100, chunk=32)
    assert Counted.asked == list(range(64))
    Counted.fails_at = None
    first = run(trained(), sample(), [counted], store=store, limit=100, chunk=32)
    assert Counted.asked == list(range(100))
    assert run(trained(), sample(), [counted], store=store, limit=100, chunk=32).json() == first.json()
    run(trained(), sample(), [counted], store=store, limit=70, chunk=32)  # part of a chunk that is there
    assert Counted.asked == list(range(100))
    run(
        trained(), sample(), [counted], store=store, limit=140, chunk=32
    )  # only what is beyond the last whole one
    assert Counted.asked == [*range(100), *range(96, 140)]


def test_a_lost_file_is_measured_again(store: Store, counted: Counted) -> None:
    first = run(trained(), sample(), [counted], store=store, limit=100, chunk=32)
    for place in store.samples.rglob("*.safetensors"):
        place.unlink()
    assert run(trained(), sample(), [counted], store=store, limit=100, chunk=32).json() == first.json()
    assert Counted.asked == [*range(100), *range(100)]


def test_other_weights_seeds_and_data_are_other_cells(store: Store, counted: Counted) -> None:
    other = Net(sample().spec)
    for model, images_, seed in (
        (trained(), sample(), 0),
        (other, sample(), 0),
        (trained(), sample("train"), 0),
        (trained(), sample(), 1),
    ):
        run(model, images_, [counted], store=store, limit=10, seed=seed)
    assert len(Counted.asked) == 40


def test_the_batch_size_does_not_change_a_ledger_in_float64(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = Net(sample().spec).double()
    model.load_state_dict(trained().state_dict())
    small, large = (
        ledger(model, Attacked(WEAK), Store(tmp_path_factory.mktemp("s") / "s"), 256, batch_size=size)
        for size in (16, 256)
    )
    assert small.keys() == large.keys() == {"correct", "broken_at"}
    assert all(torch.equal(small[name], large[name]) for name in small)


def test_the_batch_size_changes_at_most_one_image_in_a_thousand_in_float32(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = (
        ledger(trained(), Attacked(WEAK), Store(tmp_path_factory.mktemp("s") / "s"), 1000, batch_size=size)
        for size in (16, 256)
    )
    differ = int((small["correct"] != large["correct"]).sum())
    with capsys.disabled():
        print(f"\nbatches of 16 and 256: {differ} of 1000 images differ in float32")
    assert differ <= 1


def test_norm_states_measure_what_their_functions_make(store: Store) -> None:
    model = trimtab.steer(Net(sample().spec))
    model.load_state_dict(trained().state_dict())
    trimtab.add_branch(model, "adv", copy_of="main")
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".branches.adv." in name and name.endswith("weight"):
                tensor.mul_(0.5)
    dark = Corrupted("brightness", 5)
    few = sample().subset(slice(0, 128))
    x, y, ids = few.take(torch.arange(128))
    shown = corrupt(x, "brightness", 5, seed=0, ids=ids)
    states = (RunningMode(), BranchMode("adv"), PerBatchMode(), FrozenMode(images=16))
    card = run(model, few, [dark], store=store, bn_modes=states, chunk=64)
    with trimtab.use(model.eval(), branch="adv"):
        on_branch = by_hand(model, shown, y)
    per_batch = adapt.per_batch(model)
    by_batches = (by_hand(per_batch, shown[:64], y[:64]) + by_hand(per_batch, shown[64:], y[64:])) / 2
    frozen = by_hand(adapt.frozen(model, shown[:16]), shown, y)
    found = {row.bn_mode: row.accuracy for row in card.rows}
    assert list(found.values()) == [by_hand(model, shown, y), on_branch, by_batches, frozen]
    assert {flag.bn_mode for flag in card.flags if flag.name == "batch"} == {PerBatchMode()}


def test_where_a_batch_is_coupled_its_size_is_part_of_the_key(store: Store) -> None:
    def key(state: BNMode, condition: Condition, chunk: int, batch_size: int) -> str:
        subject = cells.Subject(trained(), sample(), store, chunk=chunk, batch_size=batch_size)
        return cells.Cell(subject, condition, state, 0, 256).key

    assert key(RunningMode(), Clean(), 64, 16) == key(RunningMode(), Clean(), 128, 32)
    assert key(PerBatchMode(), Clean(), 64, 16) == key(PerBatchMode(), Clean(), 64, 32)
    assert key(PerBatchMode(), Clean(), 64, 16) != key(PerBatchMode(), Clean(), 128, 16)
    through = Attacked(ThroughBatch(WEAK))
    assert key(RunningMode(), through, 64, 16) != key(RunningMode(), through, 128, 16)


def test_kept_images_score_to_the_printed_number(store: Store) -> None:
    model, suite = trained(), [FGSM(), WEAK]
    run(
        model, sample(), suite, store=store, limit=300, examine=False
    )  # without images first: they are then made
    card = run(model, sample(), suite, store=store, limit=300, keep_images=True, examine=False)
    for row, attack in zip(card.rows, suite, strict=True):
        assert rescore(model, sample(), row, store).correct == row.correct
        for (start, stop), x in images(row, store):
            far = (x - sample().take(torch.arange(start, stop)).x).abs().max()
            assert 0 < float(far) <= attack.budget.radius + 1e-6


def test_seeds_may_be_numpys(store: Store) -> None:
    card = run(trained(), sample(), [Clean()], store, limit=10, seed=np.int64(4), examine=False)
    assert [row.seed for row in card.rows] == [4]


def test_kept_images_are_judged_in_the_state_that_they_were_made_for(store: Store) -> None:
    how = {"limit": 32, "keep_images": True, "examine": False, "force": True}
    for state in (PerBatchMode(), FrozenMode(images=32)):
        (row,) = run(trained(), sample(), [FGSM()], store, bn_modes=[state], **how).rows  # type: ignore[arg-type]
        assert rescore(trained(), sample(), row, store, state).correct == row.correct
        assert rescore(trained(), sample(), row, store).correct == row.correct


class OneLogit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :1]


@dataclass(frozen=True)
class Rogue:
    """An attack of somebody else's that does not keep to what it says."""

    how: str
    budget: Linf = field(default_factory=lambda: Linf("8/255"))
    version: ClassVar[int] = 1

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> object:
        return {
            "far": (x + 0.1).clamp(0, 1),
            "outside": x - 5,
            "nan": x * float("nan"),
            "short": x[:1],
            "nothing": None,
            "fair": (x + 8 / 255).clamp(0, 1),
        }[self.how]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("far", "left its budget: 0.1"),
        ("outside", r"pixels from -5 to .*; they must lie in \[0, 1\]"),
        ("nan", "pixels from nan"),
        ("short", r"returned \(1, "),
        ("nothing", "returned a NoneType"),
    ],
)
def test_an_attack_of_somebody_else_is_not_believed_blindly(how: str, told: str, store: Store) -> None:
    with pytest.raises(BadInput, match=told):
        run(trained(), sample(), [Rogue(how)], store, limit=8, examine=False)
    assert run(trained(), sample(), [Rogue("fair")], store, limit=8, examine=False).rows[0].n == 8


def test_images_that_were_not_kept_are_missed_by_name(store: Store) -> None:
    card = run(trained(), sample(), [FGSM()], store=store, limit=20, examine=False)
    with pytest.raises(BadInput, match="keep_images=True"):
        rescore(trained(), sample(), card.rows[0], store)


def spans_of_images(row: Row, store: Store) -> list[tuple[int, int]]:
    found = [(span, x) for span, x in images(row, store)]
    assert all(len(x) == stop - start for (start, stop), x in found)
    return [span for span, _ in found]


def test_kept_images_follow_a_limit_that_grows_and_shrinks(store: Store) -> None:
    rows = {}
    for limit in (10, 12, 9):
        (rows[limit],) = run(
            trained(), sample(), [FGSM()], store, limit=limit, chunk=8, keep_images=True, examine=False
        ).rows
    for limit, row in rows.items():
        assert spans_of_images(row, store) == [(0, 8), (8, limit)]
        assert rescore(trained(), sample(), row, store).correct == row.correct


def test_kept_images_are_found_whatever_chunks_they_lie_in(store: Store) -> None:
    for limit, chunk, kept in ((12, 16, False), (5, 5, True), (12, 8, True), (14, 7, True)):
        card = run(
            trained(), sample(), [FGSM()], store, limit=limit, chunk=chunk, keep_images=kept, examine=False
        )
    (row,) = card.rows
    spans = spans_of_images(row, store)
    assert [at for start, stop in spans for at in range(start, stop)] == list(range(14))
    assert rescore(trained(), sample(), row, store).correct == row.correct


def test_images_of_a_batch_that_belongs_together_are_those_of_that_batch(store: Store) -> None:
    def measured(limit: int, kept: bool) -> Row:
        how = {"bn_modes": [PerBatchMode()], "chunk": 8, "keep_images": kept, "examine": False}
        return run(trained(), sample(), [FGSM()], store, limit=limit, force=True, **how).rows[0]  # type: ignore[arg-type]

    short, long = measured(10, False), measured(12, True)
    assert spans_of_images(long, store) == [(0, 8), (8, 12)]
    assert rescore(trained(), sample(), long, store, PerBatchMode()).correct == long.correct
    with pytest.raises(BadInput, match="keep_images=True"):
        rescore(trained(), sample(), short, store, PerBatchMode())
    assert rescore(trained(), sample(), measured(10, True), store, PerBatchMode()).correct == short.correct


def test_keeping_images_forgets_nothing_that_was_measured_without_them(store: Store) -> None:
    def chunks(limit: int, kept: bool) -> set[tuple[int, int]]:
        how = {"chunk": 8, "keep_images": kept, "examine": False}
        (row,) = run(trained(), sample(), [FGSM()], store, limit=limit, **how).rows  # type: ignore[arg-type]
        if kept:
            assert rescore(trained(), sample(), row, store).correct == row.correct
        return set(store.chunks(row.key))

    assert chunks(8, kept=False) == {(0, 8)}
    assert chunks(4, kept=True) == {(0, 4), (0, 8)}
    assert chunks(8, kept=True) == {(0, 4), (0, 8)}  # with images, in place of the one without


def test_a_curve_is_one_run_with_its_step_printed(store: Store) -> None:
    long = CurvePGD(Linf("8/255"), steps=20, step_size="1/255", marks=(5, 20))
    (row,) = run(trained(), sample(), [long], store=store, limit=100, examine=False).rows
    assert row.curve is not None
    after = dict(row.curve.points)
    assert after[20] == row.accuracy <= after[5]
    assert row.condition.step_size == 1 / 255
    assert row.iterate == "last iterate"


def test_a_run_leaves_no_trace(store: Store) -> None:
    model = trimtab.steer(Net(sample().spec)).train()
    model.net[1].eval()
    model.net[0].weight.grad = torch.ones_like(model.net[0].weight)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    drawn = torch.get_rng_state()
    run(model, sample(), store=store, limit=32, bn_modes=(RunningMode(), PerBatchMode()))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(model.net[0].weight.grad, torch.ones_like(model.net[0].weight))
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_stream_is_refused_because_it_would_depend_on_what_came_before(store: Store) -> None:
    stream = adapt.stream(trained())
    stream(sample().take(torch.arange(100, 116)).x)
    state = {name: value.clone() for name, value in stream.state_dict().items()}
    with pytest.raises(BadInput, match="a stream learns from what it is shown"):
        run(stream, sample(), [Clean()], store=store, limit=24, examine=False)
    with pytest.raises(BadInput, match="a stream learns from what it is shown"):
        run(nn.Sequential(stream), sample(), [Clean()], store=store, limit=24, examine=False)
    assert stream.seen == 16
    assert all(torch.equal(value, state[name]) for name, value in stream.state_dict().items())


def test_progress_ends_complete_and_its_bounds_close_on_the_accuracy(store: Store) -> None:
    told: list[EvaluationStatus] = []
    card = run(trained(), sample(), [Clean(), WEAK], store=store, limit=100, chunk=32, progress=told.append)
    assert told[-1].done == told[-1].total
    assert [p.done for p in told] == sorted(p.done for p in told)
    clean = [p for p in told if p.condition == CleanRecord()]
    assert clean[0].lower == 0
    assert clean[0].upper == 1
    assert clean[-1].lower == clean[-1].upper == card.rows[0].accuracy
    assert all(a.lower <= b.lower and b.upper <= a.upper for a, b in pairwise(clean))
    assert told[0].seconds_left is None
    assert told[-1].seconds_left == pytest.approx(0, abs=1e-6)


def test_a_loader_of_images_and_labels_is_data(store: Store) -> None:
    x, y, _ = sample().take(torch.arange(40))
    whole = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(whole, batch_size=7)
    (row,) = run(trained(), loader, [Clean()], store=store).rows
    assert row.accuracy == by_hand(trained(), x, y)


def test_a_stochastic_model_gives_the_same_card_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    class Noisy(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + 0.3 * torch.randn_like(x))

    torch.manual_seed(0)
    model = Noisy(sample().spec)
    stores = [Store(tmp_path_factory.mktemp("s") / "s") for _ in range(2)]
    first, again = (run(model, sample(), [Clean()], store, limit=64) for store in stores)
    assert first.json() == again.json()
    assert "stochastic" in {flag.name for flag in first.flags}


def test_what_cannot_be_evaluated_is_told_in_a_sentence(store: Store) -> None:
    def refused(
        match: str, model: nn.Module, images_: object, suite: object = "quick", **how: object
    ) -> None:
        with pytest.raises(BadInput, match=match):
            run(model, images_, suite, store=store, **how)  # type: ignore[arg-type]

    few = sample().subset(slice(0, 10))
    x, y, _ = few.take(torch.arange(10))
    refused("no suite 'fast'; take one of quick, standard, full", trained(), few, "fast")
    refused("at least one condition", trained(), few, [])
    refused("conditions and attacks, found 3", trained(), few, [3])
    refused("labels must lie in 0..9", trained(), data.as_set((x, y + 10)), [Clean()])
    refused("limit must be 1 or more, found 0", trained(), few, limit=0)
    small = data.as_set((torch.rand(10, 3, 16, 16), y % 2))
    refused("at least 28 x 28 pixels, and these have 3 channels and 16 x 16", nn.Flatten(), small, "standard")
    gray = models.wrap(nn.Flatten(), InputSpec(channels=1, mean=(0.0,), std=(1.0,)))
    refused("takes images with 1 channels, and those of 'images' have 3", gray, small, [Clean()])
    refused("one output; let it return two logits", OneLogit(), small, [Clean()])
    refused("at least one seed", trained(), few, [Clean()], seed=[])
    refused("'3' is requested twice", trained(), few, [Clean()], seed=[3, 3])
    refused("a seed is a whole number", trained(), few, [Clean()], seed=0.5)
    refused("batch_size must be 1 or more", trained(), few, batch_size=0)
    refused("logits of shape", nn.Conv2d(1, 3, 3), few, [Clean()])
    refused("frozen dataclasses", trained(), few, [lambda model, x, y: x])
    assert not [row for row in store.cells() if "lambda" in row[1]]


def test_a_card_is_read_back_as_it_was_written(store: Store) -> None:
    card = run(trained(), sample(), [Clean(), WEAK], store=store, limit=20, name="net", command="by hand")
    assert type(card).read(card.json()) == card
    held = json.loads(card.json())
    assert held["provenance"]["command"] == "by hand"
    assert not any(word in card.json() for word in ("time", "date", "seconds"))
    with pytest.raises(BadInput, match="not a scorecard"):
        type(card).read("<html>")


def test_what_is_adapted_on_a_branch_is_measured_so(store: Store) -> None:
    few = sample().subset(slice(0, 64))
    x, y, _ = few.take(torch.arange(64))
    model = trimtab.add_branch(trimtab.steer(copy.deepcopy(trained())), "adv")
    with torch.no_grad():
        for layer in norm.layers(model).values():
            layer.holder("adv").weight.mul_(-1)
    with trimtab.use(model, branch="adv"):
        adapted = adapt.frozen(model, x)
    (row,) = run(adapted, few, [Clean()], store=store, examine=False).rows
    assert row.accuracy == by_hand(adapted, x, y)


def test_models_that_differ_in_a_constant_do_not_share_results(store: Store) -> None:
    few = sample().subset(slice(0, 128))
    x, y, _ = few.take(torch.arange(128))
    for rho in (1.0, 0.1):
        model = adapt.per_batch(trained(), rho)
        (row,) = run(model, few, [Clean()], store=store, examine=False).rows
        assert row.accuracy == by_hand(model, x, y)


def test_eot_that_adapts_to_its_batch_keeps_the_batch_in_its_key(store: Store) -> None:
    eot = Attacked(EOT(PGD(steps=1), m=1))
    fixed = Attacked(EOT(PGD(steps=1), sampler=(trained(),)))
    for condition, told_apart in ((eot, True), (fixed, False)):
        subjects = [cells.Subject(trained(), sample(), store, chunk=chunk) for chunk in (8, 16)]
        first, second = (cells.Cell(subject, condition, RunningMode(), 0, 16).key for subject in subjects)
        assert (first != second) is told_apart
    assert eot.iterate(coupled=False) == "last iterate"
    assert Attacked(APGD()).iterate(coupled=True) == "best iterate"


def test_a_suite_leaves_out_what_cannot_be_asked_of_a_coupled_batch(store: Store) -> None:
    few = sample().subset(slice(0, 16))
    asked = [Clean(), AutoAttack(steps=1, queries=1), Certified(n=10)]
    card = run(trained(), few, asked, bn_modes=[RunningMode(), PerBatchMode()], store=store, examine=False)
    assert [row.kind for row in card.rows if row.bn_mode == RunningMode()] == [
        "clean",
        "attack",
        "certificate",
    ]
    assert [row.kind for row in card.rows if row.bn_mode != RunningMode()] == ["clean"]
    with pytest.raises(BadInput, match=r"nothing to measure.*influence each other; freeze"):
        run(trained(), few, asked[1:], bn_modes=[PerBatchMode()], store=store, examine=False)


def test_methods_that_differ_have_names_that_differ() -> None:
    methods = [PGD(), PGD(random_start=False), PGD(clean_start=0.5), APGD(), APGD(restarts=5)]
    methods += [AutoAttack(), AutoAttack(steps=5), AutoAttack(queries=5), EOT(), EOT(rho=0.5)]
    methods += [PerBatchMode(0.3), PerBatchMode(0.3, "var"), FrozenMode(), FrozenMode(blend_of="var")]
    assert len({str(method) for method in methods}) == len(methods)


def test_rows_of_the_same_name_are_refused(store: Store) -> None:
    with pytest.raises(BadInput, match="requested twice"):
        run(trained(), sample(), [Clean(), Clean()], store=store)
    with pytest.raises(BadInput, match="requested twice"):
        run(trained(), sample(), [Clean()], bn_modes=[RunningMode(), RunningMode()], store=store)


@pytest.mark.parametrize("state", [PerBatchMode(), FrozenMode(images=64)])
def test_adapting_starts_from_the_main_branch_whatever_is_in_force(state: BNMode, store: Store) -> None:
    model = norm.add_branch(norm.steer(copy.deepcopy(trained())), "adv")
    with torch.no_grad():
        for layer in norm.layers(model).values():
            layer.holder("adv").weight.neg_()
    few = sample().subset(slice(0, 64))
    (plain,) = run(model, few, [Clean()], bn_modes=[state], store=store, examine=False).rows
    with norm.use(model, branch="adv"):
        (inside,) = run(
            model,
            few,
            [Clean()],
            bn_modes=[state],
            store=Store(Path(store.path).with_name("other.sqlite")),
            examine=False,
        ).rows
    assert plain.accuracy == inside.accuracy


def test_one_and_one_point_nought_are_one_state() -> None:
    assert fingerprint.describe(PerBatchMode(1)) == fingerprint.describe(PerBatchMode(1.0))
    assert fingerprint.digest(fingerprint.describe(FrozenMode(1))) == fingerprint.digest(
        fingerprint.describe(FrozenMode(1.0))
    )


class Keeping(Net):
    """Keeps its last feature, as networks that are looked into do."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept = super().forward(x)
        return self.kept


def test_a_model_that_keeps_something_from_a_pass_is_not_measured_again(store: Store) -> None:
    few = sample().subset(slice(0, 32))
    known = []
    for _ in range(2):
        model = Keeping(few.spec)
        model.load_state_dict(trained().state_dict())
        run(model.eval(), few, [Clean(), FGSM()], store=store)
        known.append(set(store.cells()))
    assert known[0] == known[1] != set()


def test_narrow_formats_are_results_of_their_own(store: Store) -> None:
    subject = cells.Subject(trained(), sample(), store)
    plain = cells.Cell(subject, Clean(), RunningMode(), 0, 8).key
    with torch.autocast("cpu", torch.bfloat16):
        assert cells.Cell(subject, Clean(), RunningMode(), 0, 8).key != plain


def test_probes_of_a_model_that_couples_by_itself_keep_to_the_chunk(store: Store) -> None:
    model = copy.deepcopy(trained())
    model.net[1] = nn.BatchNorm2d(8, track_running_stats=False)
    subject = cells.Subject(model, sample(), store, chunk=16)
    assert health(subject, RunningMode(), 0).subject.chunk == 16
    assert health(cells.Subject(trained(), sample(), store, chunk=16), RunningMode(), 0).subject.chunk > 16


def test_statistics_that_are_frozen_for_a_certificate_are_those_of_noisy_images() -> None:
    batch, model = sample().take(torch.arange(32)), trained()
    shown = Certified(0.5).shown(batch, 3)
    found, wanted = adapt.frozen(model, shown), adapt.frozen_under_noise(model, batch.x, 0.5, 3, batch.ids)
    assert torch.equal(found(batch.x), wanted(batch.x))


class Head(nn.Module):
    """A norm layer behind the pooling: a batch of one image has one value for each of its channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)))


def test_a_model_that_refuses_single_images_is_evaluated_and_flagged(store: Store) -> None:
    card = run(trimtab.steer(Head()), sample(), [Clean()], store=store, limit=64, bn_modes=[PerBatchMode()])
    assert card.rows[0].n == 64
    (flag,) = [flag for flag in card.flags if flag.name == "batch"]
    assert "are not all taken" in flag.saw


def test_images_for_a_model_that_adapts_are_not_shown_to_one_that_does_not(store: Store) -> None:
    suite = [Clean(), ThroughBatch(WEAK)]
    how = {"store": store, "limit": 24, "chunk": 12, "examine": False}
    card = run(trained(), sample(), suite, bn_modes=[RunningMode(), PerBatchMode()], **how)
    assert [(row.kind, row.bn_mode) for row in card.rows] == [
        ("clean", RunningMode()),
        ("clean", PerBatchMode(1.0)),
        ("attack", PerBatchMode(1.0)),
    ]
    assert card.provenance["batch"] == 12
    assert "batch" not in run(trained(), sample(), [Clean()], **how).provenance
    with pytest.raises(BadInput, match="does not apply to this model in BN mode running"):
        run(trained(), sample(), [ThroughBatch(WEAK)], **how)


@dataclass(frozen=True)
class OwnBudget:
    """An attack of the user's own, with a budget that is a number."""

    budget: float = 0.03
    version: ClassVar[int] = 1

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (x + self.budget).clamp(0, 1)


def test_an_attack_of_yours_may_have_any_budget(store: Store) -> None:
    card = run(trained(), sample(), [OwnBudget()], store=store, limit=16)
    assert card.rows[0].n == 16
    assert run(trained(), sample(), [FGSM(Linf(0))], store=store, limit=16).rows[0].n == 16


@dataclass(frozen=True)
class Batchwise:
    """An attack of the user's own that draws its numbers for a batch as a whole."""

    version: ClassVar[int] = 1

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
        return (x + 0.5 * (noise - 0.5)).clamp(0, 1)


def test_an_attack_of_yours_depends_on_the_batch_and_so_does_its_key(store: Store) -> None:
    shown = sample("test").subset(slice(0, 32))
    small, large, again = (
        run(trained(), shown, [Batchwise()], store, chunk=chunk, batch_size=size, examine=False)
        for chunk, size in ((8, 32), (32, 32), (32, 8))
    )
    assert small.rows[0].key != large.rows[0].key
    assert large.rows == again.rows


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"bn_modes": ["running"]}, "BN mode"),
        ({"linf": "8/255"}, "budget"),
        ({"limit": 2.5}, "whole number"),
        ({"chunk": "5"}, "whole number"),
    ],
    ids=str,
)
def test_what_is_no_state_budget_or_count_is_told_in_a_sentence(
    given: dict[str, Any], told: str, store: Store
) -> None:
    with pytest.raises(BadInput, match=told):
        run(trained(), sample(), store=store, **given)


def test_one_attack_and_one_state_need_no_list(store: Store) -> None:
    shown = sample("test").subset(slice(0, 8))
    (row,) = run(trained(), shown, PGD(steps=1), store, bn_modes=RunningMode(), examine=False).rows
    assert row.n == 8


def test_an_attack_of_ones_own_list_does_not_vanish(store: Store) -> None:
    suite = [PGD(steps=1), ThroughBatch(PGD(steps=1))]
    shown = sample("test").subset(slice(0, 16))
    with pytest.raises(BadInput, match=r"through the batch.*does not apply.*PerBatchMode"):
        run(trained(), shown, suite, store, examine=False)
    rows = run(trained(), shown, suite, store, bn_modes=[RunningMode(), PerBatchMode()], examine=False).rows
    assert len(rows) == 3


def test_a_last_batch_of_one_image_is_named(store: Store) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
    shown = sample("test").subset(slice(0, 17))
    with pytest.raises(
        BadInput, match="the last of 17 images is a batch of its own: if that is why, take 16"
    ):
        run(net, shown, [Clean()], store, bn_modes=[PerBatchMode()], chunk=16, examine=False)
