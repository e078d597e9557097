"""Events of a channel as an Arrow stream, for programs: the same address as the JSON rows, by its `Accept` header.

Promise: the stream is a picture of the channel when it was asked for, from segments and from what is not sealed yet,
without a gap or a repeat. It is made piece by piece while it is read, so its length costs the server nothing. If the
reading fails in the middle the connection is cut, so that a short stream is never taken for a whole one.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime
from itertools import chain

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast.config.values import whole_number
from holdfast.server.admin.caller import on_thread, server_of
from holdfast.server.admin.envelope import Refused
from holdfast.server.admin.events import ARROW_STREAM
from holdfast.server.admin.views import visible_channel
from holdfast.store.reading import Position
from holdfast.store.segments.runs import SYSTEM_COLUMNS
from holdfast.store.store import Store

PARAMETERS = ("start", "end", "columns", "system")


def wants_stream(request: Request) -> bool:
    """Whether the caller asks for Arrow rather than JSON."""
    return ARROW_STREAM in request.headers.get("accept", "")


async def stream_events(request: Request) -> Response:
    """`GET /api/v1/channels/{channel}/events` with `Accept: application/vnd.apache.arrow.stream`."""
    store, name, query = server_of(request).store, visible_channel(request), request.query_params
    for parameter in query:
        if parameter not in PARAMETERS:
            reason = f"parameter {parameter[:80]!r} is not known; known are {', '.join(PARAMETERS)}"
            raise Refused(400, "bad_parameter", reason, where={"parameter": parameter[:80]})
    start, end = _position(query.get("start", "first"), "start"), query.get("end")
    columns = query["columns"].split(",") if "columns" in query else None
    system = [item for item in query.get("system", "").split(",") if item]
    span = start, _position(end, "end") if end is not None else None
    pieces = await on_thread(_open, store, name, span, columns=columns, system=system)
    return StreamingResponse(pieces, media_type=ARROW_STREAM)


def _position(text: str, parameter: str) -> Position:
    if text in ("first", "last"):
        return text
    if (seq := whole_number(text)) is not None:
        return seq
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        reason = f"{parameter} is first, last, a seq, or a time with its zone"
        raise Refused(400, "bad_parameter", reason, where={"parameter": parameter})
    return found


def _open(
    store: Store, channel: str, span: tuple[Position, Position | None], *, columns: list[str] | None, system: list[str]
) -> Iterator[bytes]:
    """The picture is taken, and what is wrong is found, before the first byte is sent."""
    schema = store.schema(channel)
    for name in columns or []:
        if name not in schema.names:
            reason = f"channel {channel!r} has no column {name[:80]!r}"
            raise Refused(400, "bad_parameter", reason, where={"parameter": "columns", "column": name[:80]})
    for name in system:
        if name not in SYSTEM_COLUMNS:
            reason = f"{name[:80]!r} is no system column; there are {', '.join(SYSTEM_COLUMNS)}"
            raise Refused(400, "bad_parameter", reason, where={"parameter": "system"})
    batches = store.read(channel, start=span[0], end=span[1], columns=columns, system=system)
    first = next(batches, None)
    if first is None:
        chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        return _pieces(chosen, iter(()))
    return _pieces(first.schema, chain([first], batches))


def _pieces(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()
