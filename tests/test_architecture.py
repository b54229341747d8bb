"""The shape of the code: imports point one way, and only `norm` knows how a batch-norm layer works."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import trimtab

ROOT = Path(trimtab.__file__).parent
ORDER = [
    ["types", "_clone", "_mode"],
    ["io", "rng", "_trace"],
    ["_bfloat16"],
    ["norm"],
    ["runtime"],
    ["models", "data"],
    ["_accel"],
    ["adapt"],
    ["attacks"],
    ["measure", "certify"],
    ["train"],
    ["construct"],
    ["evaluate"],
    ["report"],
    ["claims"],
    ["cli"],
    ["__main__"],
]
"""Each may import what stands above it here, and itself; neighbors on a line do not know each other."""
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}

FILES = {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT} | {
    path: ast.parse(path.read_text()) for path in ROOT.glob("*.py") if path.stem != "__init__"
}


def part(path: Path) -> str:
    """The folder (or bare module) of the package that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path, tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every part of trimtab that a file imports anywhere, also inside functions, with the line."""
    package = ["trimtab", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            modules = [f"{stem}.{alias.name}" for alias in node.names]
        for module in modules:
            names = module.split(".")
            if names[0] == "trimtab" and len(names) > 1:
                yield names[1], node.lineno


def named(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Attributes, names, keywords and strings of a file; neither comments nor docstrings."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value, node.lineno


def found(words: tuple[str, ...], allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} names {name}"
        for path, tree in FILES.items()
        if part(path) not in allowed
        for name, line in named(tree)
        if any(word in name for word in words)
    ]


def test_every_part_has_a_place_in_the_order() -> None:
    assert {part(path) for path in FILES} <= LEVEL.keys()


def test_the_documentation_states_this_order() -> None:
    text = (ROOT.parents[1] / "docs" / "architecture.md").read_text().split("```")[1]
    documented = [level.replace(" ", "").strip().split(",") for level in text.split("->")]
    assert [sorted(level) for level in documented] == [sorted(level) for level in ORDER[:-1]]


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path, tree in FILES.items()
        for name, line in imported(path, tree)
        if name in LEVEL and name != part(path) and LEVEL[name] >= LEVEL[part(path)]
    ]
    assert wrong == []


def private_imports(path: Path, tree: ast.Module) -> list[str]:
    """What a file imports from inside another package that is private: `_name`, or the inside of `_accel`."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for module in modules:
            top, *names = module.split(".")
            if top != "trimtab" or not names or names[0] == part(path):
                continue
            inside = isinstance(node, ast.Import) or module == node.module
            if any(name.startswith("_") for name in names[1:]) or (
                names[0] == "_accel" and names[1:] and inside
            ):
                lines.append(f"{path.name}:{node.lineno} imports {module}")
    return lines


def test_nobody_imports_the_inside_of_another_package_that_is_private() -> None:
    assert [line for path, tree in FILES.items() for line in private_imports(path, tree)] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from trimtab._accel import accelerate", 0),
        ("from trimtab._accel.accelerate import accelerate", 1),
        ("import trimtab._accel.accelerate", 1),
        ("from trimtab.norm._kernels import moments", 1),
        ("from trimtab.norm import _kernels", 1),
        ("from trimtab.train._loop import fit", 0),
    ],
)
def test_the_reader_of_private_imports_sees_every_way_to_write_one(source: str, count: int) -> None:
    assert bool(private_imports(ROOT / "train" / "base.py", ast.parse(source))) == bool(count)


def test_only_norm_names_the_buffers_of_a_batch_norm_layer() -> None:
    assert found(("running_mean", "running_var", "num_batches_tracked"), allowed=("norm",)) == []


def test_only_norm_and_models_name_the_classes_of_norm_layers() -> None:
    classes = ("BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "_NormBase")
    assert found(classes, allowed=("norm", "models")) == []


@pytest.mark.parametrize(
    "source", ["import trimtab.train", "from trimtab import train", "from ..train import fit"]
)
def test_the_reader_of_imports_sees_every_way_to_write_one(source: str) -> None:
    tree = ast.parse(f"def inside():\n    {source}")
    assert list(imported(ROOT / "norm" / "layer.py", tree)) == [("train", 2)]


def test_the_reader_of_names_sees_code_and_not_prose() -> None:
    tree = ast.parse('"""running_mean"""\nx.running_mean\ngetattr(x, "running_var")  # num_batches_tracked')
    assert {name for name, _ in named(tree) if "_" in name} == {"running_mean", "running_var"}
    assert [line for name, line in named(tree) if name == "running_mean"] == [2]


def test_importing_trimtab_imports_nothing_heavy() -> None:
    code = "import sys, trimtab; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_users_type_is_found_at_the_top() -> None:
    for name in ("steer", "release", "add_branch", "use", "audit"):
        assert getattr(trimtab, name) is getattr(trimtab.norm, name)
    with pytest.raises(AttributeError, match="steeer"):
        trimtab.steeer  # noqa: B018


def test_no_two_classes_have_one_name() -> None:
    classes = [node.name for tree in FILES.values() for node in tree.body if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(classes).items() if count > 1] == []


TESTS = Path(__file__).parent


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def also_tested(text: str) -> list[str]:
    """The modules that the docstring of a test file lists after "Also tests"."""
    listed = (ast.get_docstring(ast.parse(text)) or "").partition("Also tests ")[2].partition(".\n")[0]
    return [name for name in listed.rstrip(".").replace("\n", " ").split(", ") if name]


def test_every_module_is_tested_in_a_file_of_its_name_or_in_one_that_names_it() -> None:
    """The name of a private folder is left out; claims are tested paper by paper."""
    texts = {path.relative_to(TESTS): path.read_text() for path in TESTS.rglob("test_*.py")}
    modules = {dotted(path): path for path in FILES if path.stem not in ("__init__", "__main__")}
    listed = [name for text in texts.values() for name in also_tested(text)]
    own = {
        name: Path(*[n for n in name.split(".")[:-1] if n == part(path) or n[0] != "_"])
        / f"test_{path.stem.lstrip('_')}.py"
        for name, path in modules.items()
    }
    tested = {name for name, file in own.items() if file in texts}
    assert [name for name in listed if name not in modules] == []
    assert [name for name in listed if name in tested or listed.count(name) > 1] == []
    assert [name for name in modules if name not in tested | {*listed} and name[:7] != "claims."] == []
