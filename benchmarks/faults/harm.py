"""The faults: kill -9 by the clock and inside writes, full and read-only disks, damaged files, company.

Every round ends in the same question: the same command, run once more in peace, gives the bytes of a run that
was never disturbed. Damage may also be told (exit code 2 and a sentence); the work is then started again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from work import JOBS, Job

MOST_KILLS = 3
"""Of one run, before it is left in peace."""


@dataclass
class Tally:
    faults: int = 0
    """Kills, full disks, damaged files, ..."""
    rounds: int = 0
    told: int = 0
    """Runs that ended in a sentence and exit code 2."""
    lost: int = 0
    """Rounds after which the result could not be had by running again."""
    silent: int = 0
    """Rounds that ended well, but in other bytes."""
    traces: int = 0
    """Runs that ended in a stack trace."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Ended:
    code: int | None
    """None if the run was killed."""
    said: str
    seconds: float
    writes: int = 0
    """Renames and syncs, where they were counted."""


def start(job: Job, folder: Path, before: Callable[[], None] | None = None) -> int:
    """Fork a child that runs the job in the folder; its id."""
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(_log(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(folder)
            torch.set_num_threads(1)  # renews a pool that did not survive the fork, before threads ask for it
            if before is not None:
                before()
            code = job.run(folder)
        except SystemExit as asked:
            code = asked.code if isinstance(asked.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(log)
    return child


def end(child: int, folder: Path, began: float) -> Ended:
    _, status = os.waitpid(child, 0)
    code = None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return Ended(code, _log(folder).read_text(errors="replace"), time.monotonic() - began)


def run(
    job: Job, folder: Path, before: Callable[[], None] | None = None, within: float | None = None
) -> Ended:
    """Run a job to its end, or kill it `within` so many seconds."""
    began = time.monotonic()
    child = start(job, folder, before)
    if within is not None:
        time.sleep(within)
        os.kill(child, signal.SIGKILL)
    return end(child, folder, began)


def results(job: Job, folder: Path) -> dict[str, bytes] | None:
    """What came out; None if something is missing."""
    files = [folder / name for name in job.results]
    return {file.name: file.read_bytes() for file in files} if all(f.is_file() for f in files) else None


def judge(job: Job, folder: Path, expected: dict[str, bytes], tally: Tally) -> Tally:
    """Run once more in peace; damage that is told is answered by starting again."""
    tally.rounds += 1
    ended = _note(run(job, folder), tally)
    if ended.code == 2:
        shutil.rmtree(folder)
        ended = _note(run(job, folder), tally)
    found = results(job, folder)
    if ended.code != 0 or found is None:
        tally.lost += 1
        print(f"LOST in {folder}: {ended.code} {ended.said[-600:]}", flush=True)
    elif found != expected:
        tally.silent += 1
        other = [name for name in expected if found[name] != expected[name]]
        print(f"DIFFERENT in {folder}: {other}", flush=True)
    return tally


def _note(ended: Ended, tally: Tally) -> Ended:
    if "Traceback" in ended.said:
        tally.traces += 1
        print(f"TRACE: {ended.said[-1500:]}", flush=True)
    tally.told += ended.code == 2
    return ended


# ---- kill -9 --------------------------------------------------------------------------------------------


def killed(job: Job, peace: Ended, expected: dict[str, bytes], chance: random.Random, folder: Path) -> Tally:
    """Kill a run up to three times: after a random time, or at a random call that makes a file last."""
    tally = Tally()
    for _ in range(chance.randint(1, MOST_KILLS)):
        if chance.random() < 0.5:
            ended = _note(run(job, folder, within=chance.uniform(0, peace.seconds)), tally)
        else:
            at = dying(chance.randint(1, max(1, peace.writes)), chance.random() < 0.5)
            ended = _note(run(job, folder, before=at), tally)
        tally.faults += ended.code is None
        if ended.code is not None:
            break
    return judge(job, folder, expected, tally)


def dying(call: int, after: bool) -> Callable[[], None]:
    """Make the process kill itself at one of its renames and syncs: just before it, or just after."""

    def count(number: int, done: bool) -> None:
        if number == call and done == after:
            os.kill(os.getpid(), signal.SIGKILL)

    return _watching(count)


def in_peace(job: Job, folder: Path) -> Ended:
    """A run that nothing disturbs, with its renames and syncs counted."""
    log = folder.with_name("writes")
    folder.mkdir(parents=True)

    def count(number: int, done: bool) -> None:
        log.write_text(str(number))

    ended = run(job, folder, before=_watching(count))
    return replace(ended, writes=int(log.read_text()) if log.exists() else 0)


def _watching(told: Callable[[int, bool], None]) -> Callable[[], None]:
    """Tell of every rename and sync of a process: its number, before it and after it."""

    def patch() -> None:
        seen = [0]

        def wrapped(real: Callable[..., object]) -> Callable[..., object]:
            def patched(*given: object, **options: object) -> object:
                seen[0] += 1
                number = seen[0]
                told(number, False)
                done = real(*given, **options)
                told(number, True)
                return done

            return patched

        os.replace, os.fsync = wrapped(os.replace), wrapped(os.fsync)  # type: ignore[assignment]

    return patch


# ---- disks ----------------------------------------------------------------------------------------------


@contextmanager
def disk(kilobytes: int) -> Iterator[Path]:
    """A disk of this size (a tmpfs: needs root)."""
    place = Path(tempfile.mkdtemp())
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
        place.rmdir()


def _remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", place], check=True)


def full(job: Job, peace: Ended, expected: dict[str, bytes], chance: random.Random, folder: Path) -> Tally:
    """Run on a disk that is too small by a random share; enlarge it, and run again."""
    tally = Tally(faults=1)
    needed = sum(f.stat().st_size for f in folder.with_name("peace").rglob("*") if f.is_file()) // 1024
    with disk(max(16, int(needed * chance.uniform(0.02, 0.9)))) as place:
        _note(run(job, place / "work"), tally)
        _remount(place, "size=512m")
        return judge(job, place / "work", expected, tally)


def read_only(
    job: Job, peace: Ended, expected: dict[str, bytes], chance: random.Random, folder: Path
) -> Tally:
    """Kill a run, make its disk read-only and run it; then let it be written again."""
    tally = Tally(faults=1)
    with disk(512 * 1024) as place:
        _note(run(job, place / "work", within=chance.uniform(0, peace.seconds)), tally)
        _remount(place, "ro")
        ended = _note(run(job, place / "work"), tally)
        if ended.code == 0 and results(job, place / "work") != expected:
            tally.silent += 1
        _remount(place, "rw")
        return judge(job, place / "work", expected, tally)


# ---- damage ---------------------------------------------------------------------------------------------


def damaged(job: Job, peace: Ended, expected: dict[str, bytes], chance: random.Random, folder: Path) -> Tally:
    """Kill a run, then cut, change, blank or remove one of the files that it left."""
    tally = Tally()
    _note(run(job, folder, within=chance.uniform(0.2, 1.0) * peace.seconds), tally)
    left = sorted(file for pattern in job.state for file in folder.glob(pattern) if file.is_file())
    for name in job.results:
        if folder / name not in left:
            (folder / name).unlink(missing_ok=True)  # the answer is to be made again from what was kept
    if left:
        tally.faults += 1
        _damage(chance.choice(left), chance)
    return judge(job, folder, expected, tally)


def _damage(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    kind = chance.choice(["cut", "bit", "bit", "bytes", "blank", "remove"])
    at = chance.randrange(len(content) or 1)
    if kind == "remove" or not content:
        file.unlink()
        return
    if kind == "cut":
        del content[at:]
    elif kind == "bit":
        content[at] ^= 1 << chance.randrange(8)
    elif kind == "bytes":
        content[at : at + 64] = chance.randbytes(len(content[at : at + 64]))
    else:
        content = bytearray(len(content))
    file.write_bytes(content)


# ---- company --------------------------------------------------------------------------------------------


def company(job: Job, peace: Ended, expected: dict[str, bytes], chance: random.Random, folder: Path) -> Tally:
    """Two processes at the same work in the same folder, one of them killed; the other must end well."""
    tally = Tally(faults=1)
    began = time.monotonic()
    first = start(job, folder)
    time.sleep(chance.uniform(0, 0.5) * peace.seconds)
    second = start(job, folder)
    time.sleep(chance.uniform(0, 1.0) * peace.seconds)
    os.kill(first, signal.SIGKILL)
    end(first, folder, began)
    ended = _note(end(second, folder, began), tally)
    found = results(job, folder)
    if ended.code == 0 and found != expected:
        tally.silent += 1
    return judge(job, folder, expected, tally)


def _log(folder: Path) -> Path:
    return Path(tempfile.gettempdir()) / f"trimtab-faults-{os.getpid()}-{abs(hash(str(folder)))}.log"


CAMPAIGNS: dict[str, tuple[Callable[..., Tally], tuple[str, ...], float]] = {
    "kill": (killed, tuple(JOBS), 1.0),
    "full disk": (full, ("train", "evaluate", "certify", "construct", "fetch", "store"), 0.4),
    "read-only disk": (read_only, ("train", "evaluate", "construct", "fetch"), 0.1),
    "damage": (damaged, tuple(name for name in JOBS if name != "save"), 0.8),
    "two processes": (company, ("evaluate", "certify", "store"), 0.4),
}
"""The fault, the work it falls into, and how many of the rounds it gets."""
