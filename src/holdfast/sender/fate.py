"""Whether a ring still works: the error that ended it, or that it was closed; and errors of the disk in our words.

Promise: the first error stays, everybody who waits is woken by it, and every later call gets it. A call that the disk
failed is never repeated: it ends the ring. A disk that is full may end nothing, where the caller says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.disk.filesystem import is_full
from holdfast.errors import Closed, DiskFull, HoldfastError, SlotFailed, again


def disk_full(error: OSError, file: Path) -> DiskFull:
    """There is no room; `file` is named if the error names none."""
    return DiskFull(file=file_of(error, file), reason=error.strerror or str(error))


def slot_failed(error: OSError, file: Path) -> SlotFailed:
    """The disk failed us."""
    return SlotFailed(file=file_of(error, file), reason=error.strerror or str(error))


def file_of(error: OSError, file: Path) -> Path:
    """The file that the error names, or this one."""
    return Path(error.filename) if isinstance(error.filename, str) else file


@contextmanager
def disk_errors(file: Path) -> Iterator[None]:
    """Errors of the disk as errors of the slot."""
    try:
        yield
    except OSError as error:
        raise (disk_full if is_full(error) else slot_failed)(error, file) from error


class Fate:
    """Of one ring. `lock` is the ring's, `waiting` are its conditions."""

    def __init__(self, directory: Path, lock: threading.RLock, waiting: Sequence[threading.Condition]) -> None:
        self.failure: HoldfastError | None = None
        self.closed = False
        self._directory = directory
        self._lock = lock
        self._waiting = waiting

    def check(self) -> None:
        """Raise if nothing more can be handed over."""
        self.check_failure()
        self.check_open()

    def check_failure(self) -> None:
        """Raise the error that ended the ring."""
        if self.failure is not None:
            raise again(self.failure)

    def check_open(self) -> None:
        """Raise if the ring was closed."""
        if self.closed:
            raise Closed(what="the sender's ring")

    @property
    def is_over(self) -> bool:
        """Whether it has ended in either way."""
        return self.closed or self.failure is not None

    def close(self) -> None:
        """With the lock held: nothing more is taken."""
        self.closed = True
        self._wake()

    def latch(self, error: HoldfastError) -> None:
        """This error is told to everybody from now on, unless there was one before."""
        with self._lock:
            if self.failure is None:
                self.failure = error
                self._wake()

    def fail(self, error: OSError) -> SlotFailed:
        """The disk failed: that ends the ring."""
        failure = slot_failed(error, self._directory)
        self.latch(failure)
        return failure

    def full(self, error: OSError) -> DiskFull:
        """There is no room, which ends nothing."""
        return disk_full(error, self._directory)

    @contextmanager
    def disk_errors(self, *, full: bool = False) -> Iterator[None]:
        """An error of the disk ends the ring; with `full`, a full disk does not."""
        try:
            yield
        except OSError as error:
            if full and is_full(error):
                raise self.full(error) from error
            raise self.fail(error) from error

    def _wake(self) -> None:
        for condition in self._waiting:
            condition.notify_all()
