"""The Parquet exporter: one folder per channel and date, files that are whole or not there.

    <path>/<channel>/date=2026-05-04/part-<first seq>-<last seq>.parquet              of core-0
    <path>/<channel>/date=2026-05-04/core-<k>-part-<first seq>-<last seq>.parquet     of core-<k>

Promise: a file appears under its name only when it is complete and synced. A file says which seqs it covers: all events
of its date in that range are in it. So a parcel that comes again, after a crash or in other portions, adds nothing that
is there. Requests are decoded; one that cannot be is rejected, the others of its parcel are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.clock import Clock
from holdfast.config.values import Kind, setting
from holdfast.dataflow.exporters.parcels import Parcel, Span, Verdict
from holdfast.dataflow.settings import ExporterSettings, read_node
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.errors import InvalidConfig, WireError
from holdfast.model.intervals import IntervalSet
from holdfast.wire.otlp.decode import decode
from holdfast.wire.otlp.raw import REQUEST, is_raw
from holdfast.wire.otlp.signals import Signal

_PART = re.compile(r"(?:core-(\d+)-)?part-(\d{20})-(\d{20})\.parquet")
_EVENT_TIMES = ("time", "start_time", "observed_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ExporterSettings):
    """Settings of a Parquet exporter."""

    path: str = setting("path", Kind.TEXT, "", why="folder for the files; required")
    compression: str = setting(
        "compression",
        Kind.CHOICE,
        "zstd",
        choices=("zstd", "snappy", "none"),
        why="telemetry repeats itself; zstd makes it several times smaller at little cost",
    )
    date: str = setting(
        "date",
        Kind.CHOICE,
        "ingestion",
        choices=("ingestion", "event"),
        why="which time names the folder; event times come from clients, whose clocks may be anywhere",
    )

    def check_relations(self) -> None:
        """A folder is needed."""
        ExporterSettings.check_relations(self)
        if not self.path:
            raise InvalidConfig(key="path", reason="is required: the folder in which files are written")

    def owned(self) -> list[tuple[str, str]]:
        """The folder."""
        return [("path", self.path)]


def read_settings(raw: Mapping[str, object], folder: Path) -> Settings:
    """Settings of the node; a path is relative to the folder of the file."""
    path = raw.get("path")
    return read_node(Settings, {**raw, "path": str(folder / path)} if isinstance(path, str) and path else dict(raw))


def make(settings: Settings, *, filesystem: Filesystem, clock: Clock) -> ParquetExporter:  # noqa: ARG001
    """The exporter of a node."""
    return ParquetExporter(settings, filesystem)


class ParquetExporter:
    """Writes parcels as files."""

    def __init__(self, settings: Settings, filesystem: Filesystem) -> None:
        self._root = Path(settings.path)
        self._settings = settings
        self._filesystem = filesystem
        self._covered: dict[tuple[Path, int], IntervalSet] = {}

    def deliver(self, parcel: Parcel) -> Verdict:
        """Write what is not there yet."""
        rejected: list[tuple[Span, str]] = []
        found = [self._rows(*part, rejected) for part in parcel.parts()]
        tables = [pa.Table.from_batches([rows]) for rows in found if rows.num_rows]
        if tables:
            for date, rows in self._by_date(pa.concat_tables(tables, promote_options="default")):
                self._write(parcel, date, rows)
        return Verdict(rejected)

    def close(self) -> None:
        """Nothing is kept open."""

    # -- rows -------------------------------------------------------------------------------------------------------

    def _rows(
        self, seqs: pa.Array, ingested_at: pa.Array, rows: pa.RecordBatch, rejected: list[tuple[Span, str]]
    ) -> pa.RecordBatch:
        """Records with `_seq` and `_ingested_at` of the event they came with."""
        if is_raw(rows.schema):
            rows, taken = _decoded(seqs, rows, rejected)
            seqs, ingested_at = seqs.take(taken), ingested_at.take(taken)
        return rows.append_column("_seq", seqs).append_column("_ingested_at", ingested_at)

    def _by_date(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        at = table.column("_ingested_at").cast(pa.timestamp("us", "UTC"))
        times = [name for name in _EVENT_TIMES if name in table.schema.names]
        if self._settings.date == "event" and times:
            at = pc.coalesce(*(table.column(name).cast(pa.timestamp("us", "UTC"), safe=False) for name in times), at)
        dates = at.cast(pa.date32())
        for date in sorted(dates.unique().to_pylist()):
            yield date.isoformat(), table.filter(pc.equal(dates, pa.scalar(date, pa.date32())))

    # -- files ------------------------------------------------------------------------------------------------------

    def _write(self, parcel: Parcel, date: str, rows: pa.Table) -> None:
        folder = self._folder(parcel.channel, date)
        covered = self._covered_in(folder, parcel.core)
        rows = _outside(rows, covered, parcel.first_seq, parcel.last_seq)
        if rows.num_rows:
            name = f"part-{parcel.first_seq:020d}-{parcel.last_seq:020d}.parquet"
            self._put(folder, f"core-{parcel.core}-{name}" if parcel.core else name, self._encoded(rows))
        covered.add(parcel.first_seq, parcel.last_seq)

    def _encoded(self, rows: pa.Table) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression=self._settings.compression)
        return sink.getvalue()

    def _folder(self, channel: str, date: str) -> Path:
        folder = self._root / channel / f"date={date}"
        missing = [path for path in (folder, *folder.parents) if not self._filesystem.exists(path)]
        for path in reversed(missing):
            self._filesystem.makedir(path)
            self._filesystem.sync_dir(path.parent)
        return folder

    def _covered_in(self, folder: Path, core: int) -> IntervalSet:
        if (folder, core) not in self._covered:
            matches = (_PART.fullmatch(entry.name) for entry in self._filesystem.listdir(folder))
            spans = [(int(match[2]), int(match[3])) for match in matches if match and int(match[1] or 0) == core]
            self._covered[folder, core] = IntervalSet(sorted(spans))
        return self._covered[folder, core]

    def _put(self, folder: Path, name: str, data: pa.Buffer) -> None:
        target, unfinished = folder / name, folder / f".{name}.tmp"
        if self._filesystem.exists(unfinished):  # of a process that was killed
            self._filesystem.unlink(unfinished)
        file = self._filesystem.open(unfinished, Mode.CREATE)
        try:
            file.pwritev([data], 0)
            file.sync()
        finally:
            file.close()
        self._filesystem.rename(unfinished, target)
        self._filesystem.sync_dir(folder)


def _outside(rows: pa.Table, covered: IntervalSet, first_seq: int, last_seq: int) -> pa.Table:
    """Rows whose seq is in no file yet."""
    known = [(first, last) for first, last in covered if first <= last_seq and last >= first_seq]
    if not known:
        return rows
    seqs = rows.column("_seq").to_numpy()
    there = np.zeros(len(seqs), bool)
    for first, last in known:
        there |= (seqs >= first) & (seqs <= last)
    return rows.filter(pa.array(~there))


def _decoded(seqs: pa.Array, rows: pa.RecordBatch, rejected: list[tuple[Span, str]]) -> tuple[pa.RecordBatch, pa.Array]:
    """The records, and the row that each came with; rows that cannot be decoded are rejected one by one."""
    names = rows.column("signal").unique().to_pylist()
    if len(names) != 1 or names[0] not in {signal.value for signal in Signal}:
        rejected.append(((seqs[0].as_py(), seqs[-1].as_py()), f"signals {names} are not one of OTLP's"))
        return rows.slice(0, 0), pa.array([], pa.int64())
    signal, requests = Signal(names[0]), rows.column(REQUEST).cast(pa.binary())
    try:
        found = decode(signal, requests)
    except WireError:
        sound = [at for at in range(rows.num_rows) if _is_sound(signal, requests.slice(at, 1), seqs[at], rejected)]
        found = decode(signal, requests.take(pa.array(sound, pa.int64())))
        return found.rows, pa.array(sound, pa.int64()).take(found.request)
    return found.rows, found.request


def _is_sound(signal: Signal, request: pa.Array, seq: pa.Scalar, rejected: list[tuple[Span, str]]) -> bool:
    try:
        decode(signal, request)
    except WireError as error:
        rejected.append(((seq.as_py(), seq.as_py()), str(error)))
        return False
    return True
