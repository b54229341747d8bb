"""A key changes with everything that determines a result, and with nothing else."""

import copy
import importlib
import itertools
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import trimtab
from trimtab import adapt, keys, norm
from trimtab.attacks import CW, FGSM, L2, PGD, AutoAttack, Linf, Square, ThroughBatch
from trimtab.evaluate import Corrupted, Noise
from trimtab.types import BadInput


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))


METHODS = [
    *(PGD(), PGD(steps=21), PGD(Linf("4/255")), PGD(L2("8/255")), PGD(score="any"), PGD(restarts=2)),
    *(CW(), FGSM(), Noise(0.1), Noise(0.2), Corrupted("fog", 1), Corrupted("fog", 2), Corrupted("snow", 1)),
]


def test_methods_that_differ_in_anything_have_different_keys() -> None:
    digests = {keys.digest(keys.describe(method)) for method in METHODS}
    assert len(digests) == len(METHODS)


def test_the_same_method_written_in_another_way_has_the_same_key() -> None:
    assert keys.describe(PGD(Linf("8/255"), steps=5)) == keys.describe(PGD(steps=5, budget=Linf(8 / 255)))


def test_a_new_version_of_a_method_has_a_new_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys.digest(keys.describe(PGD()))
    monkeypatch.setattr(PGD, "version", PGD.version + 1)
    assert keys.digest(keys.describe(PGD())) != before


@dataclass(frozen=True)
class Holder:
    version: ClassVar[int] = 1
    inner: object = field(default=None)


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(BadInput, match="frozen dataclasses"):
        keys.describe(Holder(lambda model, x, y: x))


def test_equal_models_have_equal_digests_and_training_mode_does_not_matter() -> None:
    assert keys.weights(net().train()) == keys.weights(net().eval())


def test_a_digest_sees_every_parameter_and_buffer() -> None:
    whole = keys.weights(net())
    for name, tensor in (model := net()).state_dict().items():
        kept = tensor.clone()
        tensor.add_(1)
        assert keys.weights(model) != whole, name
        tensor.copy_(kept)
    assert keys.weights(model) == whole


def test_a_digest_sees_branches_unsaved_buffers_and_architecture() -> None:
    branched = trimtab.steer(net())
    trimtab.add_branch(branched, "adv", copy_of="main")
    other = net()
    other[2] = nn.GELU()
    hidden = net()
    hidden.register_buffer("mean", torch.zeros(3), persistent=False)
    shifted = net()
    shifted.register_buffer("mean", torch.ones(3), persistent=False)
    assert len({keys.weights(model) for model in (net(), branched, other, hidden, shifted)}) == 5


class Scaled(nn.Module):
    def __init__(self, by: object) -> None:
        super().__init__()
        self.by, self.words = by, print  # what is no constant is left aside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_digest_sees_the_constants_that_modules_hold() -> None:
    values = (1, 2, 1.5, "a", None, (1, 2), [1, 3], {"k": 1}, Linf("1/255"), Linf("2/255"), torch.zeros(2))
    models = [Scaled(value) for value in values]
    models += [adapt.per_batch(net(), *how) for how in ((1.0,), (0.1,), (0.1, "var"), (0.1, "std", "median"))]
    models += [adapt.stream(net(), prior=1), adapt.stream(net(), prior=2)]
    assert len({keys.weights(model) for model in models}) == len(models)
    assert keys.weights(Scaled(Linf("1/255"))) == keys.weights(Scaled(Linf("1/255")))


def test_a_digest_does_not_ask_where_a_model_comes_from(tmp_path) -> None:
    model = trimtab.load("net:resnet8,width=4")
    for name in ("a", "b"):
        trimtab.save(model, tmp_path / name)
    assert keys.weights(trimtab.load(tmp_path / "a")) == keys.weights(trimtab.load(tmp_path / "b"))


def test_a_digest_is_not_fooled_by_addresses_in_a_description() -> None:
    class Named(nn.Identity):
        def extra_repr(self) -> str:
            return repr(object())

    assert keys.weights(Named()) == keys.weights(Named())


def test_a_digest_sees_functions_arrays_and_what_json_has_no_word_for() -> None:
    values = (
        *(
            torch.relu,
            torch.sin,
            len,
            lambda x: x,
            lambda x: -x,
            partial(torch.add, 1),
            partial(torch.add, 2),
        ),
        *(np.zeros(2), np.ones(2), np.float32(1), np.float32(2), torch.float32, torch.float64),
        *({1, 2}, {1, 3}, 1 + 2j, float("inf"), float("nan"), nn.ReLU, nn.GELU),
    )
    assert len({keys.weights(Scaled(value)) for value in values}) == len(values)
    assert all(keys.weights(Scaled(value)) == keys.weights(Scaled(value)) for value in values)


def shallow_and_deep(depth: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(3, 3)] * depth)


def test_a_digest_counts_a_layer_at_every_place_it_has() -> None:
    assert keys.weights(shallow_and_deep(2)) != keys.weights(shallow_and_deep(5))


def test_a_digest_sees_hooks_and_edited_code() -> None:
    def written(source: str) -> nn.Module:
        space: dict[str, Any] = {"__name__": "mine"}
        exec(
            f"from torch import nn\nclass Mine(nn.Identity):\n    def forward(self, x): return {source}",
            space,
        )
        return space["Mine"]()

    hooked = net()
    hooked.register_forward_hook(lambda module, given, out: -out)
    assert keys.weights(hooked) != keys.weights(net())
    assert keys.weights(written("x")) == keys.weights(written("x"))
    assert len({keys.weights(written(source)) for source in ("x", "-x", "2 * x", "x.abs()", "x.sin()")}) == 5


def test_steering_alone_is_no_other_model_and_freezing_is() -> None:
    steered = trimtab.steer(net())
    assert keys.weights(steered) == keys.weights(net())
    assert keys.weights(norm.freeze(steered)) != keys.weights(net())


def helper(x: Any) -> Any:
    return x * 2


class Unlike:
    """Models that differ in one thing that is no parameter; each is made anew, as in another run."""

    @staticmethod
    def in_a_list(seed: int) -> nn.Module:
        model = net()
        torch.manual_seed(seed)
        model.others = [nn.Linear(2, 2)]  # type: ignore[assignment]  # unregistered
        return model

    @staticmethod
    def in_an_object(size: int) -> nn.Module:
        class Steps:
            def __init__(self) -> None:
                self.steps = [size]

            def __call__(self, x: Any) -> Any:
                return x

        model = net()
        model.before = Steps()  # type: ignore[assignment]
        return model

    @staticmethod
    def chosen_classes(first: int) -> nn.Module:
        class Subset(nn.Sequential):
            pass

        model = Subset(*net())
        model.classes = [first, first + 1]  # type: ignore[assignment]
        return model

    @staticmethod
    def attribute_of_the_class(scale: int) -> nn.Module:
        return type("Scaled", (nn.Sequential,), {"scale": scale, "__module__": "own"})(*net())

    @staticmethod
    def default_argument(by: int) -> nn.Module:
        def forward(self: Any, x: Any, times: int = by) -> Any:
            return x * times

        return type("Scaled", (nn.Sequential,), {"forward": forward, "__module__": "own"})(*net())

    @staticmethod
    def decorated(other: int) -> nn.Module:
        def decorate(function: Any) -> Any:
            return lambda self, x: function(self, x)

        def forward(self: Any, x: Any) -> Any:
            return x

        def elsewhere(self: Any, x: Any) -> Any:
            return -x

        chosen = decorate(elsewhere if other else forward)
        return type("Wrapped", (nn.Sequential,), {"forward": chosen, "__module__": "own"})(*net())

    @staticmethod
    def static_method(other: int) -> nn.Module:
        method = staticmethod((lambda x: x) if other else (lambda x: -x))
        return type("Static", (nn.Sequential,), {"method": method, "__module__": "own"})(*net())


@pytest.mark.parametrize("what", [name for name in vars(Unlike) if not name.startswith("_")])
def test_models_that_compute_otherwise_have_other_digests(what: str) -> None:
    make = getattr(Unlike, what)
    assert keys.weights(make(0)) == keys.weights(make(0))
    assert keys.weights(make(0)) != keys.weights(make(1))


def test_a_digest_sees_the_functions_that_a_forward_pass_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Calling(nn.Sequential):
        def forward(self, x: Any) -> Any:
            return helper(x)

    before = keys.weights(Calling(*net()))
    monkeypatch.setitem(globals(), "helper", lambda x: x * 3)
    assert keys.weights(Calling(*net())) != before


def test_names_of_classes_are_words_and_circles_end() -> None:
    plain, named = net(), net()
    named.classes = ("cat", "dog")  # type: ignore[assignment]
    plain.classes = None  # type: ignore[assignment]
    assert keys.weights(plain) == keys.weights(named)
    outer, inner = net(), nn.Linear(2, 2)
    outer.held, inner.back = [inner], [outer]  # type: ignore[assignment]
    assert keys.weights(outer)


def test_keys_are_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    names = {'a': 1, 'b': 2}\n"
        "    def forward(self, x):\n"
        "        return x if x.device.type in {'cpu', 'cuda', 'mps', 'xpu', 'meta'} else -x\n"
    )
    code = "import own; from trimtab import keys; print(keys.weights(own.Own()))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1


ACT: Any = torch.relu
OFFSETS: Any = (0.1, 0.2)


class Global(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ACT(x) - OFFSETS[0]


def test_what_a_forward_pass_reads_of_its_file_is_part_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [keys.weights(Global())]
    for name, value in (("ACT", torch.tanh), ("OFFSETS", (0.9, 0.2)), ("OFFSETS", torch.ones(1))):
        monkeypatch.setitem(globals(), name, value)
        found.append(keys.weights(Global()))
    assert len(set(found)) == 4


def enclosing(function: Any) -> Any:
    return lambda x: function(x)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (slice(0, 3), slice(1, 4)),
        (range(3), range(5)),
        (b"a", b"b"),
        (deque([1]), deque([2])),
        (enclosing(torch.relu), enclosing(torch.tanh)),
        (enclosing(nn.ReLU()), enclosing(nn.Tanh())),
    ],
)
def test_values_of_any_kind_that_a_module_holds_tell_it_from_others(one: Any, other: Any) -> None:
    digests = []
    for value in (one, other, one):
        model = net()
        model[2].held = value
        digests.append(keys.weights(model))
    assert digests[0] == digests[2] != digests[1]


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 0 * grad


class StraightThrough(Rounding):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Rounds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Rounding.apply(x)


def test_the_backward_pass_of_ones_own_function_is_part_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = keys.weights(Rounds())
    StraightThrough.__name__ = StraightThrough.__qualname__ = "Rounding"  # as if the file had been edited
    monkeypatch.setitem(globals(), "Rounding", StraightThrough)
    assert keys.weights(Rounds()) != masked


def test_compiling_is_no_part_of_a_model() -> None:
    wanted = keys.weights(net())
    assert keys.weights(torch.compile(net(), backend="eager")) == wanted
    inside = net()
    inside[1] = torch.compile(inside[1], backend="eager")
    assert keys.weights(inside) == wanted
    compiled = net()
    compiled.compile(backend="eager")
    assert keys.weights(compiled) == wanted


MINE = """
@dataclass(frozen=True)
class Mine:
    eps: float = 0.1

    def __call__(self, model, x, y):
        return {call}

    @staticmethod
    def moved(x):
        return {moved}
"""


def test_an_edited_method_of_ones_own_has_a_new_key() -> None:
    found = []
    for call, moved in (("x", "x"), ("x", "x"), ("1 - x", "x"), ("x", "2 * x")):
        space: dict[str, Any] = {"dataclass": dataclass, "__name__": "mine"}
        exec(MINE.format(call=call, moved=moved), space)
        found.append(keys.digest(keys.describe(space["Mine"]())))
    assert found[0] == found[1]
    assert len(set(found)) == 3


def read_by(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> str:
    """The key of `Net` in a file of this source, beside other files."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("keyed_net", *files)
    for name, text in zip(names, (source, *files.values()), strict=True):
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return keys.weights(importlib.import_module("keyed_net").Net())


HEAD = "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        return "
EDITED = {
    "a helper in another file": ("import pa\n" + HEAD + "pa.f(x)\n", "def f(x):\n    return {} * x\n"),
    "of two with one name": (
        "import pb, pa\n" + HEAD + "pb.f(x) + pa.f(x)\n",
        "def f(x):\n    return {} * x\n",
    ),
    "a decorated one": (
        "import pa\n" + HEAD + "pa.f(x)\n",
        "import functools\n@functools.lru_cache\ndef f(x):\n    return {} * x\n",
    ),
}


@pytest.mark.parametrize("edited", EDITED)
def test_an_edited_helper_is_another_model(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source, helper = EDITED[edited]
    other = "def f(x):\n    return x\n"
    found = [
        read_by(source, tmp_path, monkeypatch, pa=helper.format(factor), pb=other) for factor in (1, 5, 1)
    ]
    assert found[0] == found[2] != found[1]


def test_files_and_operators_that_a_model_reads_are_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = "import numpy, torch\nOPS = {{'lib': numpy}}\nACT = torch.ops.aten.{}\n"
    source += HEAD + "ACT(x + OPS['lib'].pi)\n"
    found = [read_by(source.format(act), tmp_path, monkeypatch) for act in ("relu", "tanh")]
    assert found[0] != found[1]


def test_an_ensemble_changes_with_the_version_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys.digest(keys.describe(AutoAttack()))
    monkeypatch.setattr(Square, "version", 7)
    assert keys.digest(keys.describe(AutoAttack())) != before


def test_pictures_of_ice_count_by_what_they_show(tmp_path: Path) -> None:
    for folder, level in (("a", 10), ("b", 10), ("c", 90)):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (40, 40), (level, level, level)).save(tmp_path / folder / "frost1.png")
    a, b, c = (keys.describe(Corrupted("frost", 3, str(tmp_path / folder))) for folder in "abc")
    assert a == b != c
    assert keys.describe(Corrupted("fog", 3, str(tmp_path / "a"))) == keys.describe(Corrupted("fog", 3))


def test_a_whole_number_and_the_same_fraction_are_one_attack() -> None:
    assert keys.digest(keys.describe(ThroughBatch(rho=1))) == keys.digest(
        keys.describe(ThroughBatch(rho=1.0))
    )


def thrice(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


@pytest.mark.parametrize(
    "held",
    [(Fraction(1, 3), Fraction(2, 3)), (Decimal("1.5"), Decimal("2.5")), (itemgetter(0), itemgetter(1)),
     (Slotted(1.0), Slotted(2.0)), (torch.eye(2).to_sparse(), (2 * torch.eye(2)).to_sparse())],
    ids=lambda pair: type(pair[0]).__name__,
)  # fmt: skip
def test_what_an_object_hides_is_part_of_the_key(held: tuple[Any, Any]) -> None:
    def key(value: Any) -> str:
        model = net()
        model.held = value
        return keys.weights(model)

    one, other = held
    assert key(one) != key(other)
    assert key(one) == key(copy.deepcopy(one))


def test_what_cannot_be_saved_does_not_keep_a_model_from_having_a_key() -> None:
    model = net()
    model.lock = threading.Lock()
    assert keys.weights(model) == keys.weights(model)


@pytest.mark.filterwarnings("ignore")  # torch's, about what it means to give up
def test_packed_weights_and_the_constants_of_a_trace_are_part_of_the_key() -> None:
    def packed(bias: float) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        nn.init.constant_(model[1].bias, bias)
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    def traced(constant: float) -> nn.Module:
        class Times(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * torch.tensor([constant])

        return torch.jit.trace(Times(), torch.ones(2))

    def scripted(constant: float) -> nn.Module:
        class Times(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.constant = constant

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return thrice(x) * self.constant

        return torch.jit.script(Times())

    def holding(constant: float) -> nn.Module:
        model = net()
        model.traced = torch.jit.trace(lambda x: x * torch.tensor([constant]), torch.ones(2))
        return model

    for make in (packed, traced, scripted, holding):
        assert keys.weights(make(1.0)) == keys.weights(make(1.0))
        assert keys.weights(make(1.0)) != keys.weights(make(2.0))


def test_a_traced_network_has_a_key_of_its_graph_at_once() -> None:
    class Twice(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.net, self.factor = net(), factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.factor * self.net(x)

    one, same, other = (keys.weights(torch.fx.symbolic_trace(Twice(factor))) for factor in (2.0, 2.0, 3.0))
    assert one == same != other


@torch.fx.wrap
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_functions_that_a_traced_network_calls_are_part_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return doubled(x)

    one = keys.weights(torch.fx.symbolic_trace(Doubled()))
    assert one == keys.weights(torch.fx.symbolic_trace(Doubled()))
    monkeypatch.setattr(doubled, "__code__", thrice.__code__)
    assert one != keys.weights(torch.fx.symbolic_trace(Doubled()))


@pytest.mark.parametrize(
    "held",
    [np.random.RandomState(0), np.random.PCG64(0), np.random.default_rng(0), torch.Generator(),
     itertools.count(), logging.getLogger("own"), Path("somewhere")],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_what_was_drawn_or_noted_so_far_is_no_part_of_a_key(held: Any) -> None:
    model = net()
    model.held = held
    before = keys.weights(model)
    for draw in ("rand", "random_raw", "random", "__next__"):
        getattr(held, draw, lambda: None)()
    if isinstance(held, torch.Generator):
        torch.rand(3, generator=held)
    if isinstance(held, Path):
        model.held = held / "else"
    logging.addLevelName(7, "OWN")
    assert keys.weights(model) == before
