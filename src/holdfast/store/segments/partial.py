"""A part of a segment that lies elsewhere: its footer, and the batches that somebody wants.

Promise: Arrow sees no byte that was not proven, although the file was not read as a whole. The checksum of a segment is
noted in its footer at the end of each batch. The footer is proven first: the last of these places, what follows it, and
the footer itself give the checksum that the catalog has. Then each batch proves itself between two places.

    0 ─ schema, dictionaries, batch 0 ─┬─ batch 1 ─┬─ … ─┬─ batch n ─┬─ end mark ─┬─ footer ─ size
                                    place 0     place 1           place n      footer.start

The buffer is as large as the file, but only what was fetched takes memory. A file whose batches cannot be told apart is
`CorruptData`; then the whole of it is to be read.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import File
from holdfast.errors import CorruptData
from holdfast.model.columns import has_dictionary
from holdfast.store.segments.footer import Footer, FooterDamaged, read_footer
from holdfast.store.segments.reader import SegmentReader, _blocks, _check_format

TAIL_BYTES = 128 << 10
"""Fetched first; holds the footer of a usual segment."""

Fetch = Callable[[int, int], bytes]
"""Bytes from a place to another, the last not included."""


def open_part(
    path: Path, size_bytes: int, expected_crc32c: int, *, span: tuple[int, int] | None, fetch: Fetch
) -> SegmentReader:
    """A reader that may be asked for the seqs of `span`, both included, and for runs; None is for runs only.

    `path` is for texts.
    """
    window = _Window(path, size_bytes, fetch)
    try:
        footer = read_footer(cast("File", window))
    except FooterDamaged as error:
        raise CorruptData(file=path, offset_bytes=error.offset_bytes, reason=error.reason) from None
    places = [(0, 0), *((block.end, block.crc32c) for block in _blocks(footer))]
    _prove_footer(window, footer, places[-1], expected_crc32c)
    _check_format(path, footer)
    reader = SegmentReader(path, pa.py_buffer(window.data), footer)
    if len(places) != len(reader.batch_rows) + 1:
        raise CorruptData(file=path, offset_bytes=footer.start, reason="its batches cannot be told apart")
    if span is not None:
        first, last = _batches(reader, *span)
        if first > 0 and has_dictionary(reader.schema):
            _prove_batches(window, places, 0, 0)
        if first <= last:
            _prove_batches(window, places, first, last)
    return reader


def _prove_footer(window: _Window, footer: Footer, last_place: tuple[int, int], expected_crc32c: int) -> None:
    end, crc = last_place
    whole = crc32c(footer.data, crc32c(window.pread(footer.start - end, end), crc)) if end else -1
    if whole != expected_crc32c:
        reason = f"the footer is not what was written (checksum {max(whole, 0):08x}, expected {expected_crc32c:08x})"
        raise CorruptData(file=window.path, offset_bytes=footer.start, reason=reason)


def _batches(reader: SegmentReader, first_seq: int, last_seq: int) -> tuple[int, int]:
    """The first and the last batch that hold any of these seqs."""
    ends = np.cumsum(reader.batch_rows)
    base = reader.meta.first_seq
    first = int(np.searchsorted(ends, max(first_seq, base) - base, side="right"))
    last = int(np.searchsorted(ends, min(last_seq, reader.meta.last_seq) - base, side="right"))
    return first, last


def _prove_batches(window: _Window, places: list[tuple[int, int]], first: int, last: int) -> None:
    """Fetch batches that lie beside each other with one request, and compare each."""
    window.take(places[first][0], places[last + 1][0])
    for (start, before), (end, after) in zip(places[first : last + 1], places[first + 1 : last + 2], strict=True):
        if crc32c(window.pread(end - start, start), before) != after:
            raise CorruptData(file=window.path, offset_bytes=start, reason=f"bytes to {end} are not what was written")


class _Window:
    """As much of a file as `read_footer` needs, and a place for the rest."""

    def __init__(self, path: Path, size_bytes: int, fetch: Fetch) -> None:
        self.path = path
        self.data = mmap.mmap(-1, max(1, size_bytes))  # pages that are not written take no memory
        self._size_bytes = size_bytes
        self._fetch = fetch
        self._tail_start = size_bytes
        self.take(max(0, size_bytes - TAIL_BYTES), size_bytes)

    def size_bytes(self) -> int:
        return self._size_bytes

    def pread(self, count: int, offset_bytes: int) -> bytes:
        """From what was taken; what lies before the end that is there is fetched if it reaches into it."""
        if offset_bytes < self._tail_start <= offset_bytes + count:
            self.take(offset_bytes, self._tail_start)
        return self.data[offset_bytes : offset_bytes + count]

    def take(self, start: int, end: int) -> None:
        """Fetch a range."""
        data = self._fetch(start, end)
        if len(data) != end - start:
            raise CorruptData(file=self.path, offset_bytes=start, reason=f"{len(data)} of {end - start} bytes came")
        self.data[start:end] = data
        if end == self._tail_start:
            self._tail_start = start
