"""Model files that were cut, changed, or made to do harm: a sentence, and nothing in them runs."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.properties.hostile import Evil, Memory, damaged, examples, plain, survives, tidy

import trimtab
from trimtab import models
from trimtab.evaluate import Card, Store
from trimtab.train._loop import checkpoint
from trimtab.types import BadInput

torch.manual_seed(0)
NET = models.build("resnet8", classes=3, width=1, channels=1)
STATE = {key: value.contiguous() for key, value in NET.net.state_dict().items()}
DESCRIBED = json.loads(json.dumps(models.files.describe(NET, {})))
WHOLE = safetensors.torch.save(STATE, {"trimtab": json.dumps(DESCRIBED)})


def saved(**changes: Any) -> bytes:
    return safetensors.torch.save(STATE, {"trimtab": json.dumps({**DESCRIBED, **changes})})


def read(folder: Path, content: bytes, name: str = "model.safetensors", at: str = "") -> bool:
    (folder / name).write_bytes(content)
    taken = survives(lambda: trimtab.load(f"file:{folder / name}{at}")(torch.rand(2, 1, 8, 8)))
    assert tidy(folder)
    return taken


def test_the_whole_file_is_taken(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE)


@examples(150)
@given(damaged(WHOLE))
def test_a_damaged_file_is_taken_or_refused(tmp_path: Path, content: bytes) -> None:
    read(tmp_path, content)


@examples(200)
@given(st.dictionaries(st.sampled_from(sorted(DESCRIBED)), plain, min_size=1, max_size=2))
def test_any_description_is_taken_or_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    read(tmp_path, saved(**changes))


@examples(150)
@given(
    st.dictionaries(
        st.sampled_from(["classes", "channels", "width", "norm", "activation", "shortcut", "depth"]),
        plain | st.sampled_from([10**5, 10**9, "gn"]),
        max_size=3,
    ),
    st.sampled_from(
        ["net:resnet8", "net:resnet20", "net:wrn40_2", "net:vgg11", "net:resnet8000002", "zoo:a"]
    ),
)
def test_a_description_cannot_ask_for_more_memory_than_its_weights_have(
    tmp_path: Path, arguments: dict[str, Any], source: str
) -> None:
    content = saved(arguments=arguments, source=source)
    tracemalloc.start()
    try:
        with Memory() as memory:
            read(tmp_path, content)
        _, objects = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert memory.largest < 1_000_000  # the weights have 6 kB, an activation of the two images 1 kB
    assert objects < 100_000_000


@examples(100)
@given(st.dictionaries(st.sampled_from(["size", "channels", "mean", "std"]), plain, min_size=1))
def test_any_input_description_is_taken_or_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    read(tmp_path, saved(input={**DESCRIBED["input"], **changes}))


@examples(60)
@given(st.lists(st.dictionaries(st.sampled_from(["layer", "name", "affine_of", "statistics_of"]), plain)))
def test_any_plan_of_branches_is_taken_or_refused(tmp_path: Path, branches: list[Any]) -> None:
    read(tmp_path, saved(branches=branches))


@pytest.mark.parametrize("name", ["checkpoint_path", "pretrained", "pretrained_cfg", "weights", "cache_dir"])
def test_a_description_cannot_make_a_library_open_or_fetch_another_file(tmp_path: Path, name: str) -> None:
    evil = tmp_path / "evil.pth"
    torch.save({"state_dict": Evil()}, evil)
    content = saved(source="timm:resnet10t", arguments={name: str(evil)})
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match="asks for another file"):
        trimtab.load(f"file:{tmp_path / 'model.safetensors'}")


# ---- other people's files ------------------------------------------------------------------------------


@examples(150)
@given(st.data())
def test_a_damaged_pickle_is_taken_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    os.chdir(tmp_path)
    kind = data.draw(st.booleans())
    torch.save(STATE, tmp_path / "a.pt", _use_new_zipfile_serialization=kind)
    content = data.draw(damaged((tmp_path / "a.pt").read_bytes()))
    read(tmp_path, content, "a.pt", "@net:resnet8,width=1,channels=1")


@examples(80)
@given(st.integers(0, 5), st.sampled_from(["bare", "inside", "zip"]), plain)
def test_a_pickle_with_code_never_runs(tmp_path: Path, protocol: int, form: str, beside: Any) -> None:
    os.chdir(tmp_path)
    evil = pickle.dumps({"state_dict": [Evil(), beside]}, protocol=protocol)
    file = tmp_path / "a.pt"
    if form == "inside":
        torch.save({"a": torch.ones(1), "b": Evil()}, file, pickle_protocol=max(protocol, 2))
        evil = file.read_bytes()
    elif form == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", evil)
            archive.writestr("archive/version", "3")
        evil = file.read_bytes()
    assert not read(tmp_path, evil, "a.pt", "@net:resnet8,width=1,channels=1")


KINDS = [torch.complex64, torch.int8, torch.bool, torch.float64, torch.bfloat16, torch.float8_e5m2]


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("kind", [*KINDS, "sparse", "numbered keys"], ids=str)
def test_tensors_of_any_kind_are_taken_or_refused(tmp_path: Path, kind: Any) -> None:
    if kind == "sparse":
        state: dict[Any, Any] = {key: value.to_sparse() for key, value in STATE.items()}
    elif kind == "numbered keys":
        state = dict(enumerate(STATE.values()))
    else:
        state = {key: value.to(kind) for key, value in STATE.items()}
    torch.save(state, tmp_path / "a.pt")
    read(tmp_path, (tmp_path / "a.pt").read_bytes(), "a.pt", "@net:resnet8,width=1,channels=1")


# ---- our own files, damaged ------------------------------------------------------------------------------


@examples(100)
@given(st.data())
def test_a_damaged_checkpoint_is_refused_or_whole(tmp_path: Path, data: st.DataObject) -> None:
    file = tmp_path / "last.safetensors"
    optimizer = torch.optim.SGD(NET.parameters(), 0.1)
    checkpoint.save(file, checkpoint.TrainingState(step=3), NET, optimizer, {})
    file.write_bytes(data.draw(damaged(file.read_bytes())))
    net = models.build("resnet8", 3, width=1, channels=1)
    if survives(lambda: checkpoint.load(file, net, optimizer, {})):
        assert all(torch.equal(value, net.state_dict()[key]) for key, value in NET.state_dict().items())


@examples(100)
@given(st.data())
def test_a_damaged_store_is_refused_or_whole(tmp_path: Path, data: st.DataObject) -> None:
    store = Store(Path(tempfile.mkdtemp(dir=tmp_path), "store.sqlite"))
    store.commit("cell", {"a": 1}, (0, 2), {"correct": torch.ones(2, dtype=torch.bool)})
    path = Path(store.path)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    survives(lambda: [store.cells(), store.cards(), store.chunks("cell"), store.record("run", "{}")])
    columns: list[Any] = []
    survives(lambda: columns.extend(store.read(file) for file in store.chunks("cell").values()))
    assert all(read is None or read["correct"].tolist() == [True, True] for read in columns)


@examples(200)
@given(plain.map(json.dumps) | st.text(max_size=40))
def test_any_text_is_a_scorecard_or_refused(text: str) -> None:
    survives(lambda: Card.read(text))
