"""The command line. Each command is a frozen dataclass: its fields are the options, its docstring the help.

Exit codes: 0 done; 1 ran, and found what it was asked to fail on; 2 bad input, one clear line on stderr.
Heavy imports wait until a command runs, so that `--help` answers at once.
"""

from trimtab.cli.main import main

__all__ = ["main"]
