"""`holdfast send`: a file, or lines from standard input, to a channel.

Promise: exit code 0 means that the server accepted every event. Lines are sent in order as they come, and leave also
when no further line comes. A line or a value that cannot be read ends the command with its place; what came before it
is sent. Texts of lines and of CSV that are times become points in time by the rule of `holdfast.model.times`; what
comes first in a column decides about it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import make_console, several
from holdfast.cli.progress import make_progress
from holdfast.clock import NS_PER_S, SystemClock
from holdfast.errors import BadRequest
from holdfast.model.times import POINT_IN_TIME, are_zoned_times, as_type, what_fits
from holdfast.sender.conf import ENVIRONMENT, SenderConfig
from holdfast.sender.happenings import SenderError
from holdfast.sender.sender import Sender

DEFAULT_CONF = "ws::addr=127.0.0.1:9000;"
FORMATS = {
    ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".csv": "csv", ".parquet": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow",
}  # fmt: skip
BLOCK_BYTES = 1 << 20
"""What is read of a file of lines at a time."""
BATCH_ROWS = 65_536
_ROWS = msgspec.json.Decoder(dict[str, Any])
_NEVER = "\x1f"
"""A form of times that no value has: Arrow guesses none."""


class Sent(msgspec.Struct, kw_only=True):
    """What became of the events."""

    channel: str
    rows: int = 0
    frames: int = 0
    accepted_frames: int = 0
    refused: list[str] = []
    seconds: float = 0.0


def read_conf(conf: str | None) -> SenderConfig:
    """The connect string that was given, or that of the environment, or this machine."""
    if conf is not None:
        return SenderConfig.from_conf(conf)
    try:
        return SenderConfig.from_env()
    except BadRequest as error:
        if getattr(error, "key", "") == ENVIRONMENT:
            return SenderConfig.from_conf(DEFAULT_CONF)
        raise


def run(channel: str, file: Path, *, conf: str | None, kind: str | None, timeout_s: float | None, as_json: bool) -> int:
    """Send, and wait for the answers."""
    clock = SystemClock()
    started_ns = clock.monotonic_ns()
    config = read_conf(conf)
    sent = Sent(channel=channel)

    def note(error: SenderError) -> None:
        sent.refused.append(f"frames {error.first_fsn} to {error.last_fsn}, {error.category.name}: {error.message}")

    with _opened(file) as stream, Sender(config, error_handler=note) as sender:
        before = sender.published_fsn
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with make_progress(*columns, quiet=as_json) as progress:
            task = progress.add_task("rows", total=None)
            for piece in pieces(stream, kind or _kind_of(file)):
                sender.send(channel, piece)
                sent.rows += 1 if isinstance(piece, dict) else len(piece)
                progress.update(task, completed=sent.rows)
            answered = sender.drain(timeout_s)
        sent.frames = sender.published_fsn - before
        sent.accepted_frames = max(0, sender.acked_fsn - before)
    sent.seconds = (clock.monotonic_ns() - started_ns) / NS_PER_S
    is_done = answered and not sent.refused
    _report(sent, answered=answered, as_json=as_json)
    return ExitCode.DONE if is_done else ExitCode.NO


def _report(sent: Sent, *, answered: bool, as_json: bool) -> None:
    if as_json:
        answer_json("send", {**msgspec.to_builtins(sent), "answered": answered}, ok=answered and not sent.refused)
        return
    console = make_console()
    console.print(
        f"{several(sent.rows, 'event')} in {several(sent.frames, 'frame')} to {sent.channel}, {sent.seconds:.1f} s"
    )
    for text in sent.refused:
        console.print(f"[bold red]refused[/] {text}", soft_wrap=True)
    if not answered:
        left = sent.frames - sent.accepted_frames
        console.print(f"[yellow]not answered in time[/]: {several(left, 'frame')}", soft_wrap=True)


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise BadRequest(f"{file}: {error.strerror}; give a file that can be read, or - for standard input") from error
    with stream:
        yield stream


def _kind_of(file: Path) -> str:
    if str(file) == "-":
        return "ndjson"
    kind = FORMATS.get(file.suffix.lower())
    if kind is None:
        raise BadRequest(f"{file}: the name does not tell the format; give --format ndjson, csv, parquet or arrow")
    return kind


# --- formats --------------------------------------------------------------------------------------------------------


def pieces(stream: BinaryIO, kind: str) -> Iterator[Any]:
    """What the stream holds: rows, lists of rows, or record batches."""
    readers = {"ndjson": _ndjson, "csv": _csv, "parquet": _parquet, "arrow": _arrow}
    if kind not in readers:
        raise BadRequest(f"--format {kind} is not one of {', '.join(readers)}")
    try:
        yield from readers[kind](stream)
    except pa.ArrowException as error:
        raise BadRequest(f"this is not {kind}: {' '.join(str(error).split())[:300]}") from error


class _Times:
    """Which columns of a stream hold points in time."""

    def __init__(self) -> None:
        self._are_times: dict[str, bool] = {}

    def in_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """With points in time for texts, in place."""
        for name in dict.fromkeys(name for row in rows for name in row):
            if not self._are_times.get(name, True):
                continue
            having = [row for row in rows if row.get(name) is not None]
            if all(isinstance(row[name], str) for row in having):
                moments = self._moments(name, pa.array([row[name] for row in having], pa.string()))
                for row, moment in zip(having, moments.to_pylist(), strict=True):
                    row[name] = moment
            else:
                self._are_times[name] = False
        return rows

    def in_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same for columns of CSV, where nothing is an empty text."""
        for at, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
            if pa.types.is_string(column.type):
                moments = self._moments(name, pc.if_else(pc.equal(column, ""), None, column))
                if moments.type == POINT_IN_TIME:
                    batch = batch.set_column(at, name, moments)
        return batch

    def _moments(self, name: str, texts: pa.Array) -> pa.Array:
        if name not in self._are_times and texts.null_count < len(texts):
            self._are_times[name] = are_zoned_times(texts)
        if not self._are_times.get(name, False):
            return texts
        try:
            return as_type(texts, POINT_IN_TIME)
        except pa.ArrowInvalid as error:
            found = str(error).partition(" as a scalar")[0].removeprefix("Failed to parse string: ")
            raise BadRequest(f"column {name!r}: {found} is not {what_fits(POINT_IN_TIME)}") from error


def _ndjson(stream: BinaryIO) -> Iterator[Any]:
    times = _Times()
    if stream is sys.stdin.buffer:  # lines may come slowly: each is sent when it is here
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield times.in_rows(_rows([line], number))[0]
        return
    number = 1
    while lines := stream.readlines(BLOCK_BYTES):
        rows = _rows(lines, number)
        if rows:
            yield times.in_rows(rows)
        number += len(lines)


def _rows(lines: list[bytes], first: int) -> list[dict[str, Any]]:
    try:
        return _ROWS.decode_lines(b"".join(lines))
    except msgspec.MsgspecError:
        pass
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, first):  # again, one by one, to name the line
        if line.strip():
            try:
                rows.append(_ROWS.decode(line))
            except msgspec.MsgspecError as error:
                raise BadRequest(f"line {number} is not a JSON object: {error}") from error
    return rows


def _csv(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    from pyarrow import csv  # noqa: PLC0415

    times = _Times()
    with csv.open_csv(stream, convert_options=csv.ConvertOptions(timestamp_parsers=[_NEVER])) as reader:
        for batch in reader:
            yield times.in_batch(batch)


def _parquet(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet  # noqa: PLC0415

    seekable = stream if stream.seekable() else io.BytesIO(stream.read())
    yield from parquet.ParquetFile(seekable).iter_batches(BATCH_ROWS)


def _arrow(stream: BinaryIO) -> Iterator[pa.RecordBatch]:
    seekable = stream if stream.seekable() else io.BytesIO(stream.read())
    is_file = seekable.read(6) == b"ARROW1"
    seekable.seek(0)
    if is_file:
        with pa.ipc.open_file(seekable) as reader:
            for place in range(reader.num_record_batches):
                yield reader.get_batch(place)
    else:
        with pa.ipc.open_stream(seekable) as stream_reader:
            yield from stream_reader
