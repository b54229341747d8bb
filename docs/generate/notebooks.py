"""Tutorials are notebooks: run cell by cell in this process, and shown as pages with their stored outputs."""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parents[1] / "tutorials"


def read(path: Path) -> dict[str, Any]:
    """Return a notebook.

    Args:
        path: The .ipynb file.
    """
    return json.loads(path.read_text())


def outputs(notebook: dict[str, Any]) -> list[str]:
    """Return the stored output of every code cell as text."""
    return [
        "".join("".join(output["text"]) for output in cell["outputs"])
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with the outputs of a run: what is printed, and the value of a last expression.

    Args:
        notebook: The notebook.
    """
    scope: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            printed = _run("".join(cell["source"]), scope)
            lines = printed.splitlines(keepends=True)
            stream = [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []
            cell = {**cell, "execution_count": count, "outputs": stream}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _run(source: str, scope: dict[str, Any]) -> str:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), scope)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), scope)
            if value is not None:
                print(repr(value))
    return printed.getvalue()


def markdown(path: Path) -> str:
    """Return a notebook as a page.

    Args:
        path: The .ipynb file.
    """
    parts = []
    for cell in read(path)["cells"]:
        source = "".join(cell["source"]).rstrip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        text = "".join("".join(output["text"]) for output in cell["outputs"]).rstrip()
        if text:
            parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def write(path: Path) -> None:
    """Run a notebook and store its outputs.

    Args:
        path: The .ipynb file.
    """
    text = json.dumps(executed(read(path)), indent=1, ensure_ascii=False) + "\n"
    path.write_text(text)
