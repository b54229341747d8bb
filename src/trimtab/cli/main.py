"""From words on a command line to a command, and from trouble to one clear line."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import Annotated

import tyro

import trimtab
from trimtab.cli.adapt import Adapt
from trimtab.cli.audit import Audit
from trimtab.cli.bench import Bench
from trimtab.cli.certify import Certify
from trimtab.cli.construct import Construct
from trimtab.cli.data import Data
from trimtab.cli.demo import Demo
from trimtab.cli.doctor import Doctor
from trimtab.cli.evaluate import Evaluate
from trimtab.cli.lens import Lens
from trimtab.cli.memory import keep_freed
from trimtab.cli.options import speaks
from trimtab.cli.report import Report, Runs
from trimtab.cli.reproduce import Reproduce
from trimtab.cli.train import Train
from trimtab.cli.words import understood
from trimtab.types import BadInput

Command = (
    Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Data, tyro.conf.subcommand("data")]
    | Annotated[Audit, tyro.conf.subcommand("audit")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Adapt, tyro.conf.subcommand("adapt")]
    | Annotated[Certify, tyro.conf.subcommand("certify")]
    | Annotated[Lens, tyro.conf.subcommand("lens")]
    | Annotated[Construct, tyro.conf.subcommand("construct")]
    | Annotated[Reproduce, tyro.conf.subcommand("reproduce")]
    | Annotated[Runs, tyro.conf.subcommand("runs")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)

ABOUT = """See, steer, attack, train against, adapt and certify the norm statistics of your classifier.

MODEL is zoo:NAME, file:PATH, timm:NAME, torchvision:NAME, net:NAME or py:module:function;
DATA is sample, cifar10, folder:PATH, npz:PATH and more (`trimtab data list`).
`trimtab COMMAND --help` shows a command's options, `trimtab --version` the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if any("\0" in word for word in given):
        return _say("an argument holds a null byte, which no name of a file or model can")
    if given == ["--version"]:
        print(f"trimtab {trimtab.__version__}")
        return 0
    overrides: list[str] = []
    try:
        if given[:1] == ["train"]:
            given, overrides = Train.split(given)
        command = understood(Command, given or ["--help"], ABOUT)
        if isinstance(command, Train):
            command = command.with_overrides(overrides)
        if not isinstance(command, Bench):  # which compares with others as their users run them
            keep_freed(large=isinstance(command, Train))
        with ExitStack() as stack:
            if not speaks():  # of several processes the first one prints; what goes wrong, each one says
                stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            return int(command.run())
    except BadInput as trouble:
        return _say(str(trouble))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _say("interrupted; what was finished is kept")
        return 130
    except Exception as trouble:
        sentence = None if os.environ.get(TRACE) else _explained(trouble)
        if sentence is None:
            raise
        return _say(sentence)


TRACE = "TRIMTAB_TRACE"
"""Set in the environment, it shows where an error came from."""


_MISFITS = ("shapes cannot be multiplied", "must match", "expected input", "Calculated padded input size")
"""What torch says when layers are given another shape than they were made for."""


def _explained(trouble: Exception) -> str | None:
    """What went wrong, in a sentence, if it is the machine's fault or that of code which is not ours."""
    from trimtab.models.memory import ran_out

    first = (str(trouble).splitlines() or [""])[0]
    if isinstance(trouble, RuntimeError | MemoryError) and ran_out(trouble):
        return "memory ran out; take smaller batches (--batch-size, --chunk, --adapt, a recipe's batch_size)"
    if isinstance(trouble, RuntimeError) and any(words in str(trouble) for words in _MISFITS):
        return f"the network cannot take these images: {first}"
    if isinstance(trouble, OSError) and trouble.errno is not None:  # else it is some library's own
        return f"{trouble.filename or 'a file'}: {trouble.strerror or trouble}"
    place = _in_their_code(trouble)
    return place and f"{place} raised {type(trouble).__name__}: {first} (where from, {TRACE}=1 shows)"


def _in_their_code(trouble: Exception) -> str | None:
    """The line of the user's code that an error came from, if it passed through it after ours."""
    ours, library = Path(trimtab.__file__).parent, Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(trouble.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(ours):
            return None
        installed = {"site-packages", "dist-packages"} & {*file.parts} or file.is_relative_to(library)
        if file.suffix == ".py" and not installed:
            return f"{file}, line {frame.lineno},"
    return None


def _say(sentence: str) -> int:
    """One line, whatever a file's name in it holds: line breaks, commands to a terminal, no text at all."""
    line = " ".join(sentence.split())
    print("trimtab: " + "".join(c if c.isprintable() else "\ufffd" for c in line), file=sys.stderr)
    return 2
