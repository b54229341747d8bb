"""`python -m benchmarks` is `trimtab bench`."""

import sys

from trimtab.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
