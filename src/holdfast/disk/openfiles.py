"""Open read-only files, kept for reuse up to a soft limit.

Promise: `use(path)` lends an open file for the length of a `with` block; it is not closed under its user, whatever
the limit says. Beyond the limit the file that was idle longest is closed first; if all are in use the limit is
exceeded, and met again as they come back. Thread-safe: a file may be lent to several threads at once, for `pread` and
`map`.

Relies on the caller to `discard` a path when it deletes or replaces that file; who holds it then goes on reading the
old one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from holdfast.disk.filesystem import File, Filesystem, Mode
from holdfast.errors import Closed


@dataclass(frozen=True, slots=True)
class OpenFilesStatistics:
    """What the cache holds and how it did so far."""

    open: int
    limit: int
    hits: int
    misses: int
    evictions: int


class _Entry:
    __slots__ = ("file", "kept", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.kept = True  # False once discarded: closed when its last user leaves


class OpenFiles:
    """Files by path, least recently used first."""

    def __init__(self, filesystem: Filesystem, limit: int) -> None:
        assert limit >= 1, "a limit below one could keep nothing open"
        self._filesystem = filesystem
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()
        self._open = 0
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._closed = False

    @contextmanager
    def use(self, path: Path) -> Iterator[File]:
        """Lend the file at `path`; it stays open inside the block."""
        with self._lock:
            entry = self._borrow(path)
        try:
            yield entry.file
        finally:
            with self._lock:
                self._give_back(entry)

    def discard(self, path: Path) -> None:
        """Forget the file at `path`; close it now, or when its last user leaves."""
        with self._lock:
            entry = self._entries.pop(path, None)
            if entry is not None:
                self._drop(entry)

    def close(self) -> None:
        """Close every idle file now and the others as they come back. Idempotent."""
        with self._lock:
            self._closed = True
            while self._entries:
                self._drop(self._entries.popitem()[1])

    def statistics(self) -> OpenFilesStatistics:
        with self._lock:
            return OpenFilesStatistics(self._open, self._limit, self._hits, self._misses, self._evictions)

    def _borrow(self, path: Path) -> _Entry:
        if self._closed:
            raise Closed(what="the set of open files")
        entry = self._entries.get(path)
        if entry is not None:
            self._hits += 1
            self._entries.move_to_end(path)
        else:
            self._misses += 1
            # Opened under the lock, so that a `discard` after an unlink cannot miss a file being opened.
            entry = self._entries[path] = _Entry(self._filesystem.open(path, Mode.READ))
            self._open += 1
        entry.users += 1
        self._evict()
        return entry

    def _give_back(self, entry: _Entry) -> None:
        entry.users -= 1
        if not entry.kept and entry.users == 0:
            self._close(entry)
        self._evict()

    def _evict(self) -> None:
        if self._open <= self._limit:
            return
        idle = (path for path, entry in self._entries.items() if entry.users == 0)
        for path in list(islice(idle, self._open - self._limit)):
            self._evictions += 1
            self._drop(self._entries.pop(path))

    def _drop(self, entry: _Entry) -> None:
        entry.kept = False
        if entry.users == 0:
            self._close(entry)

    def _close(self, entry: _Entry) -> None:
        self._open -= 1
        entry.file.close()
