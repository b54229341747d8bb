"""Steps written out as Python: a straight line has neither loops nor calls of its own.

Between two operations Python is then as short as can be, which counts where threads share its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from string import Formatter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from trimtab.straight.operations import Kept, Unclear, first, plus, same_shape
from trimtab.straight.reading import Step

_WORDS: Mapping[str, Any] = {
    "Kept": Kept,
    "first": first,
    "plus": plus,
    "same_shape": same_shape,
    "conv2d": F.conv2d,
    "linear": F.linear,
    "convolution_backward": torch.ops.aten.convolution_backward.default,
    "threshold_backward": torch.ops.aten.threshold_backward.default,
    "threshold_backward_into": torch.ops.aten.threshold_backward.grad_input,
}


Look = Callable[[Tensor, list[Any]], Tensor]
Ahead = Callable[[Tensor, list[Any]], tuple[Tensor, tuple[Any, ...]]]
Back = Callable[[Tensor, tuple[Any, ...], list[Any]], Tensor]


@lru_cache(maxsize=64)
def compiled(text: str) -> tuple[Look, Ahead, Back]:
    """The functions of a text, which knows a network's operations but none of its weights."""
    words = dict(_WORDS)
    exec(compile(text, "<straight line>", "exec"), words)
    return words["look"], words["ahead"], words["back"]


def written_out(steps: Sequence[Step], answer: int) -> tuple[str, list[Any]]:
    """The text of `look`, `ahead` and `back`, and the constants that they take.

    `look` only says what the network says of images; `ahead` also keeps what `back` needs.
    """
    constants: list[Any] = []
    words = [_words(step, index, constants) for index, step in enumerate(steps)]
    back, kept = _back(steps, words, answer)
    known = f"    ({''.join(f'c{i}, ' for i in range(len(constants)))}) = constants"
    returned = f"({''.join(f'{name}, ' for name in kept)})"
    text = [
        "def look(v0, constants):",
        known,
        *_ahead(steps, words, {f"v{answer}"}, graded=False),
        f"    return v{answer}",
        "def ahead(v0, constants):",
        known,
        *_ahead(steps, words, {f"v{answer}", *kept}, graded=True),
        f"    return v{answer}, {returned}",
        f"def back(g{answer}, kept, constants):",
        known,
        f"    {returned} = kept",
        *back,
    ]
    return "\n".join(text), constants


def _words(step: Step, index: int, constants: list[Any]) -> dict[str, str]:
    """What stands for the names in an operation's text."""
    words = {"kept": f"k{index}", "given": ", ".join(f"v{i}" for i in step.reads)}
    words |= {name: f"v{i}" for name, i in zip("ab", step.reads, strict=False)}
    words |= {"y": f"v{step.writes[0]}", "g": f"g{step.writes[0]}"}
    for name, constant in step.does.constants.items():
        words[name] = f"c{len(constants)}"
        constants.append(constant)
    return words


def _ahead(
    steps: Sequence[Step], words: list[dict[str, str]], stays: set[str], graded: bool
) -> Iterator[str]:
    last = {f"v{i}": step for step in steps for i in (*step.writes, *step.reads)}
    for step, own in zip(steps, words, strict=True):
        does = step.does
        made = "".join(f"v{i}, " for i in step.writes) if does.many else own["y"]
        says = does.overwriting if step.overwrites else does.ahead
        new = f"{own['kept']} := Kept(True)" if graded else "Kept(False)"
        yield f"    {made} = {says.format(**own, new=new)}"
        if graded and does.same_shape:
            yield f"    same_shape({own['given']}, {own['y']})"
        over = [f"v{i}" for i in (*step.writes, *step.reads) if last[f"v{i}"] is step]
        yield from (f"    del {name}" for name in dict.fromkeys(over) if name not in stays)


def _back(steps: Sequence[Step], words: list[dict[str, str]], answer: int) -> tuple[list[str], list[str]]:
    """The lines of `back`, and the names of what it needs from `ahead`."""
    own = {answer: False}  # whether a gradient is nobody else's memory, so that it may be overwritten
    lines: list[str] = []
    kept: dict[str, None] = {}
    for step, named in zip(reversed(steps), reversed(words), strict=True):
        does = step.does
        if not step.reads or not any(i in own for i in step.writes):
            continue
        free = own[step.writes[0]] if not does.many else False
        slopes = (does.back_overwriting,) if free and does.back_overwriting else does.back
        kept |= {named[at]: None for says in slopes for at in _names(says) & {"a", "b", "y", "kept"}}
        if does.many:
            named = named | {"g": ", ".join(f"g{i}" if i in own else "None" for i in step.writes)}
            lines.append(f"    {''.join(f's{i}, ' for i in step.reads)} = {slopes[0].format(**named)}")
            slopes = tuple(f"s{i}" for i in step.reads)
        for i, says in zip(step.reads, slopes, strict=True):
            fresh = does.fresh or (free and slopes == ("{g}",))
            lines.append(_gathered(f"g{i}", says.format(**named), own.get(i), fresh, does.many))
            own[i] = not does.many and (fresh or i in own)
        lines += [f"    del g{i}" for i in step.writes if own.pop(i, None) is not None]
    if 0 not in own:
        raise Unclear("a network that does not look at its images")
    return [*lines, "    return g0"], list(kept)


def _gathered(name: str, slope: str, own: bool | None, fresh: bool, many: bool) -> str:
    """One more gradient for a value, or the first (if none is its `own`)."""
    if own is None:
        return f"    {name} = {slope}"
    if many:
        return f"    {name} = plus({name}, {slope})"
    if own:
        return f"    {name}.add_({slope})"
    return f"    {name} = ({slope}).add_({name})" if fresh else f"    {name} = {name} + {slope}"


def _names(says: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(says) if name}
