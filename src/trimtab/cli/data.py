"""`trimtab data`: fetch and list image sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from trimtab.cli.lazy import console, data
from trimtab.cli.options import Json, OptionalPath


@dataclass(frozen=True)
class FetchData:
    """Download a published set and check it. An interrupted download resumes."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """cifar10, cifar100, svhn or tiny-imagenet."""
    root: OptionalPath = None
    """Where sets are kept; $TRIMTAB_DATA or ~/.cache/trimtab if not given."""
    source: OptionalPath = None
    """A local copy of the published file, used instead of downloading."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        from trimtab.data.fetch import checked

        before = data.available(self.root).get(self.name, False)
        with console.progress(f"fetching {self.name}") as update:
            folder = data.fetch(
                self.name, self.root, lambda what, done, total: update(done, total, what), self.source
            )
        verified = checked(self.name, self.source, before)
        reason = "it was fetched before" if before else f"{self.source} is not named like the published file"
        outcome = ", and its hash is right" if verified else f"; its hash was not checked: {reason}"
        about = {"name": self.name, "folder": folder, "checked": verified}
        return console.result(self.json, about, f"{self.name} is in {folder}{outcome}.")


@dataclass(frozen=True)
class ListData:
    """List what `--data` accepts, and which published sets were fetched."""

    root: OptionalPath = None
    """Where sets are kept; $TRIMTAB_DATA or ~/.cache/trimtab if not given."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        fetched = data.available(self.root)
        if self.json:
            console.as_json(fetched)
            return 0
        where = {"sample": "comes with trimtab", "two-cue": "generated when loaded"}
        where |= {name: "here" if done else f"`trimtab data fetch {name}`" for name, done in fetched.items()}
        rows = [[name, where.get(name, "your files")] for name in data.NAMES]
        console.table("Image sets", ["--data", "where"], rows)
        return 0


@dataclass(frozen=True)
class DataCommand:
    """Fetch published image sets, and list the available ones."""

    action: (
        Annotated[FetchData, tyro.conf.subcommand("fetch")]
        | Annotated[ListData, tyro.conf.subcommand("list")]
    )

    def run(self) -> int:
        """Run the command and return its exit code."""
        return self.action.run()
