"""The symbol dictionary of a connection: id to text, for the side that reads; text to id, for the side that writes.

    ids      0 .. size-1, without gaps
    storage  one array of bytes; two arrays say where each symbol begins and how long it is

A message brings new symbols as a delta: (first id, texts). First id ≤ size extends the dictionary or says anew what
ids mean; beyond it there would be a gap, and the delta is refused. `apply` returns what `revert` needs, so that a
message which turns out to be wrong leaves nothing behind. A symbol costs its bytes and 16 more; two million of them
never become Python objects on the reading side.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.errors import Category
from holdfast.wire.qwp.reader import Numbers, Reader, gather, texts

ENTRIES_MAX = 2_000_000
"""What the reference server holds."""
BYTES_MAX = 64 << 20
"""32 bytes for each of two million."""
SLACK_BYTES = 1 << 20
"""Bytes of symbols said anew that are kept before the array is written again."""


class Undo(NamedTuple):
    """What a delta replaced."""

    first: int
    starts: Numbers
    lengths: Numbers
    size: int
    used_bytes: int
    live_bytes: int


class SymbolDictionary:
    """The symbols of one connection. Not for several threads at once."""

    def __init__(self, *, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self.entries_max = entries_max
        self.bytes_max = bytes_max
        self._data: Numbers = np.empty(0, np.uint8)
        self._starts: Numbers = np.empty(0, np.int64)
        self._lengths: Numbers = np.empty(0, np.int64)
        self._size = 0
        self._used_bytes = 0
        self._live_bytes = 0
        self._ids: dict[bytes, int] | None = None

    @property
    def size(self) -> int:
        """How many ids have a meaning."""
        return self._size

    @property
    def size_bytes(self) -> int:
        """Bytes of all symbols."""
        return self._live_bytes

    # -- reading ----------------------------------------------------------------------------------------------------

    def take(self, ids: Numbers) -> pa.StringArray:
        """The texts of these ids, which must be below `size`."""
        data, offsets = gather(self._data, self._starts[ids], self._lengths[ids])
        return texts(data, offsets)

    def bytes_of(self, ids: Numbers) -> int:
        """Bytes of the texts of these ids."""
        return int(self._lengths[ids].sum())

    def apply(self, first: int, data: Numbers, offsets: Numbers) -> Undo:
        """Say what the ids from `first` on mean. The caller has checked `objection`."""
        lengths = np.diff(offsets)
        end = first + len(lengths)
        size = max(self._size, end)
        if self._used_bytes - self._live_bytes > self._live_bytes + SLACK_BYTES:
            self._compact()
        known = slice(first, min(end, self._size))
        undo = Undo(
            first,
            self._starts[known].copy(),
            self._lengths[known].copy(),
            self._size,
            self._used_bytes,
            self._live_bytes,
        )
        self._data = _grown(self._data, self._used_bytes, self._used_bytes + len(data))
        self._starts = _grown(self._starts, self._size, size)
        self._lengths = _grown(self._lengths, self._size, size)
        self._data[self._used_bytes : self._used_bytes + len(data)] = data
        self._starts[first:end] = self._used_bytes + offsets[:-1]
        self._lengths[first:end] = lengths
        self._live_bytes += len(data) - int(undo.lengths.sum())
        self._used_bytes += len(data)
        self._size = size
        self._ids = None
        return undo

    def revert(self, undo: Undo) -> None:
        """Take the last `apply` back."""
        known = slice(undo.first, undo.first + len(undo.starts))
        self._starts[known] = undo.starts
        self._lengths[known] = undo.lengths
        self._size, self._used_bytes, self._live_bytes = undo.size, undo.used_bytes, undo.live_bytes

    def objection(self, first: int, count: int, size_bytes: int) -> str | None:
        """Why a delta without a gap may not be applied."""
        if first + count > self.entries_max:
            return f"the dictionary would have {first + count} symbols, at most {self.entries_max} are allowed"
        replaced = int(self._lengths[first : min(first + count, self._size)].sum())
        if self._live_bytes - replaced + size_bytes > self.bytes_max:
            return f"the dictionary would have more than {self.bytes_max} bytes of symbols"
        return None

    def _compact(self) -> None:
        """Forget the bytes of symbols that were said anew."""
        self._data, offsets = gather(self._data, self._starts[: self._size], self._lengths[: self._size])
        self._starts = offsets[:-1].copy()
        self._lengths = self._lengths[: self._size].copy()
        self._used_bytes = len(self._data)

    # -- writing ----------------------------------------------------------------------------------------------------

    def intern(self, symbols: Sequence[str]) -> list[int]:
        """The ids of these symbols; new ones get the next."""
        if self._ids is None:
            self._ids = {raw: i for i, raw in enumerate(self.encoded(0, self._size))}
        known = self._ids
        ids: list[int] = []
        new: list[bytes] = []
        for symbol in symbols:
            raw = symbol.encode()
            number = known.setdefault(raw, len(known))
            if number == self._size + len(new):
                new.append(raw)
            ids.append(number)
        if new:
            self._append(new)
        return ids

    def _append(self, new: list[bytes]) -> None:
        offsets = np.zeros(len(new) + 1, np.int64)
        np.cumsum([len(raw) for raw in new], out=offsets[1:])
        known, objection = self._ids, self.objection(self._size, len(new), int(offsets[-1]))
        if objection is not None:
            self._ids = None
            raise ValueError(objection)
        self.apply(self._size, np.frombuffer(b"".join(new), np.uint8), offsets)
        self._ids = known

    def truncate(self, size: int) -> None:
        """Forget the symbols from id `size` on: those of a message that was never sent."""
        if size >= self._size:
            return
        self._live_bytes -= int(self._lengths[size : self._size].sum())
        self._size = size
        self._ids = None

    def encoded(self, first: int, end: int) -> list[bytes]:
        """The symbols of a range of ids, each as UTF-8."""
        data, offsets = gather(self._data, self._starts[first:end], self._lengths[first:end])
        raw, bounds = data.tobytes(), offsets.tolist()
        return [raw[start:stop] for start, stop in pairwise(bounds)]


def read_delta(reader: Reader, dictionary: SymbolDictionary) -> Undo | None:
    """Read the delta at the reader's place and apply it; None if it changes nothing."""
    first, count = reader.varint(), reader.varint()
    if first > dictionary.size:
        reason = f"the symbols begin at id {first}, but the dictionary has {dictionary.size}"
        raise reader.refuse(reason, category=Category.DICTIONARY_GAP)
    if first + count > dictionary.entries_max:
        reason = f"the dictionary would have {first + count} symbols, at most {dictionary.entries_max} are allowed"
        raise reader.refuse(reason)
    starts, lengths = reader.strings(count)
    if count == 0:
        return None
    objection = dictionary.objection(first, count, int(lengths.sum()))
    if objection is not None:
        raise reader.refuse(objection)
    data, offsets = gather(reader.bytes, starts, lengths)
    check_texts(reader, texts(data, offsets), "a symbol")
    return dictionary.apply(first, data, offsets)


def check_texts(reader: Reader, array: pa.StringArray, what: str) -> None:
    """Refuse an array in which a value is not UTF-8."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise reader.refuse(f"{what} is not UTF-8") from None


def _grown(array: Numbers, used: int, size: int) -> Numbers:
    if size <= len(array):
        return array
    grown = np.empty(max(size, 2 * len(array)), array.dtype)
    grown[:used] = array[:used]
    return grown
