"""Events of channels as Parquet files, or a Delta table made of them.

    <target>/<channel>/part-<first seq>-<last seq>.parquet         one file per part, 20 digits each
    <target>/<channel>/.part-….parquet.<process>.tmp               a file that is being written; readers skip the dot
    <target>/.<channel>.lock                                       held while an export of the channel runs

Promise: a file is complete under its name, or not there: it is written beside it, synced and renamed. What a killed
export left half is removed by the next one. A file that is there is not written again, so an export that was
interrupted goes on where it was. With `sort_by` the rows of a file are in the order of that column; without, in the
order of their seqs. Events that were evicted while the export ran are an error, never a gap.

All files of a channel have the same columns, those the channel has now; events from before a column came have null.
Files are never changed, so when the channel has grown since the last export, the next one is refused. It writes new
files with the new columns, and leaves the old ones without, if it is told to (`merge_schema`): most readers then need
to be told, too, or they take the columns of the first file for all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest
from holdfast.model.intervals import IntervalSet
from holdfast.model.schema import SYSTEM_COLUMNS
from holdfast.spark.access import StoreAccess
from holdfast.spark.batch import TASK_PATIENCE_S
from holdfast.spark.columns import spark_schema
from holdfast.spark.jobs.engine import run_parts
from holdfast.spark.jobs.parts import Part, planned
from holdfast.spark.options import SourceOptions
from holdfast.spark.planning import pieces_within
from holdfast.spark.reading import read_pieces
from holdfast.spark.resolving import open_access
from holdfast.store.segments.runs import SYSTEM_TYPES

FILE_EVENTS = 1_000_000
"""Some ten to some hundred megabytes, which one task writes in seconds and holds in memory once."""
TMP_SUFFIX = ".tmp"
LOCK_SUFFIX = ".lock"
REASONS_MAX = 5
_NAME = re.compile(r"part-(\d{20})-(\d{20})\.parquet")
_HALF = re.compile(r"\.?part-\d{20}-\d{20}\.parquet\.\d+\.tmp")
"""With a dot, and without one, as they were called once."""


@dataclass(frozen=True)
class Export:
    """What was written."""

    files: int = 0
    events: int = 0
    bytes: int = 0

    def plus(self, other: Export) -> Export:
        """Both together."""
        return Export(self.files + other.files, self.events + other.events, self.bytes + other.bytes)


@dataclass(frozen=True)
class _Writing:
    """What a worker needs; it is pickled."""

    options: SourceOptions
    target: str
    schemas: tuple[tuple[str, bytes], ...]
    sort_by: str = ""
    compression: str = "zstd"

    def __call__(self, part: Part) -> Export:
        """Write one file, unless it is there."""
        path = file_of(Path(self.target), part)
        filesystem = LocalFilesystem()
        if filesystem.exists(path):  # this part was tried before
            return Export(1, part.events, path.stat().st_size)
        table = self._rows(part)
        size_bytes = write_file(filesystem, path, table, self.compression)
        return Export(1, table.num_rows, size_bytes)

    def _rows(self, part: Part) -> pa.Table:
        access = open_access(self.options, patience_s=TASK_PATIENCE_S)
        schema = pa.ipc.read_schema(pa.py_buffer(dict(self.schemas)[part.channel]))
        pieces = pieces_within(access, part.channel, (part.first_seq, part.last_seq))
        batches = list(read_pieces(access, pieces, schema, fail_on_data_loss=True))
        table = pa.Table.from_batches(batches, schema)
        return table.sort_by(self.sort_by) if self.sort_by else table


def export(
    options: SourceOptions,
    target: Path,
    *,
    master: str | None = None,
    sort_by: str = "",
    delta: bool = False,
    merge_schema: bool = False,
    file_events: int = FILE_EVENTS,
    on_part: Callable[[Export, int], None] = lambda _done, _parts: None,
) -> Export:
    """Export what the options name; `on_part` is told what is done and how many parts there are in all."""
    access, parts = planned(options, length=file_events)
    system = tuple(SYSTEM_COLUMNS) if options.include_metadata else ()
    schemas = {part.channel: _schema(access, part.channel, system) for part in parts}
    _check(schemas, sort_by, target, delta=delta)
    packed = tuple((channel, schema.serialize().to_pybytes()) for channel, schema in schemas.items())
    done = Export()
    with _owned(target, schemas):
        left = left_of(parts, target)
        for channel in () if merge_schema else dict.fromkeys(part.channel for part in left):
            _check_columns(target / channel, channel, schemas[channel])
        for result in run_parts(_Writing(options, str(target), packed, sort_by), left, master=master):
            done = done.plus(result)
            on_part(done, len(left))
        if delta:
            _make_delta([target / channel for channel in schemas])
    return done


@contextmanager
def _owned(target: Path, channels: Iterable[str]) -> Iterator[None]:
    """The folders are there, nobody else exports into them, and nothing half written is in them."""
    filesystem = LocalFilesystem()
    with ExitStack() as held:
        for channel in channels:
            folder = target / channel
            folder.mkdir(parents=True, exist_ok=True)
            held.callback(filesystem.lock(target / f".{channel}{LOCK_SUFFIX}").release)
            for entry in filesystem.listdir(folder):
                if _HALF.fullmatch(entry.name):
                    filesystem.unlink(folder / entry.name)
        yield


def file_of(target: Path, part: Part) -> Path:
    """The file of a part."""
    return target / part.channel / f"part-{part.first_seq:020d}-{part.last_seq:020d}.parquet"


def _schema(access: StoreAccess, channel: str, system: tuple[str, ...]) -> pa.Schema:
    """Columns of types that Spark, Delta and Iceberg know."""
    extra = [pa.field(name, SYSTEM_TYPES[name]) for name in system]
    found = pa.schema([*access.schema(channel).remove_metadata(), *extra])
    made: pa.Schema = to_arrow_schema(spark_schema(found), timezone="UTC")
    return made


def _check(schemas: dict[str, pa.Schema], sort_by: str, target: Path, *, delta: bool) -> None:
    """Refuse before anything is written."""
    for channel, schema in schemas.items():
        if sort_by and sort_by not in schema.names:
            raise BadRequest(f"channel {channel!r} has no column {sort_by!r}; it has {', '.join(schema.names)}")
        if delta and (target / channel / "_delta_log").exists():
            raise BadRequest(f"{target / channel} is a Delta table already; export to another folder")


def _check_columns(folder: Path, channel: str, schema: pa.Schema) -> None:
    """Refuse to put files with other columns beside those that are there."""
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            there = pq.read_schema(path)
        except pa.ArrowInvalid as error:
            raise BadRequest(f"{path} is no Parquet file: {error}; remove it, so that it is written again") from None
        differing = [*_differing(schema, there)]
        if differing:
            more = f" and {len(differing) - REASONS_MAX} more" if len(differing) > REASONS_MAX else ""
            raise BadRequest(
                f"the files in {folder} have other columns than channel {channel!r} would get now: "
                f"{'; '.join(differing[:REASONS_MAX])}{more} ({path.name}). Export to another folder, or with "
                "--merge-schema: newer files get the columns of now, and readers must merge them"
            )


def _differing(now: pa.Schema, there: pa.Schema) -> Iterator[str]:
    before = {field.name: field.type for field in there}
    for field in now:
        if field.name not in before:
            yield f"{field.name} ({field.type}) is new"
        elif before[field.name] != field.type:
            yield f"{field.name} was {before[field.name]} and is {field.type}"
    yield from (f"{name} is left out" for name in before if name not in now.names)


def left_of(parts: Iterable[Part], target: Path) -> list[Part]:
    """What no file has yet, so that a channel that has grown is exported from where the last export ended."""
    there: dict[str, IntervalSet] = {}
    left = []
    for part in parts:
        spans = there.get(part.channel)
        if spans is None:
            names = (path.name for path in (target / part.channel).glob("part-*.parquet"))
            matches = (match for name in names if (match := _NAME.fullmatch(name)))
            spans = there[part.channel] = IntervalSet((int(match[1]), int(match[2])) for match in matches)
        left += [Part(part.channel, *span) for span in spans.missing(part.first_seq, part.last_seq)]
    return left


def write_file(filesystem: Filesystem, path: Path, table: pa.Table, compression: str) -> int:
    """A file that is whole under its name. A worker that was given the same part before may have left its own half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TMP_SUFFIX}")
    pq.write_table(table, temporary, compression=compression)
    file = filesystem.open(temporary, Mode.READ)
    try:
        file.sync()
        size_bytes = file.size_bytes()
    finally:
        file.close()
    filesystem.rename(temporary, path)
    filesystem.sync_dir(path.parent)
    return size_bytes


def _make_delta(folders: list[Path]) -> None:
    """A log over files that are there: the files become a Delta table as they are."""
    from deltalake import convert_to_deltalake  # noqa: PLC0415  large, and needed for this only
    from deltalake.exceptions import DeltaError  # noqa: PLC0415  the same

    for folder in folders:
        if any(folder.glob("part-*.parquet")):
            try:
                convert_to_deltalake(str(folder))
            except DeltaError as error:
                reason = f"{error}; the files are there, and a fresh export to another folder makes them alike"
                raise BadRequest(f"the files in {folder} cannot be one Delta table: {reason}") from None
