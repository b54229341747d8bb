"""Folders of images: classes, splits, tables of labels, and pictures resized as torchvision does.

Also tests data.pictures.
"""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets, transforms

from published_files import PHOTOGRAPHS, needs_published
from trimtab.data import ImageSet, load
from trimtab.data import folder as module
from trimtab.data.folder import FolderSet, ahead, list_by_wnid, open_folder
from trimtab.data.loader import Loader
from trimtab.types import BadInput, InputSpec

SQUARE = InputSpec((4, 4), crop_fraction=1.0)
SIZES = [(300, 280), (260, 400), (257, 257), (512, 300)]


def write(path: Path, size: tuple[int, int] = (8, 6), mode: str = "RGB", seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], *([3] if mode == "RGB" else [4] if mode == "RGBA" else []))
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)).save(path)


def fill(root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 3, **how: object) -> Path:
    for k, name in enumerate(classes):
        for i in range(each):
            write(root / name / f"{i}.png", seed=10 * k + i, **how)  # type: ignore[arg-type]
    return root


def test_a_folder_gives_what_torchvision_gives(tmp_path: Path) -> None:
    fill(tmp_path)
    theirs = datasets.ImageFolder(tmp_path, transforms.ToTensor())
    ours = load(f"folder:{tmp_path}")
    x, y, _ = next(ours.batches(99))
    assert ours.classes == tuple(theirs.classes)
    place = {str(Path(file).relative_to(tmp_path)): i for i, (file, _) in enumerate(theirs.samples)}
    turns = [theirs[place[file]] for file in open_folder(tmp_path, "pets").files]
    assert torch.equal(x, torch.stack([image for image, _ in turns]))
    assert y.tolist() == [label for _, label in turns]
    assert len(place) == len(ours)


def test_the_first_and_the_last_images_hold_every_class_in_proportion(tmp_path: Path) -> None:
    fill(tmp_path, ("common",), each=30)
    fill(tmp_path, ("rare", "scarce"), each=10)
    labels = open_folder(tmp_path, "pets").labels
    assert torch.bincount(labels[:10]).tolist() == torch.bincount(labels[-10:]).tolist() == [6, 2, 2]
    whole = labels.bincount() / len(labels)
    for stretch in labels.unfold(0, 20, 1):
        assert (stretch.bincount(minlength=3) / 20 - whole).abs().max() <= 0.1


def test_images_of_a_class_keep_their_order(tmp_path: Path) -> None:
    files = open_folder(fill(tmp_path, each=4), "pets").files
    for name in ("cat", "dog"):
        assert [file for file in files if file.startswith(name)] == [f"{name}/{i}.png" for i in range(4)]
    assert {*files[:2]} == {"cat/0.png", "dog/0.png"}


def test_a_batch_of_single_images_per_class_is_a_sample_of_all_classes(tmp_path: Path) -> None:
    for k in range(400):
        write(tmp_path / f"{k:03}_n{k:08}.png", seed=k)
    images = open_folder(tmp_path, "pets", listing=list_by_wnid(tmp_path))
    assert torch.equal(images.ids, images.labels)  # an image keeps its id, and so its random numbers
    assert images.files == open_folder(tmp_path, "pets", listing=list_by_wnid(tmp_path)).files
    for batch in images.batches(50):
        ranks = batch.y.double().sort().values / 400
        distance = (ranks - torch.arange(50) / 50).abs().max()
        assert distance < 1.95 / 50**0.5  # Kolmogorov and Smirnov: 0.1 % of random batches are beyond
    assert torch.equal(images.positions(torch.tensor([7, 3])), torch.tensor(
        [images.labels.tolist().index(7), images.labels.tolist().index(3)]))  # fmt: skip
    with pytest.raises(BadInput, match="does not hold all"):
        images.subset(slice(0, 9)).positions(images.ids[9:10])


def test_resizing_and_cropping_are_torchvisions(tmp_path: Path) -> None:
    for i, size in enumerate(SIZES):
        write(tmp_path / "n01440764" / f"{i}.png", size, seed=i)
    how = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()])
    theirs = torch.stack([image for image, _ in datasets.ImageFolder(tmp_path, how)])
    ours = load(f"imagenet:{tmp_path}")
    assert isinstance(ours, FolderSet)
    assert torch.equal(next(ours.batches(4)).x, theirs)
    assert ours.spec.mean == (0.485, 0.456, 0.406)


def test_streamed_and_held_sets_give_the_same_batches(tmp_path: Path) -> None:
    streamed = open_folder(fill(tmp_path), "pets")
    held = streamed.in_memory()
    assert isinstance(held, ImageSet)
    for size, start in ((4, 0), (2, 3)):
        for ours, theirs in zip(streamed.batches(size, start), held.batches(size, start), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    part = streamed.subset([5, 0])
    assert part.ids.tolist() == streamed.ids[[5, 0]].tolist()
    assert torch.equal(part.take(torch.tensor([1])).x, held.take(torch.tensor([0])).x)


def test_streaming_decodes_only_a_few_batches_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = open_folder(fill(tmp_path, each=20), "pets")
    decoded: list[Path] = []
    opened = module.decode
    monkeypatch.setattr(module, "decode", lambda path, *rest: (decoded.append(path), opened(path, *rest))[1])
    batches = images.batches(2)
    for _ in range(3):
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert 6 <= len(decoded) <= 12


def test_what_is_computed_ahead_comes_in_order_and_its_errors_come_through() -> None:
    def call(i: int) -> int:
        if i == 7:
            raise BadInput("seven")
        return i

    results = ahead((lambda i=i: call(i)) for i in range(9))
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(BadInput, match="seven"):
        next(results)


def test_a_gray_folder_stays_gray(tmp_path: Path) -> None:
    images = load(f"folder:{fill(tmp_path, mode='L')}")
    assert images.spec.channels == 1
    assert next(images.batches(2)).x.shape == (2, 1, 6, 8)


def test_mixed_images_are_refused_and_a_size_makes_them_equal(tmp_path: Path) -> None:
    fill(tmp_path)
    write(tmp_path / "dog" / "wide.png", (9, 6))
    with pytest.raises(BadInput, match=r"mixed size or mode: .*0.png is 8x6 RGB, .*wide.png is 9x6 RGB"):
        load(f"folder:{tmp_path}")
    write(tmp_path / "dog" / "wide.png", (8, 6), "L")
    with pytest.raises(BadInput, match=r"wide.png is 8x6 L"):
        load(f"folder:{tmp_path}")
    assert next(load(f"folder:{tmp_path}@4").batches(99)).x.shape == (7, 3, 4, 4)


def test_transparent_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="8x6 RGBA; only gray"):
        load(f"folder:{fill(tmp_path, mode='RGBA')}")


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_images_of_more_than_eight_bits_are_refused(tmp_path: Path, dtype: type) -> None:
    (tmp_path / "cat").mkdir()
    Image.fromarray(np.arange(48, dtype=dtype).reshape(6, 8) * 900).save(tmp_path / "cat" / "a.tiff")
    Image.new("RGB", (5, 5)).save(tmp_path / "cat" / "Z.png")  # size and mode differ, too
    (tmp_path / "__MACOSX").mkdir()
    for name in (f"folder:{tmp_path}", f"folder:{tmp_path}@4"):
        with pytest.raises(BadInput, match="to 8 bits") as told:
            load(name)
        assert "@SIZE" not in str(told.value)


def test_the_folder_we_are_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path / "pets"))
    assert load("folder:.@4").name == "pets"


def test_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no class folders"):
        load(f"folder:{tmp_path}")
    with pytest.raises(BadInput, match="is not a folder"):
        load(f"folder:{tmp_path}/nothing")
    write(tmp_path / "loose.png")
    with pytest.raises(BadInput, match="holds no class folders"):
        load(f"folder:{tmp_path}")
    fill(tmp_path)
    (tmp_path / "bird").mkdir()
    (tmp_path / "bird" / "notes.txt").write_text("none seen")
    with pytest.raises(BadInput, match="bird holds no images"):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize(("content", "said"), [(b"<html>", "a web page"), (b"", "an empty file")])
def test_a_file_that_is_no_image_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    fill(tmp_path)
    (tmp_path / "cat" / "0.png").write_bytes(content)
    for name in (f"folder:{tmp_path}", f"folder:{tmp_path}@4"):
        with pytest.raises(BadInput, match=rf"0.png is not a readable image: it is {said}"):
            load(name)


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    fill(tmp_path, size=(64, 64))
    whole = (tmp_path / "dog" / "1.png").read_bytes()
    (tmp_path / "dog" / "1.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"1\.png is damaged or cut short"):
        load(f"folder:{tmp_path}")


def test_splits_are_subfolders_and_share_the_training_classes(tmp_path: Path) -> None:
    fill(tmp_path / "train", ("bird", "cat", "dog"))
    fill(tmp_path / "val", ("dog",), each=2)
    train, test = load(f"folder:{tmp_path}", "train"), load(f"folder:{tmp_path}", "test")
    assert train.classes == test.classes == ("bird", "cat", "dog")
    assert test.labels.tolist() == [2, 2]
    with pytest.raises(BadInput, match="no folder for the split 'extra', only train, val"):
        load(f"folder:{tmp_path}", "extra")
    fill(tmp_path / "val", ("emu",))
    with pytest.raises(BadInput, match="'emu' is none of 3 classes"):
        load(f"folder:{tmp_path}", "test")


def test_variants_of_imagenet_count_in_its_thousand_classes(tmp_path: Path) -> None:
    for name in ("n01443537", "n15075141"):  # goldfish, toilet paper: the second and the last
        write(tmp_path / "r" / name / "a.png", (300, 300))
    for name in ("0", "10", "999"):
        write(tmp_path / "v2" / name / "a.png", (300, 300))
    assert sorted(load(f"imagenet:{tmp_path}/r").labels.tolist()) == [1, 999]
    assert sorted(load(f"imagenet:{tmp_path}/v2").labels.tolist()) == [0, 10, 999]
    assert load(f"imagenet:{tmp_path}/v2").classes[1] == "n01443537"
    fill(tmp_path / "r", ("tench",), size=(300, 300))
    with pytest.raises(BadInput, match="'tench' is none of 1000 classes"):
        load(f"imagenet:{tmp_path}/r")


@pytest.mark.parametrize("group", ["", "noise/"])
def test_imagenet_c_is_taken_as_published(tmp_path: Path, group: str) -> None:
    path = tmp_path / f"{group}gaussian_noise/3/n01440764/a.png"
    write(path, (224, 224))
    images = load(f"imagenet-c:{tmp_path}/gaussian_noise/3")
    pixels = torch.from_numpy(np.array(Image.open(path)))
    assert torch.equal(next(images.batches(1)).x[0].permute(1, 2, 0), pixels / 255)


def test_the_digest_sees_names_sizes_and_the_way_of_cropping(tmp_path: Path) -> None:
    fill(tmp_path, each=2)
    digest = open_folder(tmp_path, "pets", spec=SQUARE).digest
    assert open_folder(tmp_path, "other name", spec=SQUARE).digest == digest
    assert open_folder(tmp_path, "pets", spec=replace(SQUARE, resize=6)).digest != digest
    (tmp_path / "cat" / "0.png").rename(tmp_path / "cat" / "5.png")
    assert open_folder(tmp_path, "pets", spec=SQUARE).digest != digest


def test_the_digest_tells_uncompressed_files_of_one_size_apart(tmp_path: Path) -> None:
    found = []
    for level in (10, 200):
        place = tmp_path / str(level) / "cat"
        place.mkdir(parents=True)
        Image.new("RGB", (8, 8), (level,) * 3).save(place / "0.bmp")
        found.append(open_folder(tmp_path / str(level), "pets", spec=SQUARE.at_size(8)).digest)
    assert found[0] != found[1]


def test_random_crops_are_of_the_whole_picture(tmp_path: Path) -> None:
    """Red lies in the outer thirds of a wide picture, which its middle, cut out first, does not show."""
    picture = np.zeros((32, 96, 3), np.uint8)
    picture[:, :32, 0] = picture[:, 64:, 0] = 255
    (tmp_path / "cat").mkdir()
    Image.fromarray(picture).save(tmp_path / "cat" / "0.png")
    images = open_folder(tmp_path, "pets", spec=SQUARE.at_size(32))
    assert float(images.take(torch.tensor([0])).x[:, 0].max()) == 0
    loader = Loader(images, 1, augment=("random-resized-crop", "flip"), seed=0)
    seen = torch.stack([next(iter(loader.at(epoch))).x[0, 0].mean() for epoch in range(40)])
    assert float((seen > 0.5).float().mean()) > 0.3
    assert next(iter(loader)).x.shape == (1, 3, 32, 32)


def test_a_crop_of_all_of_a_square_picture_is_the_picture(tmp_path: Path) -> None:
    fill(tmp_path, each=2)
    images = open_folder(tmp_path, "pets")
    whole, labels = images.cropped(torch.arange(2), lambda shapes: torch.tensor([[0.0, 0, 1, 1]] * 2))
    assert torch.equal(whole, images.raw(torch.arange(2))[0])
    assert torch.equal(labels, images.labels[:2])


def test_imagenets_images_without_folders_are_labeled_by_the_wordnet_ids_in_their_names(
    tmp_path: Path,
) -> None:
    names = ("0999_n15075141_toilet_tissue.png", "n01443537_10.png", "ILSVRC2012_val_1_n01440764.png")
    for name in names:
        write(tmp_path / "a" / name, (300, 300))
    images = load(f"imagenet:{tmp_path}/a")
    assert dict(zip(images.files, images.labels.tolist(), strict=True)) == dict(
        zip(names, (999, 1, 0), strict=True)
    )
    assert len(images.classes) == 1000
    write(tmp_path / "a" / "holiday.png", (300, 300))
    with pytest.raises(BadInput, match=r"in their names: holiday\.png has none"):
        load(f"imagenet:{tmp_path}/a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="it is empty"):
        load(f"imagenet:{tmp_path}/empty")


@needs_published
def test_the_published_photographs_are_labeled_with_the_index_in_their_names() -> None:
    images = load(f"imagenet:{PHOTOGRAPHS}")
    assert len(images) == 700
    assert [int(file[:4]) for file in images.files] == images.labels.tolist()


def table(path: Path, rows: list[tuple[str, ...]], **options: object) -> Path:
    with open(path, "w", newline="", **options) as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_table_gives_files_their_labels(tmp_path: Path, encoding: str) -> None:
    for k in range(4):
        write(tmp_path / "deep" / f"{k}.png", seed=k)
    rows = [(f"deep/{k}.png", name) for k, name in enumerate(("cat, wild", "ant", "cat, wild", "über"))]
    table(tmp_path / "labels.csv", rows, encoding=encoding)
    images = load(f"folder:{tmp_path}")
    assert images.classes == ("ant", "cat, wild", "über")
    for k, label in enumerate((1, 0, 1, 2)):
        shown = torch.from_numpy(np.array(Image.open(tmp_path / "deep" / f"{k}.png"))).permute(2, 0, 1)
        (place,) = [at for at, image in enumerate(images.images) if torch.equal(image, shown)]
        assert int(images.labels[place]) == label
    more = [("id", "Label", "Filename"), *((str(k), label, file) for k, (file, label) in enumerate(rows))]
    again = load(f"csv:{table(tmp_path / 'more.csv', more, encoding=encoding)}")
    assert (again.digest, again.name) == (images.digest, "more")
    assert load(f"csv:{tmp_path}/more.csv@4").spec.size == (4, 4)


def test_whole_numbers_in_a_table_are_the_labels_themselves(tmp_path: Path) -> None:
    for k in range(3):
        write(tmp_path / f"{k}.png", (300, 300))
    rows = [("0.png", "10"), ("1.png", "2"), ("2.png", "010")]
    table(tmp_path / "labels.csv", rows)
    images = load(f"folder:{tmp_path}")
    assert sorted(images.labels.tolist()) == [2, 10, 10]
    assert len(images.classes) == 11
    of_imagenet = load(f"imagenet:{tmp_path}")
    assert sorted(of_imagenet.labels.tolist()) == [2, 10, 10]
    assert of_imagenet.classes[2] == "n01484850"
    table(tmp_path / "labels.csv", [("0.png", "n01484850")])
    assert load(f"imagenet:{tmp_path}").labels.tolist() == [2]


def test_a_table_beside_each_split_counts_in_the_classes_of_the_training_images(tmp_path: Path) -> None:
    for split, labels in (("train", "abc"), ("test", "c")):
        for k in range(len(labels)):
            write(tmp_path / split / f"{k}.png", (8, 6))
        table(tmp_path / split / "labels.csv", [(f"{k}.png", label) for k, label in enumerate(labels)])
    assert load(f"folder:{tmp_path}", "test").labels.tolist() == [2]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([("0.png", "a"), ("gone.png", "b")], r"lists gone\.png, which is not there"),
        ([("0.png", "a"), ("0.png", "")], r"no label in the line 0\.png,"),
        ([("file", "label"), ("0.png",)], r"no label in the line 0\.png;"),
        ([("a", "b", "c"), ("0.png", "a", "1")], "needs a header that names one of its columns file"),
        ([("file", "label")], "lists no images"),
        ([], "needs a header"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, rows: list[tuple[str, ...]], complaint: str
) -> None:
    write(tmp_path / "0.png", (8, 6))
    table(tmp_path / "labels.csv", rows)
    for name in (f"folder:{tmp_path}", f"csv:{tmp_path}/labels.csv"):
        with pytest.raises(BadInput, match=complaint):
            load(name)


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(BadInput, match="not a table of files and labels: it is a PNG image"):
        load(f"csv:{tmp_path}/labels.csv")
    with pytest.raises(BadInput, match="is not there"):
        load(f"csv:{tmp_path}/nowhere.csv")
