"""`trimtab data`: image sets, fetched and listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from trimtab.cli.lazy import console, data
from trimtab.cli.options import Json, Place


@dataclass(frozen=True)
class Fetch:
    """Download a published set and check it. Killed and run again, it resumes."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """cifar10, cifar100, svhn or tiny-imagenet."""
    root: Place = None
    """Where sets are kept; $TRIMTAB_DATA or ~/.cache/trimtab if not given."""
    source: Place = None
    """The published file, if it is at hand: nothing is downloaded then."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        from trimtab.data.fetch import checked

        before = data.available(self.root).get(self.name, False)
        with console.progress(f"fetching {self.name}") as tell:
            home = data.fetch(
                self.name, self.root, lambda what, done, total: tell(done, total, what), self.source
            )
        right = checked(self.name, self.source, before)
        why = "it was there before" if before else f"{self.source} is not named like the published file"
        hashed = ", and its hash is right" if right else f"; its hash was not checked: {why}"
        about = {"name": self.name, "folder": home, "checked": right}
        return console.result(self.json, about, f"{self.name} is in {home}{hashed}.")


@dataclass(frozen=True)
class List:
    """What `--data` understands, and which published sets are here."""

    root: Place = None
    """Where sets are kept; $TRIMTAB_DATA or ~/.cache/trimtab if not given."""
    json: Json = False

    def run(self) -> int:
        """Run the command and return its exit code."""
        here = data.available(self.root)
        if self.json:
            console.as_json(here)
            return 0
        states = {"sample": "comes with trimtab", "two-cue": "made on the spot"}
        rows = [
            [
                name,
                states.get(name)
                or {True: "here", False: f"`trimtab data fetch {name}`", None: "your files"}[here.get(name)],
            ]
            for name in data.NAMES
        ]
        console.table("Image sets", ["--data", "where"], rows)
        return 0


@dataclass(frozen=True)
class Data:
    """Fetch published image sets, and list what there is."""

    action: Annotated[Fetch, tyro.conf.subcommand("fetch")] | Annotated[List, tyro.conf.subcommand("list")]

    def run(self) -> int:
        """Run the command and return its exit code."""
        return self.action.run()
