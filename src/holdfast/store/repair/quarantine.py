"""Where repair puts what it takes away: `<store>/quarantine/<time>/`, under the same names.

Promise: when `keep_copy` or `move` has returned, what was put there survives a power cut, and a directory is on disk
before anything is moved into it. Nothing in quarantine is ever read back or deleted by Holdfast.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from holdfast.clock import NS_PER_S
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.store.ground import QUARANTINE_DIR
from holdfast.store.repair.salvage import damaged_pieces


class Quarantine:
    """One directory for one repair; made when the first thing is put there."""

    def __init__(self, filesystem: Filesystem, directory: Path, *, at_ns: int) -> None:
        self._filesystem = filesystem
        self._store = directory
        self._made: set[Path] = set()
        self.path = self._free_name(directory / QUARANTINE_DIR, at_ns)
        self.held: list[Path] = []
        """What is there, relative to it."""

    def _free_name(self, parent: Path, at_ns: int) -> Path:
        moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC).strftime("%Y%m%dT%H%M%S")
        name = parent / f"{moment}.{at_ns % NS_PER_S:09d}Z"
        for number in range(2, 10_000):
            if not self._filesystem.exists(name):
                return name
            name = parent / f"{moment}.{at_ns % NS_PER_S:09d}Z-{number}"
        raise FileExistsError(f"{parent} has too many directories of one moment")

    def keep_copy(self, path: Path) -> None:
        """Copy a file of the store; what the disk does not give of it is zeros. The original stays."""
        self.write(path.relative_to(self._store), damaged_pieces(self._filesystem, path))

    def write(self, place: Path, pieces: Iterable[bytes]) -> None:
        """Put bytes there."""
        target = self._place(place)
        file = self._filesystem.open(target, Mode.CREATE)
        try:
            size = 0
            for piece in pieces:
                file.pwritev([piece], size)
                size += len(piece)
            file.sync()
        finally:
            file.close()
        self._filesystem.sync_dir(target.parent)

    def move(self, path: Path) -> None:
        """Move a file of the store."""
        target = self._place(path.relative_to(self._store))
        self._filesystem.rename(path, target)
        self._filesystem.sync_dir(target.parent)
        self._filesystem.sync_dir(path.parent)

    def _place(self, place: Path) -> Path:
        target = self.path / place
        missing = [folder for folder in target.parents if folder.is_relative_to(self._store / QUARANTINE_DIR)]
        for folder in reversed([folder for folder in missing if folder not in self._made]):
            self._filesystem.makedir(folder)
            self._filesystem.sync_dir(folder.parent)
            self._made.add(folder)
        self.held.append(place)
        return target
