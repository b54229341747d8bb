"""What hostile input may do: nothing. Either it is understood, or one sentence says why it is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trimtab.types import BadInput


def examples(count: int) -> settings:
    """So many examples, the same ones every time; files may be shared between them."""
    shared = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(deadline=None, max_examples=count, derandomize=True, suppress_health_check=shared)


class Evil:
    """A pickle that makes a folder when it is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


def survives(call: Callable[[], Any]) -> bool:
    """Whether the input was taken; what is refused must be refused in a sentence, and by nothing else."""
    try:
        call()
    except BadInput:
        return False
    return True


class Memory(TorchDispatchMode):
    """Notes the bytes of the largest tensor that is made inside; tensors on the meta device have none."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return made


def tidy(folder: Path) -> bool:
    """Whether nothing half-written is left in a folder, and nothing in a file has run."""
    left = [path.name for path in folder.rglob("*")]
    return not any(name.endswith((".tmp", ".part")) or name == "pwned" for name in left)


texts = st.text(st.characters(codec="utf-8"), max_size=12)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | texts
    | st.sampled_from(["8/255", "1e-3", "1/0", "nan", "9" * 400, "[", "net:resnet8", "folder:/", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
"""Whatever JSON or YAML can hold."""


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file that was cut short, or had a few of its bytes changed, mostly in its head."""
    content = bytearray(whole[: draw(st.integers(0, len(whole)))] if draw(st.booleans()) else whole)
    for _ in range(draw(st.integers(0, 4))):
        if content:
            near = draw(st.sampled_from([16, 400, len(content)]))
            content[draw(st.integers(0, min(near, len(content)) - 1))] = draw(st.integers(0, 255))
    return bytes(content)
