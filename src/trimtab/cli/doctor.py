"""`trimtab doctor`: is this installation sound? Versions, and a self test of a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from trimtab.cli.options import Json

NEEDED = (
    "torch",
    "numpy",
    "scipy",
    "safetensors",
    "pillow",
    "lightning-fabric",
    "tyro",
    "rich",
    "pydantic",
    "pyyaml",
    "altair",
    "vl-convert-python",
    "jinja2",
)
EXTRAS = ("timm", "torchvision", "ray", "tensorboard")


@dataclass(frozen=True)
class Doctor:
    """Show versions and run a self test of a few seconds. Exit code 1 if something is wrong."""

    json: Json = False

    def run(self) -> int:
        from trimtab.cli import show
        from trimtab.models.architectures import extra

        versions = {name: _version(name) for name in (*NEEDED, *EXTRAS)}
        extras = {f"import {name}": partial(extra, name) for name in EXTRAS if versions[name]}
        results = {name: _try(test) for name, test in (TESTS | extras).items()}
        missing = [name for name in NEEDED if versions[name] is None]
        sound = not missing and all(trouble is None for trouble, _ in results.values())
        if self.json:
            checks = {name: trouble or "ok" for name, (trouble, _) in results.items()}
            show.as_json({"sound": sound, "versions": versions, "checks": checks, "device": _device()})
            return int(not sound)
        rows = [
            [name, found or ("missing" if name in NEEDED else "not installed (optional)")]
            for name, found in versions.items()
        ]
        show.table(f"trimtab {_version('trimtab')}, on {_device()}", ["package", "version"], rows)
        checked = [
            [name, trouble or "ok", f"{seconds:.1f} s"] for name, (trouble, seconds) in results.items()
        ]
        show.table("Self test", ["check", "result", "took"], checked, right=[2])
        show.out.print("All is well." if sound else "Something is wrong: see above.")
        return int(not sound)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device() -> str:
    import torch

    return (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU with {torch.get_num_threads()} threads"
    )


def _try(test: Callable[[], object]) -> tuple[str | None, float]:
    began = time.perf_counter()
    try:
        test()
        trouble = None
    except Exception as problem:  # whatever is wrong with an installation is what this command is to tell
        trouble = f"{type(problem).__name__}: {problem}"
    return trouble, time.perf_counter() - began


def _steering() -> None:
    import copy

    import torch

    from trimtab import models, norm

    stock = models.build("resnet8", classes=10, width=8).train()
    steered = norm.steer(copy.deepcopy(stock))
    x = torch.rand(8, 3, 32, 32)
    assert torch.equal(stock(x), steered(x)), "a steered model differs from the stock one"
    assert list(norm.release(steered).state_dict()) == list(stock.state_dict()), "release changed the keys"


def _attacking() -> None:
    import torch

    from trimtab import attacks, models

    model = models.build("resnet8", classes=10, width=8)
    x, y = torch.rand(16, 3, 32, 32), torch.arange(16) % 10
    adv = attacks.PGD(attacks.Linf("8/255"), steps=3)(model, x, y)
    assert float((adv - x).abs().max()) <= 8 / 255 + 1e-6, "an attack left its budget"


def _adapting() -> None:
    import torch

    from trimtab import adapt, models

    model, x = models.build("resnet8", classes=10, width=8).eval(), torch.rand(16, 3, 32, 32)
    assert torch.equal(adapt.per_batch(model, rho=0.0)(x), model(x)), "rho 0 is not the model itself"


def _certifying() -> None:
    import torch

    from trimtab import certify, models

    model = models.build("resnet8", classes=10, width=8).eval()
    found = certify.certify(model, torch.rand(2, 3, 32, 32), sigma=0.25, n0=10, n=50)
    assert len(found.classes) == 2, "certificates are missing"


def _reading() -> None:
    from trimtab import data

    images = data.load("sample", "test")
    batch = next(iter(images.batches(32)))
    assert batch.x.shape[0] == 32, "the embedded sample cannot be read"
    data.corrupt(batch.x, "fog", severity=3)


TESTS: dict[str, Callable[[], object]] = {
    "steer and release": _steering,
    "attack": _attacking,
    "adapt": _adapting,
    "certify": _certifying,
    "read and corrupt images": _reading,
}
