"""What a producer hands over, as Arrow; and Arrow as frames of a bounded size.

Taken are rows (a dict, a list of dicts), record batches and tables, data frames of pandas and polars, and whatever
offers the Arrow C stream or array interface. Types are kept as they come; metadata of a schema is not sent, it speaks
of the library that made the table.

A frame holds entries of several channels. What is more than a good frame is split, by entries and then by rows, in
order. One row may fill a frame up to its limit; one that no frame can hold raises `FrameTooLarge`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from holdfast.disk.filesystem import Bytes
from holdfast.errors import BadRequest, FrameTooLarge, InvalidBatch, WireError
from holdfast.model.frame import Entry
from holdfast.sender.rows import AT_COLUMN, AT_TYPE
from holdfast.sender.substrate import Stamp
from holdfast.wire import hfa, qwp
from holdfast.wire.limits import FrameLimits
from holdfast.wire.qwp.types import MAGIC

FRAME_ROWS_MAX = 100_000
"""Rows of one frame: far below what a server takes, and enough that more would not be faster."""
FRAME_BYTES_GOOD = (1 << 20) - 64
"""Larger frames only cost more: they leave the caches of both processors, and a server can do nothing before their end.
Frames of 4 MiB took a quarter more processor time on each side. Four of these fill a segment of the default size."""
FRAME_ENTRIES_MAX = 1024
"""Entries of one frame; what a server takes."""
FRAME_SLACK_BYTES = 2048
"""Added to the bytes of values for what frames them, when parts are sized ahead."""


class Encoder(Protocol):
    """Entries to the parts of one frame, of which the first can be stamped."""

    stamp: Stamp | None

    def encode(self, entries: Sequence[Entry]) -> list[Bytes]: ...


class ArrowEncoder:
    """HFA1: carries the identity of the frame."""

    def __init__(self, slot_id: bytes) -> None:
        self._frames = hfa.FrameEncoder()
        self._slot_id = slot_id
        self.stamp: Stamp | None = self._stamp

    def _stamp(self, view: memoryview, fsn: int) -> None:
        hfa.stamp(view, self._slot_id, fsn)

    def encode(self, entries: Sequence[Entry]) -> list[Bytes]:
        """The parts; the first is writable."""
        parts: list[Bytes] = list(self._frames.encode(entries))
        parts[0] = bytearray(parts[0])
        return parts


class QwpEncoder:
    """QWP1: each message carries all its symbols, so that it can be sent on any connection."""

    stamp: Stamp | None = None

    def encode(self, entries: Sequence[Entry]) -> list[Bytes]:
        """One message. `InvalidBatch` for partitions, and for types without a form in QWP."""
        for entry in entries:
            if entry.partitions:
                raise InvalidBatch(channel=entry.channel, reason="partitions have no form with codec=qwp")
        kept = [Entry(entry.channel, _without_nulls(entry.batch)) for entry in entries]
        has_times = all(pa.types.is_timestamp(kind) for entry in kept for kind in _types_of(entry.batch, AT_COLUMN))
        return [qwp.encode(kept, None, designated=AT_COLUMN if has_times else None)]


def _types_of(batch: pa.RecordBatch, name: str) -> list[pa.DataType]:
    return [batch.schema.field(place).type for place in batch.schema.get_all_field_indices(name)]


def _without_nulls(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without columns that have no type: nothing but null came for them yet."""
    names = [field.name for field in batch.schema if not pa.types.is_null(field.type)]
    return batch if len(names) == batch.num_columns else batch.select(names)


def encoder_of(codec: str, slot_id: bytes) -> Encoder:
    """The encoder for `codec`."""
    return ArrowEncoder(slot_id) if codec == "arrow" else QwpEncoder()


def dictionary_of(symbols: Sequence[str]) -> qwp.SymbolDictionary:
    """The dictionary in which each symbol has its place as its id, also where a text comes twice."""
    dictionary = qwp.SymbolDictionary()
    texts = [symbol.encode() for symbol in symbols]
    if texts:
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        dictionary.apply(0, np.frombuffer(b"".join(texts), np.uint8), offsets)
    return dictionary


def is_empty_qwp(payload: memoryview, symbols: Sequence[str]) -> bool:
    """Whether a server finds no table in this frame and waits for none: it may fill its dictionary, and that is all."""
    if payload[:4] != MAGIC:
        return False
    try:
        found = qwp.decode(payload, dictionary_of(symbols), FrameLimits(), now_us=0)
    except WireError:
        return False  # it will be refused, which counts
    return not found.tables and not found.deferred


# --- data to batches ------------------------------------------------------------------------------------------------


def to_batches(channel: str, data: Any) -> list[pa.RecordBatch]:
    """Everything but rows, as batches without metadata."""
    if isinstance(data, pa.RecordBatch):
        batches = [data]
    elif isinstance(data, pa.Table):
        batches = data.to_batches()
    elif hasattr(data, "__arrow_c_stream__"):
        batches = pa.RecordBatchReader.from_stream(data).read_all().to_batches()
    elif hasattr(data, "__arrow_c_array__"):
        batches = [pa.record_batch(data)]
    elif type(data).__module__.partition(".")[0] == "pandas":
        batches = pa.Table.from_pandas(data).to_batches()
    else:
        raise InvalidBatch(
            channel=channel,
            reason=f"a {type(data).__name__} is no data: send a dict, a list of dicts, a record batch, a table, a data "
            "frame, or what offers __arrow_c_stream__ or __arrow_c_array__",
        )
    return [batch.replace_schema_metadata(None) if batch.schema.metadata else batch for batch in batches]


def time_us(at: dt.datetime | int) -> int:
    """Microseconds since 1970 UTC, of a datetime or of nanoseconds."""
    if isinstance(at, int) and not isinstance(at, bool):
        return at // 1000
    if not isinstance(at, dt.datetime):
        raise BadRequest(f"at is a datetime with a time zone or nanoseconds since 1970, not {at!r}")
    if at.tzinfo is None:
        raise BadRequest(f"at={at.isoformat()} has no time zone; give one, or nanoseconds since 1970 UTC")
    passed = at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def with_time(channel: str, batch: pa.RecordBatch, at_us: int) -> pa.RecordBatch:
    """The batch with one time for all its events."""
    refuse_second_time(channel, batch.schema.names)
    times = pa.repeat(pa.scalar(at_us, AT_TYPE), batch.num_rows)
    return batch.append_column(AT_COLUMN, times)


def refuse_second_time(channel: str, names: Sequence[str]) -> None:
    """`at` would become a column that is there already."""
    if AT_COLUMN in names:
        raise InvalidBatch(channel=channel, reason=f"at= gives the column {AT_COLUMN!r}, which the data have already")


# --- entries to frames ----------------------------------------------------------------------------------------------


def frames(
    entries: list[Entry],
    encode: Callable[[Sequence[Entry]], list[Bytes]],
    room_bytes: int,
    *,
    is_small: bool = False,
) -> Iterator[tuple[list[Entry], list[Bytes]]]:
    """Frames of at most `room_bytes`, in order: what each holds, and its parts. Small ones are not measured ahead."""
    is_one = is_small and len(entries) <= FRAME_ENTRIES_MAX
    groups = [entries] if is_one else _groups(entries, min(room_bytes, FRAME_BYTES_GOOD))
    for group in groups:
        yield from _fitting(group, encode, room_bytes)


def _fitting(
    group: list[Entry], encode: Callable[[Sequence[Entry]], list[Bytes]], room_bytes: int
) -> Iterator[tuple[list[Entry], list[Bytes]]]:
    parts = encode(group)
    size = sum([memoryview(part).nbytes for part in parts])
    if size <= room_bytes:
        yield group, parts
        return
    for half in _halves(group, size, room_bytes):
        yield from _fitting(half, encode, room_bytes)


def _halves(group: list[Entry], size: int, room_bytes: int) -> tuple[list[Entry], list[Entry]]:
    if len(group) > 1:
        middle = len(group) // 2
        return group[:middle], group[middle:]
    (entry,) = group
    middle = entry.batch.num_rows // 2
    if not middle:
        raise FrameTooLarge(frame_bytes=size, allowed_bytes=room_bytes)
    return [_part(entry, 0, middle)], [_part(entry, middle, entry.batch.num_rows)]


def _groups(entries: Sequence[Entry], good_bytes: int) -> Iterator[list[Entry]]:
    """Entries that most likely make a good frame together; large ones cut into equal parts first."""
    group: list[Entry] = []
    group_bytes = group_rows = 0
    for entry in _cut(entries, good_bytes):
        rows, size = entry.batch.num_rows, entry.batch.nbytes + FRAME_SLACK_BYTES
        is_full = group_bytes + size > good_bytes or group_rows + rows > FRAME_ROWS_MAX
        if group and (is_full or len(group) >= FRAME_ENTRIES_MAX):
            yield group
            group, group_bytes, group_rows = [], 0, 0
        group.append(entry)
        group_bytes += size
        group_rows += rows
    if group:
        yield group


def _cut(entries: Sequence[Entry], good_bytes: int) -> Iterator[Entry]:
    for entry in entries:
        rows, size = entry.batch.num_rows, entry.batch.nbytes + FRAME_SLACK_BYTES
        count = min(rows, max(-(-size // good_bytes), -(-rows // FRAME_ROWS_MAX)))
        if count <= 1:
            yield entry
            continue
        step = -(-rows // count)
        for start in range(0, rows, step):
            yield _part(entry, start, min(start + step, rows))


def _part(entry: Entry, start: int, end: int) -> Entry:
    return Entry(entry.channel, entry.batch.slice(start, end - start), entry.partitions)
