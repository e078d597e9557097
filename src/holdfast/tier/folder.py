"""A folder as an object store: a disk of this machine, or one that several machines mount.

    <folder>/<key>            an object
    <folder>/<key>.….tmp      one that is being written; of no meaning after a crash
    <folder>/.lock            held for the moment in which a name is taken

Promise: `create` writes under a second name, syncs, and gives the object its own name only while it holds the lock of
the folder and no object has that name; then it syncs the directory. So an object is there as a whole or not at all,
also after a power cut, and of two processes that take one name one is told so. On a shared folder this relies on locks
that all its users see, as NFS has them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.disk.filesystem import Bytes, File, Filesystem, Mode
from holdfast.errors import DamagedObject, Locked, TierRefused, TierUnavailable

LOCK_NAME = ".lock"
TMP_SUFFIX = ".tmp"
PART_BYTES = 4 << 20


class FolderObjects:
    """Objects as files."""

    def __init__(self, filesystem: Filesystem, folder: Path, *, create: bool = True) -> None:
        """`create`: make the folder if it is missing; its parent must be there."""
        self._filesystem = filesystem
        self._folder = folder
        self._taking = threading.Lock()
        self._made: set[Path] = set()
        with self._translated("open"):
            if not filesystem.exists(folder):
                if not create or not filesystem.exists(folder.parent):
                    raise TierRefused(url=self.url, reason=f"{folder.parent} does not exist; make it, or mount it")
                self._make(folder)

    @property
    def url(self) -> str:
        """As in the settings."""
        return f"file://{self._folder}"

    def create(self, key: str, data: Bytes) -> bool:
        """Written, synced, named under the lock, and the name synced."""
        target = self._folder / key
        temporary = target.with_name(f"{target.name}.{os.getpid()}-{threading.get_ident()}{TMP_SUFFIX}")
        with self._translated(f"create {key}"):
            self._make(target.parent)
            if self._filesystem.exists(target):
                return False
            self._write(temporary, data)
            with self._taking:
                return self._take(temporary, target)

    def _take(self, temporary: Path, target: Path) -> bool:
        """Give a written file its name, unless another has it."""
        lock = self._filesystem.lock(self._folder / LOCK_NAME)
        try:
            if self._filesystem.exists(target):
                self._filesystem.unlink(temporary)
                return False
            self._filesystem.rename(temporary, target)
            self._filesystem.sync_dir(target.parent)
            return True
        finally:
            lock.release()

    def read(self, key: str) -> bytes:
        """The file."""
        return b"".join(self.parts(key))

    def parts(self, key: str) -> Iterator[bytes]:
        """The file, part by part."""
        with self._open(key) as file:
            position = 0
            while data := file.pread(PART_BYTES, position):
                yield data
                position += len(data)

    def range(self, key: str, start: int, end: int) -> bytes:
        """A part of the file."""
        with self._open(key) as file:
            return file.pread(end - start, start)

    def size_bytes(self, key: str) -> int:
        """Its length."""
        with self._open(key) as file:
            return file.size_bytes()

    def names(self, folder: str, *, after: str = "") -> Iterator[str]:
        """Files of a directory and those below it; those being written are not among them."""
        with self._translated(f"list {folder}"):
            found = list(self._below(self._folder / folder))
        names = sorted(path.relative_to(self._folder).as_posix() for path in found)
        yield from (name for name in names if not name.endswith(TMP_SUFFIX) and name > after)

    def _below(self, folder: Path) -> Iterator[Path]:
        for entry in self._filesystem.listdir(folder) if self._filesystem.exists(folder) else ():
            if entry.is_dir:
                yield from self._below(folder / entry.name)
            else:
                yield folder / entry.name

    def remove(self, key: str) -> None:
        """Unlink; the name is gone for good when this returns."""
        target = self._folder / key
        with self._translated(f"remove {key}"):
            if self._filesystem.exists(target):
                self._filesystem.unlink(target)
                self._filesystem.sync_dir(target.parent)

    def _make(self, folder: Path) -> None:
        if folder in self._made:
            return
        missing = [path for path in (folder, *folder.parents) if not self._filesystem.exists(path)]
        for path in reversed(missing):
            self._filesystem.makedir(path)
            self._filesystem.sync_dir(path.parent)
        self._made.add(folder)

    def _write(self, path: Path, data: Bytes) -> None:
        if self._filesystem.exists(path):  # of a process that ended in the middle
            self._filesystem.unlink(path)
        file = self._filesystem.open(path, Mode.CREATE)
        try:
            file.pwritev([data], 0)
            file.sync()
        finally:
            file.close()

    @contextmanager
    def _open(self, key: str) -> Iterator[File]:
        with self._translated(f"read {key}"):
            try:
                file = self._filesystem.open(self._folder / key, Mode.READ)
            except FileNotFoundError:
                raise DamagedObject(url=self.url, key=key, reason="is not there") from None
            try:
                yield file
            finally:
                file.close()

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise TierRefused(url=self.url, reason=f"{action}: {error.strerror}: {error.filename}") from error
        except Locked as error:
            raise TierUnavailable(url=self.url, action=action, reason=str(error)) from error
        except OSError as error:
            raise TierUnavailable(url=self.url, action=action, reason=error.strerror or str(error)) from error
