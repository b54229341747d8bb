"""Blocks of the guides that need more than one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "own-loop.md"


@pytest.mark.slow
def test_the_script_for_ddp_gives_the_same_losses_on_one_and_two_processes(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.S | re.M)
    (script,) = (block for block in blocks if "init_process_group" in block)
    (tmp_path / "ddp.py").write_text(script)
    losses = []
    for processes in (1, 2):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*launch, f"--nproc-per-node={processes}", "ddp.py"],
            cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        found = sorted(re.findall(r"rank (\d): loss ([\d.]+)", done.stdout))
        assert len(found) == processes
        losses.append(sum(float(loss) for _, loss in found) / processes)
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
