"""Write the generated parts of the README and of the pages, and the charts, from committed results."""

from __future__ import annotations

import argparse
import json

from docs.generate import figure, parts


def main() -> None:
    """Write everything anew."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the README's first figure before")
    if parser.parse_args().measure:
        figure.STORED.write_text(json.dumps(figure.measure(), indent=1) + "\n")
    for path, content in parts.files().items():
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
            print(f"wrote {path.relative_to(parts.ROOT)}")


main()
