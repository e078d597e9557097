"""Which frame brought which rows of a segment.

A run is the rows of one channel that came with one frame. Runs follow each other without a gap, so a segment's run
table gives every row its committed_id, ingestion time, slot and frame number without storing them per row; the system
columns are computed from it on request. It also rebuilds what dedup must know: frame numbers per slot, and GUIDs.

Promise: `RunTable.decode(table.encode())` is the same table; anything else raises `ValueError`. Building 50,000 runs
takes tens of milliseconds, looking one up microseconds. Text form, version 1:

    "1:" + base64 of an Arrow IPC stream of one zstd-compressed batch, schema metadata first_seq = first seq in decimal
        rows             int64
        committed_step   int64   first_committed_id minus the end of the run before (the first: itself)
        ingested_step    int64   ingested_at_ns minus that of the run before (the first: itself)
        slot             dictionary of fixed_size_binary(16), null without slot
        fsn_step         int64   fsn minus that of the run before (the first: itself); -1 stands for none
        guid             fixed_size_binary(16), null without GUID
        partitions       dictionary of string: a JSON list

Version 2, "2:", is the same with one column more; it is written where a frame has several runs:

        frame_offset     int64   rows that the frame brought to the channel before this run
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.schema import SYSTEM_COLUMNS

__all__ = ["SYSTEM_COLUMNS", "SYSTEM_TYPES", "Run", "RunTable"]

VERSION_PREFIX = "1:"
OFFSETS_PREFIX = "2:"
NO_FSN = -1
NO_CODE = -1
ID_TYPE = pa.binary(16)

SYSTEM_TYPES = {
    "_seq": pa.int64(),
    "_committed_id": pa.int64(),
    "_ingested_at": pa.timestamp("us", "UTC"),  # Python and Spark have no finer time
    "_channel": pa.dictionary(pa.int32(), pa.string()),
    "_slot_id": ID_TYPE,
    "_fsn": pa.int64(),
    "_frame_index": pa.int64(),
}

_SCHEMA = pa.schema(
    [
        ("rows", pa.int64()),
        ("committed_step", pa.int64()),
        ("ingested_step", pa.int64()),
        ("slot", pa.dictionary(pa.int32(), ID_TYPE)),
        ("fsn_step", pa.int64()),
        ("guid", ID_TYPE),
        ("partitions", pa.dictionary(pa.int32(), pa.string())),
    ]
)

_OFFSETS_SCHEMA = _SCHEMA.append(pa.field("frame_offset", pa.int64()))

_Ints: TypeAlias = npt.NDArray[np.int64]
_Codes: TypeAlias = npt.NDArray[np.int32]


class Run(msgspec.Struct, frozen=True, gc=False):
    """The rows of one channel that came with one frame."""

    first_seq: int
    rows: int
    first_committed_id: int
    ingested_at_ns: int
    slot_id: bytes | None = None
    fsn: int | None = None
    guid: bytes | None = None
    partitions: tuple[str, ...] = ()
    frame_offset: int = 0
    """Rows that the frame brought to the channel before these."""


class RunTable:
    """All runs of a segment, by column. Immutable."""

    def __init__(
        self,
        first_seq: _Ints,
        rows: _Ints,
        committed_id: _Ints,
        ingested_at_ns: _Ints,
        *,
        slots: tuple[_Codes, list[bytes]],
        frames: tuple[_Ints, _Ints],
        guids: list[bytes | None] | None,
        partitions: tuple[_Codes, list[tuple[str, ...]]],
    ) -> None:
        """`frames`: the number of each run's frame, and the rows of the frame before the run."""
        self._first_seq = first_seq
        self._rows = rows
        self._committed_id = committed_id
        self._ingested_at_ns = ingested_at_ns
        self._slot_code, self._slot_ids = slots
        self._fsn, self._frame_offset = frames
        self._guids = guids
        self._partition_code, self._partitions = partitions

    # ----------------------------------------------------------------------------------------------- making and keeping

    @classmethod
    def from_runs(cls, runs: Sequence[Run]) -> RunTable:
        """A table of at least one run; each begins where the one before ends."""
        if not runs:
            raise ValueError("a run table has at least one run")
        guids = [run.guid for run in runs]
        table = cls(
            np.array([run.first_seq for run in runs], np.int64),
            np.array([run.rows for run in runs], np.int64),
            np.array([run.first_committed_id for run in runs], np.int64),
            np.array([run.ingested_at_ns for run in runs], np.int64),
            slots=_codes([run.slot_id for run in runs], none=None),
            frames=(
                np.array([NO_FSN if run.fsn is None else run.fsn for run in runs], np.int64),
                np.array([run.frame_offset for run in runs], np.int64),
            ),
            guids=guids if any(guid is not None for guid in guids) else None,
            partitions=_codes([run.partitions for run in runs], none=()),
        )
        ends = table._first_seq + table._rows
        if (table._rows < 1).any() or (ends[:-1] != table._first_seq[1:]).any():
            raise ValueError("runs are empty or do not follow each other")
        return table

    def encode(self) -> str:
        """The text form."""
        rows = self._rows
        before = np.concatenate([[0], (self._committed_id + rows)[:-1]])
        columns = [
            pa.array(rows),
            pa.array(self._committed_id - before),
            pa.array(np.diff(self._ingested_at_ns, prepend=0)),
            _dictionary(self._slot_code, pa.array(self._slot_ids, ID_TYPE)),
            pa.array(np.diff(self._fsn, prepend=0)),
            pa.nulls(len(self), ID_TYPE) if self._guids is None else pa.array(self._guids, ID_TYPE),
            _dictionary(self._partition_code, pa.array([json.dumps(p) for p in self._partitions], pa.string())),
        ]
        prefix, schema = VERSION_PREFIX, _SCHEMA
        if self._frame_offset.any():
            prefix, schema = OFFSETS_PREFIX, _OFFSETS_SCHEMA
            columns.append(pa.array(self._frame_offset))
        schema = schema.with_metadata({"first_seq": str(self.first_seq)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        return prefix + base64.b64encode(sink.getvalue()).decode("ascii")

    @classmethod
    def decode(cls, text: str) -> RunTable:
        """The table back. Only for text whose checksum was verified."""
        schemas = {VERSION_PREFIX: _SCHEMA, OFFSETS_PREFIX: _OFFSETS_SCHEMA}
        schema = schemas.get(text[: len(VERSION_PREFIX)])
        if schema is None:
            raise ValueError(f"a run table begins with {' or '.join(schemas)}, found {text[:8]!r}")
        try:
            data = base64.b64decode(text[len(VERSION_PREFIX) :], validate=True)
            with pa.ipc.open_stream(data) as reader:
                batch = reader.read_next_batch()
                batch.validate(full=True)
        except (binascii.Error, pa.ArrowException, OSError, StopIteration) as error:
            raise ValueError(f"the run table cannot be read: {error}") from None
        if not batch.schema.equals(schema) or not batch.num_rows or b"first_seq" not in (batch.schema.metadata or {}):
            raise ValueError("the run table has other columns")
        return cls._from_batch(batch, int(batch.schema.metadata[b"first_seq"]))

    @classmethod
    def _from_batch(cls, batch: pa.RecordBatch, first_seq: int) -> RunTable:
        def ints(name: str) -> _Ints:
            values: _Ints = batch.column(name).to_numpy()
            return values

        rows = ints("rows")
        rows_before = np.cumsum(rows) - rows
        partitions = batch.column("partitions")
        guids = batch.column("guid")
        slots, fsn = _codes_of(batch.column("slot")), np.cumsum(ints("fsn_step"))
        has_offsets = "frame_offset" in batch.schema.names
        return cls(
            first_seq + rows_before,
            rows,
            np.cumsum(ints("committed_step")) + rows_before,
            np.cumsum(ints("ingested_step")),
            slots=(slots, batch.column("slot").dictionary.to_pylist()),
            frames=(fsn, ints("frame_offset") if has_offsets else _offsets(slots, fsn, rows_before)),
            guids=guids.to_pylist() if guids.null_count < len(guids) else None,
            partitions=(_codes_of(partitions), [tuple(json.loads(p)) for p in partitions.dictionary.to_pylist()]),
        )

    # ------------------------------------------------------------------------------------------------------- looking up

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunTable) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Run]:
        return map(self.run, range(len(self)))

    @property
    def first_seq(self) -> int:
        """Seq of the first row."""
        return int(self._first_seq[0])

    @property
    def last_seq(self) -> int:
        """Seq of the last row."""
        return int(self._first_seq[-1] + self._rows[-1]) - 1

    @property
    def has_guids(self) -> bool:
        """Whether any frame had a GUID."""
        return self._guids is not None

    def run(self, index: int) -> Run:
        """One run by its place in the table."""
        slot, fsn, partition = self._slot_code[index], int(self._fsn[index]), self._partition_code[index]
        return Run(
            int(self._first_seq[index]),
            int(self._rows[index]),
            int(self._committed_id[index]),
            int(self._ingested_at_ns[index]),
            None if slot == NO_CODE else self._slot_ids[slot],
            None if fsn == NO_FSN else fsn,
            None if self._guids is None else self._guids[index],
            () if partition == NO_CODE else self._partitions[partition],
            int(self._frame_offset[index]),
        )

    def run_at(self, seq: int) -> Run:
        """The run that holds this row; `ValueError` when none does."""
        if not self.first_seq <= seq <= self.last_seq:
            raise ValueError(f"seq {seq} is outside of {self.first_seq}..{self.last_seq}")
        return self.run(int(np.searchsorted(self._first_seq, seq, side="right")) - 1)

    def overlapping(self, first_seq: int, last_seq: int) -> Iterator[Run]:
        """The runs that hold any of these rows, in order."""
        start = int(np.searchsorted(self._first_seq + self._rows, first_seq, side="right"))
        end = int(np.searchsorted(self._first_seq, last_seq, side="right"))
        return map(self.run, range(start, end))

    def partitions(self) -> frozenset[str]:
        """Every partition that any run belongs to."""
        return frozenset(name for names in self._partitions for name in names)

    def of_partitions(self, wanted: frozenset[str], first: int, last: int) -> tuple[_Ints, _Ints, _Ints]:
        """First seq, rows and first committed_id of the runs of any wanted partition that reach into `first..last`."""
        codes = [code for code, names in enumerate(self._partitions) if not wanted.isdisjoint(names)]
        mask = np.isin(self._partition_code, codes)
        mask &= (self._committed_id + self._rows > first) & (self._committed_id <= last)
        return self._first_seq[mask], self._rows[mask], self._committed_id[mask]

    def in_partitions(self, wanted: frozenset[str], *, first_seq: int, rows: int) -> npt.NDArray[np.bool_]:
        """Which of `rows` rows from `first_seq` on belong to any wanted partition; "" stands for rows without one."""
        codes = [code for code, names in enumerate(self._partitions) if not wanted.isdisjoint(names)]
        of_run = np.isin(self._partition_code, [*codes, NO_CODE] if "" in wanted else codes)
        return np.repeat(of_run, self._rows_within(first_seq, first_seq + rows))

    def first_seq_ingested_at(self, time_ns: int) -> int:
        """The first row that came in at or after a time; one past the last row when none did."""
        found = np.flatnonzero(self._ingested_at_ns >= time_ns)
        return int(self._first_seq[found[0]]) if len(found) else self.last_seq + 1

    def find_fsn(self, slot_id: bytes, fsn: int) -> list[Run]:
        """The runs of that frame; more than one when the frame had several entries for this channel."""
        if slot_id not in self._slot_ids:
            return []
        code = self._slot_ids.index(slot_id)
        return [self.run(int(index)) for index in np.flatnonzero((self._slot_code == code) & (self._fsn == fsn))]

    def guids(self) -> Iterator[tuple[bytes, Run]]:
        """Every GUID with its run, in order."""
        for index, guid in enumerate(self._guids or ()):
            if guid is not None:
                yield guid, self.run(index)

    def slots(self) -> dict[bytes, list[tuple[int, int]]]:
        """The frame numbers of each slot as inclusive ranges, ascending and apart."""
        return {
            slot_id: _ranges(np.unique(self._fsn[(self._slot_code == code) & (self._fsn != NO_FSN)]))
            for code, slot_id in enumerate(self._slot_ids)
        }

    # --------------------------------------------------------------------------------------------------- system columns

    def system_columns(self, names: Iterable[str], *, channel: str, first_seq: int, rows: int) -> dict[str, pa.Array]:
        """The named system columns for `rows` rows from `first_seq` on."""
        if first_seq < self.first_seq or first_seq + rows - 1 > self.last_seq:
            raise ValueError(f"rows {first_seq}..{first_seq + rows - 1} are outside {self.first_seq}..{self.last_seq}")
        seqs = np.arange(first_seq, first_seq + rows, dtype=np.int64)
        run_of_row = np.repeat(np.arange(len(self)), self._rows_within(first_seq, first_seq + rows))
        return {name: self._system_column(name, channel, seqs, run_of_row) for name in names}

    def _rows_within(self, start_seq: int, end_seq: int) -> _Ints:
        """How many rows of each run are in the half-open range."""
        starts = np.maximum(self._first_seq, start_seq)
        ends = np.minimum(self._first_seq + self._rows, end_seq)
        counts: _Ints = np.maximum(ends - starts, 0)
        return counts

    def _system_column(self, name: str, channel: str, seqs: _Ints, run_of_row: npt.NDArray[np.intp]) -> pa.Array:
        if name == "_seq":
            return pa.array(seqs)
        if name in ("_committed_id", "_frame_index"):  # they count up inside a run
            first = self._committed_id if name == "_committed_id" else self._frame_offset
            return pa.array((first - self._first_seq)[run_of_row] + seqs)
        if name == "_ingested_at":
            return pa.array(self._ingested_at_ns[run_of_row] // 1000).cast(SYSTEM_TYPES[name])
        if name == "_channel":
            return pa.DictionaryArray.from_arrays(np.zeros(len(seqs), np.int32), pa.array([channel]))
        if name == "_slot_id":
            return _dictionary(self._slot_code[run_of_row], pa.array(self._slot_ids, ID_TYPE)).dictionary_decode()
        if name == "_fsn":
            fsn = self._fsn[run_of_row]
            return pa.array(fsn, mask=fsn == NO_FSN)
        raise ValueError(f"{name!r} is not a system column; there are {', '.join(SYSTEM_COLUMNS)}")


def _codes(values: Sequence[Any], *, none: Any) -> tuple[_Codes, list[Any]]:
    """Each value as its place among the distinct ones; `none` as -1."""
    places: dict[Any, int] = {}
    codes = [NO_CODE if value == none else places.setdefault(value, len(places)) for value in values]
    return np.array(codes, np.int32), list(places)


def _dictionary(codes: _Codes, values: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes == NO_CODE), values)


def _codes_of(array: pa.DictionaryArray) -> _Codes:
    codes: _Codes = array.indices.fill_null(NO_CODE).to_numpy()
    return codes


def _offsets(slots: _Codes, fsn: _Ints, rows_before: _Ints) -> _Ints:
    """For tables that do not keep it: rows of a frame before each of its runs, as far as they are in the table."""
    goes_on = (slots[1:] == slots[:-1]) & (fsn[1:] == fsn[:-1]) & (slots[1:] != NO_CODE) & (fsn[1:] != NO_FSN)
    begins = np.concatenate([[True], ~goes_on])
    frame_of_run = np.cumsum(begins) - 1
    offsets: _Ints = rows_before - rows_before[begins][frame_of_run]
    return offsets


def _ranges(numbers: _Ints) -> list[tuple[int, int]]:
    """Ascending distinct numbers as inclusive ranges."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate([[0], breaks + 1])]
    lasts = numbers[np.concatenate([breaks, [len(numbers) - 1]])]
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]
