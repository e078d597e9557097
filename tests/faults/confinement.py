"""Which names a server may open: its data directory, what it was told about, and what Python and the system need.

A name is judged as it was given and as it is without its dots. Within the data directory no name may have a part `..`,
wherever it leads: whoever writes one has let somebody else choose it. The libraries may write one among themselves.
Outside of the data directory nothing may be written, but for Python's own cache and devices that keep nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.tracing import Opened

ROOT = Path(__file__).parents[2]
SYSTEM = (
    *("/usr", "/lib", "/lib64", "/proc", "/sys", "/dev/null", "/dev/random", "/dev/urandom"),
    *("/etc/localtime", "/etc/ssl", "/etc/nsswitch.conf", "/etc/ld.so.cache"),
    *(sys.prefix, sys.base_prefix, str(ROOT / "src"), str(ROOT / "tests")),
)
SCRATCH = ("/dev/null",)
"""What may be written to outside of the data directory; and Python's cache, wherever its sources are."""


@dataclass(frozen=True, slots=True)
class Confines:
    """What one server may open."""

    data: Path
    files: tuple[Path, ...] = ()
    """Files beside the data directory that it was told about; to read."""

    def foreign(self, opened: Iterable[Opened]) -> list[str]:
        """The names that it may not, as they were given."""
        return [one.name for one in opened if not self.allow(one)]

    def allow(self, opened: Opened) -> bool:
        """Whether it may."""
        given, plain = opened.name, plain_name(opened.name)
        if not given.startswith("/"):
            return False  # relative to nobody knows what
        climbs = ".." in given.split("/")
        if within(plain, (str(self.data),)):
            return not climbs
        if plain in map(str, self.files):
            return not climbs and not opened.writes
        if within(plain, (str(self.data.parent),)):
            return False  # its neighbours, even if all of them are in a folder of the system
        if opened.writes:
            return within(plain, SCRATCH) or ("__pycache__" in plain and within(plain, SYSTEM))
        return (within(plain, SYSTEM) or plain == str(ROOT)) and within(plain_name(given.partition("/..")[0]), SYSTEM)


def plain_name(name: str) -> str:
    """Without dots and doubled slashes."""
    return "/" + os.path.normpath(name).lstrip("/")


def within(plain: str, roots: Iterable[str]) -> bool:
    """Whether it is one of these, or under one."""
    return any(plain == root or plain.startswith(f"{root}/") for root in roots)
