"""Two processes of one training or evaluation: equal to one, and one of them killed.

Ranks are forked with the environment that `torchrun --nproc-per-node 2` gives them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harm import Ended, Tally, _note, end, results, run, start
from safetensors.torch import load_file
from work import ANSWER, Job, command, shared

from trimtab import data, train
from trimtab.train._loop.start import network
from trimtab.train.reader import OBJECTIVES

CLOSE = 1e-8
"""How far weights in float64 may be apart that were summed in another order."""
PATIENCE = 120.0
"""Seconds after which a rank that waits for a dead one counts as hanging."""
EXTRA = {
    "advbn": ["--objective.cut", "layer1"],
    "adversarial": ["--objective.attack", "{kind: pgd, steps: 2, budget: {linf: 4/255}}"],
    "mixture": ["--objective.attack", "{kind: pgd, steps: 2, budget: {linf: 4/255}}"],
    "apart": ["--objective.groups", "2"],
}


def training(objective: str) -> Job:
    """One epoch in float64: what differs then is not rounding."""

    def go(folder: Path) -> int:
        words = [*("--objective.kind", objective), *EXTRA.get(objective, [])]
        changes = dict(zip((word.lstrip("-") for word in words[::2]), words[1::2], strict=True))
        recipe = train.read_recipe("smoke", {"model": "net:resnet8,width=4", "data.images": "96", **changes})
        images = data.load("sample", "train")
        train.fit(network(None, recipe, images).double(), images, recipe, "run")
        return 0

    return Job(go, ("run/model.safetensors", "run/metrics.jsonl"), ())


def command_line(folder: Path) -> int:
    if (folder / "run" / "checkpoints" / "last.safetensors").exists():
        return command("train", "--resume", "run", answer=False)
    small = ["--model", "net:resnet8,width=4", "--data.images", "256", "--checkpoint_steps", "1"]
    return command("train", "smoke", "--out", "run", *small, answer=False)


def evaluating(folder: Path) -> int:
    small = ["--limit", "64", "--chunk", "16"]
    return command("evaluate", f"file:{shared()}/net", *small, "--store", "s/store.sqlite", "--json")


def together(job: Job, folder: Path, kill: float | None = None, victim: int = 1) -> list[Ended]:
    """Run a job as two ranks; kill one of them after so many seconds, and the other if it then hangs."""
    port, began = _free_port(), time.monotonic()
    children = [start(job, folder, _as_rank(rank, port)) for rank in range(2)]
    if kill is not None:
        time.sleep(kill)
        os.kill(children[victim], signal.SIGKILL)
    return [_end(child, folder, began) for child in children]


def _end(child: int, folder: Path, began: float) -> Ended:
    """Wait for a rank, but not for ever."""
    while time.monotonic() - began < PATIENCE:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return end(child, folder, began)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    ended = end(child, folder, began)
    print(f"HANGS after {PATIENCE:g} s: {ended.said[-600:]}", flush=True)
    return ended


def _as_rank(rank: int, port: int) -> Callable[[], None]:
    def become() -> None:
        here = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "faults"}
        os.environ.update({name: str(value) for name, value in (here | there).items()})
        if rank:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    return become


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def campaign(home: Path, rounds: int, seed: int) -> Iterator[tuple[str, str, Tally]]:
    place = home / "ranks"
    for objective in OBJECTIVES:
        job, tally = training(objective), Tally(rounds=1)
        alone = _note(run(job, place / objective / "one"), tally)
        two = [_note(ended, tally) for ended in together(job, place / objective / "two")]
        if any(ended.code != 0 for ended in (alone, *two)):
            tally.lost += 1
            print("LOST", objective, [alone, *two], flush=True)
        elif _apart(*(place / objective / n / "run" / "model.safetensors" for n in ("one", "two"))) > CLOSE:
            tally.silent += 1
        yield "two ranks, equal to one", f"train, {objective}", tally
    yield "two ranks, equal to one", "evaluate", _evaluated(place)
    job = Job(command_line, ("run/model.safetensors", "run/metrics.jsonl"), ())
    seconds = max(ended.seconds for ended in together(job, place / "peace"))
    expected = results(job, place / "peace")
    tally = Tally()
    for number in range(rounds):
        chance = random.Random(f"{seed} ranks {number}")
        tally += _killed(job, place / str(number), expected, seconds, chance)
    yield "one of two ranks killed", "train", tally


def _evaluated(place: Path) -> Tally:
    job, tally = Job(evaluating, (ANSWER,), ()), Tally(rounds=1)
    alone, two = run(job, place / "e1"), together(job, place / "e2")
    for ended in (alone, *two):
        _note(ended, tally)
    if any(ended.code != 0 for ended in (alone, *two)):
        tally.lost += 1
        print("LOST evaluate", [alone, *two], flush=True)
    elif results(job, place / "e1") != results(job, place / "e2"):
        tally.silent += 1
    return tally


def _killed(job: Job, folder: Path, expected: object, seconds: float, chance: random.Random) -> Tally:
    tally = Tally(rounds=1, faults=1)
    for ended in together(job, folder, chance.uniform(0, seconds), chance.randrange(2)):
        _note(ended, tally)
    ended = [_note(one, tally) for one in together(job, folder)]
    if any(one.code != 0 for one in ended) or results(job, folder) is None:
        tally.lost += 1
        print("LOST", ended, flush=True)
    elif results(job, folder) != expected:
        tally.silent += 1
    shutil.rmtree(folder)
    return tally


def _apart(one: Path, two: Path) -> float:
    a, b = load_file(one), load_file(two)
    return max(float((a[key].double() - b[key].double()).abs().max()) for key in a)
