"""When memory runs out: smaller batches, or one sentence where the images of a batch belong together."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from nets import Net
from trimtab import certify, models
from trimtab.attacks import PGD, Linf
from trimtab.cli import main
from trimtab.data.embedded import sample
from trimtab.evaluate import Clean, Noise, PerBatchMode, Store, run
from trimtab.types import BadInput

PROBLEMS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory: you tried to ..."
    ),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."),
    RuntimeError("could not create a primitive"),
    MemoryError(),
]


class Device:
    """Not part of the network, which is the same on any: a key leaves out what cannot be saved."""

    __slots__ = ("largest", "loads", "problem", "room")

    def __init__(self, room: int, problem: BaseException) -> None:
        self.room, self.problem, self.largest = room, problem, 0
        self.loads: list[int] = []

    def __deepcopy__(self, memo: object) -> Device:
        return self

    def __reduce_ex__(self, protocol: object) -> str:
        raise TypeError("a device cannot be saved")

    def load(self, images: int) -> None:
        if images > self.room:
            raise type(self.problem)(*self.problem.args)
        self.largest = max(self.largest, images)
        self.loads.append(images)


class Small(nn.Module):
    """A network on a device that has room for so many images."""

    def __init__(self, room: int, problem: BaseException = PROBLEMS[0]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = Net(sample().spec).double()
        self.device = Device(room, problem)

    def forward(self, x: Tensor) -> Tensor:
        self.device.load(len(x))
        return self.net(x)


SUITE = [Clean(), Noise(0.1), PGD(Linf("8/255"), steps=3, early_stop=True)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
def test_a_batch_that_does_not_fit_is_halved_and_nothing_else_changes(
    problem: BaseException, tmp_path_factory: pytest.TempPathFactory
) -> None:
    few = sample().subset(slice(0, 48))
    stores = [Store(tmp_path_factory.mktemp("s") / "store.sqlite") for _ in range(2)]
    roomy, tight = Small(1000), Small(9, problem)
    cards = [
        run(model, few, SUITE, store=store, chunk=24, batch_size=24)
        for model, store in zip((roomy, tight), stores, strict=True)
    ]
    assert cards[0].json() == cards[1].json()
    assert roomy.device.largest >= 24
    assert 6 <= tight.device.largest <= 9
    for key, _ in stores[0].cells():
        for span, file in stores[0].chunks(key).items():
            one, other = (
                store.read(found)
                for store, found in ((stores[0], file), (stores[1], stores[1].chunks(key)[span]))
            )
            assert one is not None
            assert other is not None
            assert all(
                torch.equal(one[name], other[name]) for name in one if name not in ("repeated", "rebatched")
            )


def test_a_short_last_chunk_does_not_shrink_later_batches(store: Store) -> None:
    model = Small(1000)
    conditions = [Noise(0.1), Noise(0.2)]
    run(model, sample().subset(slice(0, 27)), conditions, store=store, chunk=24, batch_size=24, examine=False)
    assert model.device.loads[-4:] == [24, 3, 24, 3]


def test_a_batch_that_belongs_together_is_not_halved(store: Store) -> None:
    few = sample().subset(slice(0, 32))
    with pytest.raises(BadInput, match=r"32 images does not fit .* belong together; give a smaller chunk"):
        run(Small(9), few, [Clean()], store=store, bn_modes=[PerBatchMode()], chunk=32)
    assert run(Small(9), few, [Clean()], store=store, bn_modes=[PerBatchMode()], chunk=8).rows[0].n == 32


def test_a_device_without_room_for_one_image_is_told(store: Store) -> None:
    with pytest.raises(BadInput, match="not even one image"):
        run(Small(0), sample().subset(slice(0, 4)), [Clean()], store=store)


def test_other_errors_are_not_taken_for_it(store: Store) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(
            Small(9, RuntimeError("shapes cannot be multiplied")),
            sample().subset(slice(0, 16)),
            [Clean()],
            store=store,
        )


def test_an_image_too_large_to_certify_is_not_called_unfit() -> None:
    x = sample().take(torch.arange(3)).x.double()
    with pytest.raises(torch.OutOfMemoryError):
        certify.certify(Small(0), x, 0.25, 20, 200, seed=1)


def test_certificates_do_not_depend_on_the_room_there_is() -> None:
    x = sample().take(torch.arange(3)).x.double()
    roomy, tight = (certify.certify(Small(room), x, 0.25, 20, 200, seed=1) for room in (1000, 9))
    assert torch.equal(roomy.counts, tight.counts)
    assert torch.equal(roomy.radii, tight.radii)


def test_a_command_that_runs_out_of_memory_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(models.pixels.Pixels, "forward", full)
    assert main(["lens", "net:resnet8,width=1,channels=1", "--limit", "2"]) == 2
    assert "out of memory; use smaller batches" in capsys.readouterr().err


def test_the_command_line_takes_as_many_images_as_fit_into_the_given_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from trimtab.cli.options import OnImages

    command, model, images = OnImages("zoo:sample-standard"), models.load("zoo:sample-standard"), sample()
    assert len(images) > 64
    fit = {memory: command.fitting(model, images, memory, gradients=True) for memory in (0.59, 0.6, 2.0)}
    assert 1 < fit[0.59] < fit[0.6] < 64 < fit[2.0]
    assert command.adapting(model, images, 2.0, gradients=True) == fit[2.0]
    assert capsys.readouterr().err == ""
    assert command.adapting(model, images, 0.59, gradients=True) == fit[0.59]
    assert f"Warning: only {fit[0.59]} images adapt together" in capsys.readouterr().err


def test_no_memory_limit_makes_the_batches_that_adapt_small(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    monkeypatch.chdir(str(tmp_path))
    words = ["adapt", "zoo:sample-standard", "--limit", "96", "--sigma", "0.25", "--json"]
    for memory, size in (("0.587", "64"), ("2", "96")):  # no batch is larger than the images
        assert main([*words, "--memory", memory]) == 0
        out, err = capsys.readouterr()
        assert [*json.loads(out)] == [size]
        assert ("more than --memory" in err) == (size == "64")
    assert main([*words, "--memory", "0"]) == 2
    assert "--memory" in capsys.readouterr().err


def test_a_long_evaluation_tells_its_time_and_a_smaller_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trimtab.cli import evaluate as command

    class Slow(Small):
        def forward(self, x: Tensor) -> Tensor:
            import time

            time.sleep(0.2)  # 0.05 s an image
            return super().forward(x)

    command.foretell(Slow(99), sample(), passes=100.0, limit=1000)
    err = capsys.readouterr().err
    minutes, limit = (float(word) for word in re.findall(r"About (\d+) minutes.*--limit (\d+)", err)[0])
    assert 80 <= minutes <= 200  # 0.05 * 100 * 1000 / 60 = 83, on an idle machine
    assert limit == pytest.approx(1000 * 10 / minutes, rel=0.05)
    command.foretell(Small(99), sample(), passes=1.0, limit=4)
    assert capsys.readouterr().err == ""
