"""Kill -9 at random moments, run again: the card is the same to the byte."""

import subprocess
import sys
from pathlib import Path

from trimtab.evaluate import Store


def test_a_run_killed_five_times_ends_in_the_same_bytes(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    script = Path(__file__).with_name("killed_run.py")
    command = [sys.executable, str(script), str(whole), str(killed), "0", "5"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    assert told.count("killed at") == 5, told
    assert (killed / "card.json").read_bytes() == (whole / "card.json").read_bytes()
    stores = Store(killed / "store.sqlite"), Store(whole / "store.sqlite")
    ledgers = [{key: store.chunks(key) for key, _ in store.cells()} for store in stores]
    assert ledgers[0] == ledgers[1]
