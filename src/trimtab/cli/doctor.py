"""`trimtab doctor`: check an installation: versions, and a self test of a few seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version

from trimtab.cli.lazy import adapt, attacks, certify, console, data, models, norm
from trimtab.cli.options import Json
from trimtab.types import BadInput

EXTRAS = ("timm", "torchvision", "ray", "tensorboard")


@dataclass(frozen=True)
class DoctorCommand:
    """Show versions and run a self test of a few seconds.

    Exit code 1 if something is wrong.
    """

    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        from trimtab.models.architectures import extra

        required = required_packages()
        versions = {name: _version(name) for name in (*required, *EXTRAS)}
        extras = {f"import {name}": partial(extra, name) for name in EXTRAS if versions[name]}
        results = {name: _timed(test) for name, test in (TESTS | extras).items()}
        missing = [name for name in required if versions[name] is None]
        sound = not missing and all(error is None for error, _ in results.values())
        if self.json:
            checks = {name: error or "ok" for name, (error, _) in results.items()}
            console.as_json({"sound": sound, "versions": versions, "checks": checks, "device": _device()})
            return int(not sound)
        rows = [
            [name, installed or ("missing" if name in required else "not installed (optional)")]
            for name, installed in versions.items()
        ]
        console.table(f"trimtab {_version('trimtab')}, on {_device()}", ["package", "version"], rows)
        test_rows = [[name, error or "ok", f"{seconds:.1f} s"] for name, (error, seconds) in results.items()]
        console.table("Self test", ["check", "result", "took"], test_rows, right=[2])
        console.say("All is well." if sound else "Something is wrong: see above.")
        return int(not sound)


def required_packages() -> list[str]:
    """Return the packages that trimtab requires, by its metadata; none if it is not installed."""
    try:
        lines = requires("trimtab") or []
    except PackageNotFoundError:
        return []
    return [re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device() -> str:
    import torch

    from trimtab._bfloat16 import probe

    return (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU with {torch.get_num_threads()} threads, bfloat16 {probe().speed}"
    )


def _timed(test: Callable[[], object]) -> tuple[str | None, float]:
    """Run a test and return its error, None if there is none, and its seconds."""
    start = time.perf_counter()
    try:
        test()
        error = None
    except Exception as problem:  # any error is a finding of this command
        error = f"{type(problem).__name__}: {problem}"
    return error, time.perf_counter() - start


def _check_steering() -> None:
    import copy

    import torch

    stock = models.build("resnet8", classes=10, width=8).train()
    steered = norm.steer(copy.deepcopy(stock))
    x = torch.rand(8, 3, 32, 32)
    assert torch.equal(stock(x), steered(x)), "a steered model differs from the stock one"
    assert list(norm.release(steered).state_dict()) == list(stock.state_dict()), "release changed the keys"


def _check_attack() -> None:
    import torch

    model = models.build("resnet8", classes=10, width=8)
    x, y = torch.rand(16, 3, 32, 32), torch.arange(16) % 10
    adv = attacks.PGD(attacks.Linf("8/255"), steps=3)(model, x, y)
    assert float((adv - x).abs().max()) <= 8 / 255 + 1e-6, "an attack left its budget"


def _check_adapt() -> None:
    import torch

    model, x = models.build("resnet8", classes=10, width=8).eval(), torch.rand(16, 3, 32, 32)
    assert torch.equal(adapt.per_batch(model, rho=0.0)(x), model(x)), "rho 0 is not the model itself"


def _check_certify() -> None:
    import torch

    model = models.build("resnet8", classes=10, width=8).eval()
    certificates = certify.certify(model, torch.rand(2, 3, 32, 32), sigma=0.25, n0=10, n=50)
    assert len(certificates.classes) == 2, "certificates are missing"


def _check_bfloat16() -> None:
    from trimtab._bfloat16 import probe

    if not probe().works:
        raise BadInput(str(probe()))


def _check_images() -> None:
    images = data.load("sample", "test")
    batch = next(iter(images.batches(32)))
    assert batch.x.shape[0] == 32, "the embedded sample cannot be read"
    data.corrupt(batch.x, "fog", severity=3)


TESTS: dict[str, Callable[[], object]] = {
    "steer and release": _check_steering,
    "attack": _check_attack,
    "adapt": _check_adapt,
    "certify": _check_certify,
    "read and corrupt images": _check_images,
    "bfloat16": _check_bfloat16,
}
