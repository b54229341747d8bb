"""Published files of corrupted images: every cell is of the files, in the order of the clean images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from trimtab import data
from trimtab.cli import main
from trimtab.data.corruptions import CORRUPTIONS
from trimtab.evaluate.published import Published, published
from trimtab.measure.corruption_error import ALEXNET
from trimtab.types import BadInput

WNIDS = ("n01440764", "n01443537")
IMAGES = 6
MODEL = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, x):  # class 1 if bright, class 0 if dark
        brightness = self.scale * (x.mean((1, 2, 3)) - 0.5)
        others = brightness.new_full((len(x), 998), -9)
        return torch.cat([-brightness[:, None], brightness[:, None], others], 1)
def net(): return Net()
"""


def wrong(image: int, corruption: int, severity: int) -> bool:
    """Whether the files show an image of the other class's brightness."""
    return (image + corruption + severity) % 3 == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clean images, and ImageNet-C made from them: dark or bright, each of its own shade."""
    root = tmp_path_factory.mktemp("published")
    (root / "bright.py").write_text(MODEL)

    def save(place: Path, flipped: list[bool]) -> None:
        for i in range(IMAGES):
            (place / WNIDS[i % 2]).mkdir(parents=True, exist_ok=True)
            shade = (40 if (i % 2 == 0) != flipped[i] else 200) + i
            pixels = np.full((224, 224, 3), shade, dtype=np.uint8)
            Image.fromarray(pixels).save(place / WNIDS[i % 2] / f"{i}.JPEG", "PNG", compress_level=1)

    save(root / "clean", [False] * IMAGES)
    for k, name in enumerate(CORRUPTIONS):
        for severity in range(1, 6):
            save(root / "c" / name / str(severity), [wrong(i, k, severity) for i in range(IMAGES)])
    return root


def test_errors_are_those_of_the_files_relative_to_alexnet(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bright.py").write_text(MODEL)
    words = [
        *("evaluate", "py:bright:net", "--data", f"imagenet:{folder / 'clean'}", "--input-size", "224"),
        *("--suite", "corruptions", "--corrupted", f"imagenet-c:{folder / 'c'}", "--baseline", "alexnet"),
    ]
    assert main([*words, "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    rows = {(row["condition"].get("name"), row["condition"].get("severity")): row for row in card["rows"]}
    assert rows[None, None]["accuracy"] == 1
    ratios = []
    for k, name in enumerate(CORRUPTIONS):
        errors = [sum(wrong(i, k, s) for i in range(IMAGES)) / IMAGES for s in range(1, 6)]
        for severity, error in zip(range(1, 6), errors, strict=True):
            row = rows[name, severity]
            assert row["accuracy"] == pytest.approx(1 - error)
            assert row["condition"]["published"]
        ratios.append(sum(errors) / 5 / ALEXNET.mean_errors[name])
        assert card["ce"]["running"][name] == pytest.approx(ratios[-1])
    assert card["mce"]["running"] == pytest.approx(sum(ratios) / 15)
    assert card["baseline"] == "AlexNet"
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "severity 5" in out
    assert "CE" in out


def test_a_batch_is_shown_the_files_of_its_own_images(folder: Path) -> None:
    clean = data.load(f"imagenet:{folder / 'clean'}", decoded=False)
    batch = clean.take(torch.tensor([4, 1]))
    shown = Published("fog", 3, None, f"imagenet-c:{folder / 'c'}").shown(batch, seed=0)
    files = [Path(clean.files[i]) for i in (4, 1)]  # type: ignore[attr-defined]
    for x, file in zip(shown, files, strict=True):
        with Image.open(folder / "c" / "fog" / "3" / file) as image:
            assert float(x[0, 0, 0]) == pytest.approx(image.getpixel((0, 0))[0] / 255)  # type: ignore[index]


def test_files_of_other_images_are_refused(folder: Path) -> None:
    batch = data.load(f"imagenet:{folder / 'clean'}").take(torch.arange(2))
    condition = Published("fog", 3, None, f"imagenet-c:{folder / 'c'}")
    with pytest.raises(BadInput, match="does not hold these images"):
        condition.shown(batch._replace(y=1 - batch.y), seed=0)
    with pytest.raises(BadInput, match="published corruptions are imagenet-c:PATH"):
        published("folder:somewhere")


def test_what_is_not_comparable_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "zoo:sample-standard", "--limit", "4"]
    for more, complaint in (
        (["--corrupted", f"imagenet-c:{folder / 'c'}"], "--corrupted needs --suite corruptions"),
        (["--suite", "corruptions", "--baseline", "alexnet"], "needs the published files"),
    ):
        assert main([*words, *more]) == 2
        assert complaint in capsys.readouterr().err
