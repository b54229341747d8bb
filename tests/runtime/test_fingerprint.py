"""A key changes with everything that determines a result, and with nothing else.

Also tests runtime.source, runtime.torchscript.
"""

import copy
import importlib
import itertools
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
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
from trimtab import adapt, claims, norm
from trimtab.attacks import CW, FGSM, L2, PGD, AutoAttack, Linf, Square, ThroughBatch
from trimtab.claims import result
from trimtab.claims.scales import scale_of
from trimtab.evaluate import Corrupted, Noise
from trimtab.runtime.fingerprint import describe, digest, of_model
from trimtab.train import Recipe, Standard
from trimtab.types import BadInput


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))


METHODS = [
    *(PGD(), PGD(steps=21), PGD(Linf("4/255")), PGD(L2("8/255")), PGD(early_stop=True), PGD(restarts=2)),
    *(CW(), FGSM(), Noise(0.1), Noise(0.2), Corrupted("fog", 1), Corrupted("fog", 2), Corrupted("snow", 1)),
]


def test_methods_that_differ_in_anything_have_different_keys() -> None:
    digests = {digest(describe(method)) for method in METHODS}
    assert len(digests) == len(METHODS)


def test_the_same_method_written_in_another_way_has_the_same_key() -> None:
    assert describe(PGD(Linf("8/255"), steps=5)) == describe(PGD(steps=5, budget=Linf(8 / 255)))


def test_a_new_version_of_a_method_has_a_new_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(describe(PGD()))
    monkeypatch.setattr(PGD, "version", PGD.version + 1)
    assert digest(describe(PGD())) != before


@dataclass(frozen=True)
class Holder:
    version: ClassVar[int] = 1
    inner: object = field(default=None)


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(BadInput, match="frozen dataclasses"):
        describe(Holder(lambda model, x, y: x))


def test_equal_models_have_equal_digests_and_training_mode_does_not_matter() -> None:
    assert of_model(net().train()) == of_model(net().eval())


def test_a_digest_sees_every_parameter_and_buffer() -> None:
    whole = of_model(net())
    for name, tensor in (model := net()).state_dict().items():
        kept = tensor.clone()
        tensor.add_(1)
        assert of_model(model) != whole, name
        tensor.copy_(kept)
    assert of_model(model) == whole


def test_a_digest_sees_branches_unsaved_buffers_and_architecture() -> None:
    branched = trimtab.steer(net())
    trimtab.add_branch(branched, "adv", copy_of="main")
    other = net()
    other[2] = nn.GELU()
    hidden = net()
    hidden.register_buffer("mean", torch.zeros(3), persistent=False)
    shifted = net()
    shifted.register_buffer("mean", torch.ones(3), persistent=False)
    assert len({of_model(model) for model in (net(), branched, other, hidden, shifted)}) == 5


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
    assert len({of_model(model) for model in models}) == len(models)
    assert of_model(Scaled(Linf("1/255"))) == of_model(Scaled(Linf("1/255")))


def test_a_digest_does_not_ask_where_a_model_comes_from(tmp_path) -> None:
    model = trimtab.load("net:resnet8,width=4")
    for name in ("a", "b"):
        trimtab.save(model, tmp_path / name)
    assert of_model(trimtab.load(tmp_path / "a")) == of_model(trimtab.load(tmp_path / "b"))


def test_a_digest_is_not_fooled_by_addresses_in_a_description() -> None:
    class Named(nn.Identity):
        def extra_repr(self) -> str:
            return repr(object())

    assert of_model(Named()) == of_model(Named())


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
    assert len({of_model(Scaled(value)) for value in values}) == len(values)
    assert all(of_model(Scaled(value)) == of_model(Scaled(value)) for value in values)


def shallow_and_deep(depth: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(3, 3)] * depth)


def test_a_digest_counts_a_layer_at_every_place_it_has() -> None:
    assert of_model(shallow_and_deep(2)) != of_model(shallow_and_deep(5))
    act = nn.Tanh()  # which has no parameters
    assert of_model(nn.Sequential(act, act)) != of_model(nn.Sequential(act, act, act))


def test_a_digest_sees_hooks() -> None:
    hooked, other = net(), net()
    hooked.register_forward_hook(lambda module, given, out: -out)
    other.register_forward_hook(lambda module, given, out: 2 * out)
    assert len({of_model(net()), of_model(hooked), of_model(other)}) == 3


def test_code_without_a_file_is_never_the_same_again() -> None:
    space: dict[str, Any] = {"__name__": "notebook"}
    exec("from torch import nn\nclass Mine(nn.Identity):\n    def forward(self, x): return x", space)
    mine = space["Mine"]()
    assert of_model(mine) != of_model(mine)


def test_steering_alone_is_no_other_model_and_freezing_is() -> None:
    steered = trimtab.steer(net())
    assert of_model(steered) == of_model(net())
    assert of_model(norm.freeze(steered)) != of_model(net())


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
        return type("Scaled", (nn.Sequential,), {"scale": scale, "__module__": __name__})(*net())

    @staticmethod
    def default_argument(by: int) -> nn.Module:
        def forward(self: Any, x: Any, times: int = by) -> Any:
            return x * times

        return type("Scaled", (nn.Sequential,), {"forward": forward, "__module__": __name__})(*net())

    @staticmethod
    def decorated(other: int) -> nn.Module:
        def decorate(function: Any) -> Any:
            return lambda self, x: function(self, x)

        def forward(self: Any, x: Any) -> Any:
            return x

        def elsewhere(self: Any, x: Any) -> Any:
            return -x

        chosen = decorate(elsewhere if other else forward)
        return type("Wrapped", (nn.Sequential,), {"forward": chosen, "__module__": __name__})(*net())

    @staticmethod
    def static_method(other: int) -> nn.Module:
        method = staticmethod((lambda x: x) if other else (lambda x: -x))
        return type("Static", (nn.Sequential,), {"method": method, "__module__": __name__})(*net())


@pytest.mark.parametrize("what", [name for name in vars(Unlike) if not name.startswith("_")])
def test_models_that_compute_otherwise_have_other_digests(what: str) -> None:
    make = getattr(Unlike, what)
    assert of_model(make(0)) == of_model(make(0))
    assert of_model(make(0)) != of_model(make(1))


def test_a_digest_sees_the_functions_that_a_forward_pass_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    class Calling(nn.Sequential):
        def forward(self, x: Any) -> Any:
            return helper(x)

    before = of_model(Calling(*net()))
    monkeypatch.setitem(globals(), "helper", lambda x: x * 3)
    assert of_model(Calling(*net())) != before


def test_names_of_classes_are_words_and_circles_end() -> None:
    plain, named = net(), net()
    named.classes = ("cat", "dog")  # type: ignore[assignment]
    plain.classes = None  # type: ignore[assignment]
    assert of_model(plain) == of_model(named)
    outer, inner = net(), nn.Linear(2, 2)
    outer.held, inner.back = [inner], [outer]  # type: ignore[assignment]
    assert of_model(outer)


def test_keys_are_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    names = {'a': 1, 'b': 2}\n"
        "    def forward(self, x):\n"
        "        return x if x.device.type in {'cpu', 'cuda', 'mps', 'xpu', 'meta'} else -x\n"
    )
    code = "import own; from trimtab.runtime import fingerprint; print(fingerprint.of_model(own.Own()))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1


def test_keys_of_torchscript_are_the_same_in_another_process() -> None:
    code = (
        "import torch; from torch import nn; from trimtab.runtime import fingerprint\n"
        "net = torch.jit.script(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(2, 2)))\n"
        "for value in net.parameters(): value.data.fill_(1)\n"
        "print(fingerprint.of_model(net))"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(keys) == 1


ACT: Any = torch.relu
OFFSETS: Any = (0.1, 0.2)


class Global(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ACT(x) - OFFSETS[0]


def test_what_a_forward_pass_reads_of_its_file_is_part_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [of_model(Global())]
    for name, value in (("ACT", torch.tanh), ("OFFSETS", (0.9, 0.2)), ("OFFSETS", torch.ones(1))):
        monkeypatch.setitem(globals(), name, value)
        found.append(of_model(Global()))
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
        digests.append(of_model(model))
    assert digests[0] == digests[2] != digests[1]


def test_compiling_is_no_part_of_a_model() -> None:
    wanted = of_model(net())
    assert of_model(torch.compile(net(), backend="eager")) == wanted
    inside = net()
    inside[1] = torch.compile(inside[1], backend="eager")
    assert of_model(inside) == wanted
    compiled = net()
    compiled.compile(backend="eager")
    assert of_model(compiled) == wanted


def read_by(
    source: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    digest_of: Callable[[Any], str] = of_model,
    **files: str,
) -> str:
    """The key of `Net` in a file of this source, next to other files."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("keyed_net", *files)
    for name, text in zip(names, (source, *files.values()), strict=True):
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return digest_of(importlib.import_module("keyed_net").Net())


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


MINE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Net:
    eps: float = 0.1

    def __call__(self, model, x, y):
        return {call}
"""


def test_an_edited_method_of_ones_own_has_a_new_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    first, same, edited = (
        read_by(
            MINE.format(call=call), tmp_path, monkeypatch, digest_of=lambda method: digest(describe(method))
        )
        for call in ("x", "x", "1 - x")
    )
    assert first == same != edited


def test_an_edited_backward_pass_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = "from rounding import Rounding\n" + HEAD + "Rounding.apply(x)\n"
    rounding = "import torch\nclass Rounding(torch.autograd.Function):\n    @staticmethod\n"
    rounding += "    def forward(ctx, x): return x.round()\n    @staticmethod\n"
    rounding += "    def backward(ctx, g): return {} * g\n"
    masked, through = (
        read_by(source, tmp_path, monkeypatch, rounding=rounding.format(factor)) for factor in (0, 1)
    )
    assert masked != through


def test_a_helper_that_is_imported_inside_a_function_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = HEAD + "self.helped(x)\n    def helped(self, x):\n"
    source += "        import lazy_helper\n        return lazy_helper.f(x)\n"
    helpers = [f"def f(x): return {factor} * x\n" for factor in (1, 5, 1)]
    keys = [read_by(source, tmp_path, monkeypatch, lazy_helper=helper) for helper in helpers]
    assert keys[0] == keys[2] != keys[1]


def test_a_place_is_no_part_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / name)
            keys.append(
                read_by("import pa\n" + HEAD + "pa.f(x)\n", tmp_path / name, patch, pa="def f(x): return x\n")
            )
    assert keys[0] == keys[1]


class KnowsBetter(Scaled):
    def __fingerprint__(self) -> tuple[type, dict[str, Any]]:
        return nn.Identity, {"rounded": round(float(self.by))}  # type: ignore[arg-type]


def test_what_knows_better_is_known_by_what_it_returns() -> None:
    assert of_model(KnowsBetter(1.1)) == of_model(KnowsBetter(1.2)) != of_model(KnowsBetter(2.2))


def grown(kind: Any) -> Any:
    """A class of methods after an option with a default was added to it."""
    own = {"__module__": kind.__module__}
    return make_dataclass(
        kind.__name__,
        [("patience", int, field(default=7))],
        bases=(kind,),
        frozen=True,
        eq=False,
        namespace=own,
    )


def test_an_option_added_with_a_default_changes_no_key() -> None:
    assert describe(grown(PGD)(steps=5)) == describe(PGD(steps=5))
    assert describe(grown(PGD)(steps=5, patience=8)) != describe(PGD(steps=5))
    recipe = grown(Recipe)(objective=Standard(), patience=7)
    assert recipe.digest == Recipe(objective=Standard()).digest
    assert grown(Recipe)(objective=Standard(), patience=8).digest != recipe.digest


def test_an_option_added_to_a_scale_changes_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = next(iter(claims.everything().values()))
    at = scale_of("smoke", claim.paper)
    before = result.settings(claim, "smoke")
    given = {one.name: getattr(at, one.name) for one in fields(at)}
    for patience, same in ((7, True), (8, False)):
        larger = grown(type(at))(**given, patience=patience)
        monkeypatch.setattr(result, "scale_of", lambda scale, paper, larger=larger: larger)
        assert (result.settings(claim, "smoke") == before) is same


def test_a_default_that_has_a_version_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Around:
        attack: PGD = field(default_factory=PGD)

    before = describe(Around())
    monkeypatch.setattr(PGD, "version", PGD.version + 1)
    assert describe(Around()) != before


def test_files_and_operators_that_a_model_reads_are_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = "import numpy, torch\nOPS = {{'lib': numpy}}\nACT = torch.ops.aten.{}\n"
    source += HEAD + "ACT(x + OPS['lib'].pi)\n"
    found = [read_by(source.format(act), tmp_path, monkeypatch) for act in ("relu", "tanh")]
    assert found[0] != found[1]


def test_an_ensemble_changes_with_the_version_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(describe(AutoAttack()))
    monkeypatch.setattr(Square, "version", 7)
    assert digest(describe(AutoAttack())) != before


def test_pictures_of_ice_count_by_what_they_show(tmp_path: Path) -> None:
    for folder, level in (("a", 10), ("b", 10), ("c", 90)):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (40, 40), (level, level, level)).save(tmp_path / folder / "frost1.png")
    a, b, c = (describe(Corrupted("frost", 3, str(tmp_path / folder))) for folder in "abc")
    assert a == b != c
    assert describe(Corrupted("fog", 3, str(tmp_path / "a"))) == describe(Corrupted("fog", 3))


def test_a_whole_number_and_the_same_fraction_are_one_attack() -> None:
    assert digest(describe(ThroughBatch(rho=1))) == digest(describe(ThroughBatch(rho=1.0)))


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
        return of_model(model)

    one, other = held
    assert key(one) != key(other)
    assert key(one) == key(copy.deepcopy(one))


def test_what_cannot_be_saved_does_not_keep_a_model_from_having_a_key() -> None:
    model = net()
    model.lock = threading.Lock()
    assert of_model(model) == of_model(model)


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
        assert of_model(make(1.0)) == of_model(make(1.0))
        assert of_model(make(1.0)) != of_model(make(2.0))


def test_a_traced_network_has_a_key_of_its_graph_at_once() -> None:
    class Twice(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.net, self.factor = net(), factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.factor * self.net(x)

    one, same, other = (of_model(torch.fx.symbolic_trace(Twice(factor))) for factor in (2.0, 2.0, 3.0))
    assert one == same != other


@torch.fx.wrap
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def test_functions_that_a_traced_network_calls_are_part_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return doubled(x)

    one = of_model(torch.fx.symbolic_trace(Doubled()))
    assert one == of_model(torch.fx.symbolic_trace(Doubled()))
    monkeypatch.setattr(doubled, "__code__", thrice.__code__)
    assert one != of_model(torch.fx.symbolic_trace(Doubled()))


@pytest.mark.parametrize(
    "held",
    [np.random.RandomState(0), np.random.PCG64(0), np.random.default_rng(0), torch.Generator(),
     itertools.count(), logging.getLogger("own"), Path("somewhere")],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_what_was_drawn_or_noted_so_far_is_no_part_of_a_key(held: Any) -> None:
    model = net()
    model.held = held
    before = of_model(model)
    for draw in ("rand", "random_raw", "random", "__next__"):
        getattr(held, draw, lambda: None)()
    if isinstance(held, torch.Generator):
        torch.rand(3, generator=held)
    if isinstance(held, Path):
        model.held = held / "else"
    logging.addLevelName(7, "OWN")
    assert of_model(model) == before
