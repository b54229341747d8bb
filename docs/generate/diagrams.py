"""Diagrams of the five knobs and of an APART step, as SVG."""

from __future__ import annotations

from docs.generate.charts import svg, text


def box(x: float, y: float, width: float, height: float, lines: list[str], kind: str = "grid") -> str:
    """Return a box with centered lines of text, the first in bold.

    Args:
        x: Left edge.
        y: Upper edge.
        width: Width.
        height: Height.
        lines: The lines.
        kind: CSS class of the frame.
    """
    frame = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'
    start = y + height / 2 - 9 * (len(lines) - 1) + 5
    words = [
        text(x + width / 2, start + 18 * number, line, "middle" if number else "middle bold")
        for number, line in enumerate(lines)
    ]
    return "".join([frame, *words])


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line with an arrowhead.

    Args:
        x1: Start, from the left.
        y1: Start, from the top.
        x2: End, from the left.
        y2: End, from the top.
    """
    along = 1 if (x2, y2) > (x1, y1) else -1
    if y1 == y2:
        head = f"{x2},{y2} {x2 - 8 * along},{y2 - 4} {x2 - 8 * along},{y2 + 4}"
    else:
        down = 1 if y2 > y1 else -1
        head = f"{x2},{y2} {x2 - 4},{y2 - 8 * down} {x2 + 4},{y2 - 8 * down}"
    line = f'<line class="line" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'
    return f'{line}<polygon points="{head}" style="fill: var(--fg)"/>'


STEPS = (
    ("route", "branch", "which parameters", "and running statistics"),
    ("group", "groups", "over which part", "of the batch"),
    ("mean, std", "source, rho", "batch, running", "or a blend of both"),
    ("perturb", "shift", "scale mean and std", "per channel"),
    ("normalize", "branch", "with gamma and beta", "of the branch"),
)


def knobs() -> str:
    """Return the path of a batch through a steered layer, with the knob that controls each step."""
    parts = [text(12, 101, "x", "bold"), arrow(26, 96, 44, 96)]
    for number, (step, knob, *about) in enumerate(STEPS):
        left = 46 + 152 * number
        parts.append(box(left, 72, 122, 48, [step]))
        parts.append(arrow(left + 122, 96, left + 150, 96))
        parts.append(box(left, 10, 122, 32, [knob], "a"))
        parts.append(arrow(left + 61, 42, left + 61, 70))
        parts += [text(left + 61, 142 + 17 * row, line, "soft middle") for row, line in enumerate(about)]
    parts.append(text(811, 101, "y", "bold"))
    parts += [box(350, 188, 122, 48, ["running", "statistics"]), box(502, 196, 122, 32, ["update"], "a")]
    parts += [arrow(411, 166, 411, 186), arrow(502, 212, 474, 212)]
    parts.append(text(563, 246, "updated or not", "soft middle"))
    title = "Five knobs of a batch-norm layer: branch, groups, source, shift and update"
    return svg(830, 256, title, parts, crops=("0 0 344 170", "344 0 297 256", "640 0 190 170"))


def apart() -> str:
    """Return one step of APART."""
    parts = [
        box(10, 10, 190, 56, ["pass 1", "M images, shift 0"]),
        arrow(105, 66, 105, 96),
        box(10, 98, 190, 56, ["gradients", "of weights and of shifts"]),
        arrow(200, 126, 248, 126),
        box(250, 98, 180, 56, ["shift", "eps times the sign"], "a"),
        arrow(340, 154, 340, 184),
        box(250, 186, 180, 56, ["pass 2", "N images in n groups"]),
        arrow(250, 214, 202, 214),
        arrow(105, 154, 105, 184),
        box(10, 186, 190, 56, ["weighted mean", "of both gradients"]),
        arrow(105, 242, 105, 272),
        box(10, 274, 190, 56, ["optimizer", "step"]),
    ]
    return svg(440, 340, "One APART step: two passes, the second under shifted statistics", parts)
