"""The entry point: parse the arguments, run the command, report errors in one line on stderr."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Any

import trimtab
from trimtab.cli.adapt import AdaptCommand
from trimtab.cli.aliases import modernize
from trimtab.cli.analyze import AnalyzeCommand
from trimtab.cli.audit import AuditCommand
from trimtab.cli.bench import BenchCommand
from trimtab.cli.certify import CertifyCommand
from trimtab.cli.cli_errors import parse
from trimtab.cli.construct import ConstructCommand
from trimtab.cli.data import DataCommand
from trimtab.cli.demo import DemoCommand
from trimtab.cli.doctor import DoctorCommand
from trimtab.cli.evaluate import EvaluateCommand
from trimtab.cli.export import ExportCommand
from trimtab.cli.memory import tune_allocator
from trimtab.cli.merge import MergeCommand
from trimtab.cli.monitor import MonitorCommand
from trimtab.cli.options import is_main_process
from trimtab.cli.pack import PackCommand
from trimtab.cli.repair import RepairCommand
from trimtab.cli.report import ReportCommand, RunsCommand
from trimtab.cli.reproduce import ReproduceCommand
from trimtab.cli.train import TrainCommand
from trimtab.types import BadInput

COMMANDS: dict[str, type[Any]] = {
    "demo": DemoCommand,
    "data": DataCommand,
    "audit": AuditCommand,
    "train": TrainCommand,
    "evaluate": EvaluateCommand,
    "adapt": AdaptCommand,
    "certify": CertifyCommand,
    "analyze": AnalyzeCommand,
    "repair": RepairCommand,
    "pack": PackCommand,
    "merge": MergeCommand,
    "monitor": MonitorCommand,
    "export": ExportCommand,
    "construct": ConstructCommand,
    "reproduce": ReproduceCommand,
    "runs": RunsCommand,
    "report": ReportCommand,
    "bench": BenchCommand,
    "doctor": DoctorCommand,
}
"""Each command is a frozen dataclass; `trimtab --help` shows the first line of its docstring."""

ABOUT = """usage: trimtab COMMAND [arguments]

Inspect, adapt, attack, train and certify image classifiers through their batch-norm statistics.

{commands}

MODEL is zoo:NAME, file:PATH, timm:NAME, torchvision:NAME, net:NAME or py:module:function.
DATA is sample, cifar10, folder:PATH, npz:PATH and more (`trimtab data list`).
`trimtab COMMAND --help` shows a command's arguments, `trimtab --version` the version."""


def about() -> str:
    """Return the text of `trimtab --help`, with the first line of every command's docstring."""
    width = max(map(len, COMMANDS)) + 2
    lines = (f"  {name:{width}}{(kind.__doc__ or '').splitlines()[0]}" for name, kind in COMMANDS.items())
    return ABOUT.format(commands="\n".join(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any("\0" in word for word in given):
        return _fail("an argument contains a null byte; no file or model name can")
    given, warnings = modernize(given)
    for warning in warnings:
        print(f"trimtab: {warning}", file=sys.stderr)
    overrides: list[str] = []
    try:
        if not given or given[0] in ("-h", "--help", "--version"):
            print(f"trimtab {trimtab.__version__}" if given == ["--version"] else about(), flush=True)
            return 0
        if given[:1] == ["train"]:
            given, overrides = TrainCommand.split(given)
        command = parse(COMMANDS, given)
        if isinstance(command, TrainCommand):
            command = command.with_overrides(overrides)
        if not isinstance(command, BenchCommand):  # its peers are measured with the default allocator
            tune_allocator(large=isinstance(command, TrainCommand))
        with ExitStack() as stack:
            if not is_main_process():  # only the main process prints; every process prints its errors
                stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            return int(command.run())
    except BadInput as problem:
        return _fail(str(problem))
    except BrokenPipeError:  # the reader of our output closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _fail("interrupted; what was finished is kept")
        return 130
    except Exception as problem:
        sentence = None if os.environ.get(TRACE) else _explain(problem)
        if sentence is None:
            raise
        return _fail(sentence)


TRACE = "TRIMTAB_TRACE"
"""Environment variable: if it is set, errors show their stack trace."""


_SHAPE_ERRORS = (
    "shapes cannot be multiplied",
    "must match",
    "expected input",
    "Calculated padded input size",
)
"""Parts of torch's messages when a layer gets an input of the wrong shape."""


def _explain(problem: Exception) -> str | None:
    """Explain an error of the machine or of the user's code in a sentence; None for an error of trimtab."""
    from trimtab.runtime import is_out_of_memory

    first = (str(problem).splitlines() or [""])[0]
    if is_out_of_memory(problem):
        return "out of memory; use smaller batches (--batch-size, --chunk, --adapt, a recipe's batch_size)"
    if isinstance(problem, RuntimeError) and any(words in str(problem) for words in _SHAPE_ERRORS):
        return f"the network cannot take these images: {first}"
    if (
        isinstance(problem, OSError) and problem.errno is not None
    ):  # libraries raise OSErrors of their own without an errno
        return f"{problem.filename or 'a file'}: {problem.strerror or problem}"
    line = _users_line(problem)
    return line and f"{line} raised {type(problem).__name__}: {first} ({TRACE}=1 shows the stack trace)"


def _users_line(problem: Exception) -> str | None:
    """Return the line of the user's code that raised an error; None if trimtab's code raised it."""
    ours, library = Path(trimtab.__file__).parent, Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(ours):
            return None
        installed = {"site-packages", "dist-packages"} & {*file.parts} or file.is_relative_to(library)
        if file.suffix == ".py" and not installed:
            return f"{file}, line {frame.lineno},"
    return None


def _fail(sentence: str) -> int:
    """Print a message on stderr, as one line without control characters, and return exit code 2."""
    line = " ".join(sentence.split())
    print("trimtab: " + "".join(c if c.isprintable() else "\ufffd" for c in line), file=sys.stderr)
    return 2
