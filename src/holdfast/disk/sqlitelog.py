"""SQLite's own log beside a database: does it end in a tear, or is it damaged?

SQLite reads its log up to the first frame that does not fit, and takes the rest for what a power cut left. Damage
anywhere in it so undoes transactions that were durable, without a word. But the log says more:

    header  32  magic, version, page size, checkpoint number, 2 salts, checksum
    frame   24  page number, pages of the database if it ends a transaction (else 0), the salts, checksum; then the page

A checksum goes on from the one of the frame before, so each frame can be compared with the one in front of it, whatever
stands further ahead. SQLite syncs the log at the end of each transaction, before it writes the next one, and the header
before the first. So behind a frame that does not fit there may be what is left of one transaction that never ended; but

- a frame that goes on from the end of a transaction was written after that transaction was durable,
- a frame that fits but for its salts, or but for its own checksum, is no tear, and
- frames behind a header that is none were written behind one that was.

Promise: `check_log` raises `CorruptData` for all of these, so that no transaction but the last one can be undone by
damage; that one is as torn as it looks. A log that a power cut, a kill or a full disk left is never refused.

Relies on the caller for this: the database has `synchronous = FULL`, and nobody writes it meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.disk.filesystem import Filesystem
from holdfast.disk.smallfiles import read_whole
from holdfast.errors import CorruptData

LOG_SUFFIX = "-wal"

_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_MAGIC = {0x377F0682: "<u4", 0x377F0683: ">u4"}
"""And in which order its checksums read words."""
_PAGE_BYTES = {1 << power for power in range(9, 17)}

Words: TypeAlias = "NDArray[np.uint32]"


def check_log_beside(filesystem: Filesystem, path: Path) -> None:
    """The same for the log of the database at `path`; nothing if it has none."""
    log = path.with_name(path.name + LOG_SUFFIX)
    check_log(log, read_whole(filesystem, log) or b"")


def check_log(path: Path, log: bytes) -> None:
    """Raise `CorruptData` if durable transactions of this log, with that name, would be undone by damage."""
    if len(log) < _HEADER_BYTES + _FRAME_HEADER_BYTES + min(_PAGE_BYTES):
        return  # nothing ended
    header = np.frombuffer(log, ">u4", _HEADER_BYTES // 4).astype(np.uint32)
    page_bytes, order = int(header[2]), _MAGIC.get(int(header[0]))
    if order is None or page_bytes not in _PAGE_BYTES or not _is_header_whole(log, header, order):
        raise CorruptData(file=path, offset_bytes=0, reason="the header of SQLite's log is damaged")
    frame_bytes = _FRAME_HEADER_BYTES + page_bytes
    if len(log) < _HEADER_BYTES + frame_bytes:
        return
    frames = _Frames(log, header, order, frame_bytes)
    bad = frames.first_misfit()
    if bad is not None and frames.went_on(bad):
        reason = "SQLite's log is damaged, and durable transactions stand behind that"
        raise CorruptData(file=path, offset_bytes=_HEADER_BYTES + bad * frame_bytes, reason=reason)


def _is_header_whole(log: bytes, header: Words, order: str) -> bool:
    words = np.frombuffer(log, order, 6).astype(np.uint32).reshape(1, -1)
    return bool((_sums(words, np.zeros((1, 2), np.uint32))[0] == header[6:8]).all())


class _Frames:
    """All whole frames, each held against the one in front of it."""

    def __init__(self, log: bytes, header: Words, order: str, frame_bytes: int) -> None:
        count = (len(log) - _HEADER_BYTES) // frame_bytes
        found = np.frombuffer(log, ">u4", count * frame_bytes // 4, _HEADER_BYTES).reshape(count, -1)
        words = found.view(order).astype(np.uint32)
        self._content = np.concatenate([words[:, 0:2], words[:, 6:]], axis=1)
        said = found[:, 4:6].astype(np.uint32)
        self._sums = _sums(self._content, np.concatenate([header[6:8].reshape(1, 2), said[:-1]]))
        self._said = said
        self._fits = (self._sums == said).all(axis=1)
        self._salted = (found[:, 2:4] == header[4:6]).all(axis=1)
        self._ends = self._salted & (found[:, 1] != 0)

    def first_misfit(self) -> int | None:
        """The frame at which SQLite stops to read, if there is one."""
        misfits = np.flatnonzero(~(self._fits & self._salted))
        return int(misfits[0]) if len(misfits) else None

    def went_on(self, bad: int) -> bool:
        """Whether transactions ended at that frame or behind it, and others followed."""
        if self._fits[bad]:  # and its salts are not what they were
            return True
        if bad + 1 < len(self._fits) and self._salted[bad + 1]:
            following = _sums(self._content[bad + 1 : bad + 2], self._sums[bad : bad + 1])
            if (following[0] == self._said[bad + 1]).all():  # its checksum is not what it was
                return True
        return bool((self._ends[bad:-1] & self._salted[bad + 1 :] & self._fits[bad + 1 :]).any())


def _sums(words: Words, seeds: Words) -> Words:
    """SQLite's checksum of each row of words, going on from its seed."""
    first, second = seeds[:, 0].copy(), seeds[:, 1].copy()
    for at in range(0, words.shape[1], 2):
        first += words[:, at] + second
        second += words[:, at + 1] + first
    return np.stack([first, second], axis=1)
