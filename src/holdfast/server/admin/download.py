"""The bytes of a published segment over HTTP: whole, or one range of them.

Promise: what is sent is the file that the catalog describes; before its first byte goes out the file was compared with
its checksum once in this process, and a damaged one is an error (G9). `ETag` is the CRC32C of the file, so it is the
same on every server that has the segment. A segment never changes, so ranges of several requests fit together.

| request | answer |
|---|---|
| no `Range`, several ranges, or `If-Range` of another file | 200 and the whole file |
| one range | 206, `Content-Range` |
| a range that begins behind the end | 416 |
| `If-None-Match` with the ETag | 304 |

Reading is done by threads, `PIECE_BYTES` at a time; a slow peer holds one piece and one open file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.disk.filesystem import File
from holdfast.errors import Closed
from holdfast.server.admin.envelope import Refused
from holdfast.store.catalog import PublishedSegment
from holdfast.store.listing import Listing

PIECE_BYTES = 1 << 20
"""Large enough that a thread per piece costs little, small enough to hold for each of many readers."""
CHECKSUM_HEADER = "X-Holdfast-CRC32C"
MEDIA_TYPE = "application/vnd.apache.arrow.file"

_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{0,19})|-(\d{1,19}))", re.ASCII)


def parse_range(text: str | None, size_bytes: int) -> tuple[int, int] | None:
    """First and last byte that are asked for, both included; None for all. `Refused` with 416 if there are none."""
    match = _RANGE.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    if match[3] is not None:
        count = int(match[3])
        first, last = max(0, size_bytes - count), size_bytes - 1
        beyond = count == 0
    else:
        first, last = int(match[1]), int(match[2]) if match[2] else size_bytes - 1
        if last < first and match[2]:
            return None  # not a valid range: as if it were not there
        beyond = first >= size_bytes
    if beyond:
        refusal = Refused(416, "range_not_satisfiable", f"the segment has {size_bytes} bytes")
        refusal.headers = {"Content-Range": f"bytes */{size_bytes}"}
        raise refusal
    return first, min(last, size_bytes - 1)


def headers_of(segment: PublishedSegment) -> dict[str, str]:
    """What every answer about a segment says."""
    return {
        "ETag": etag_of(segment),
        CHECKSUM_HEADER: f"{segment.crc32c:08x}",
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=31536000, immutable",
    }


def etag_of(segment: PublishedSegment) -> str:
    """`"crc32c-1a2b3c4d"`."""
    return f'"crc32c-{segment.crc32c:08x}"'


def is_known(header: str | None, etag: str) -> bool:
    """Whether an `If-None-Match` header names this ETag."""
    if not header:
        return False
    names = [name.strip().removeprefix("W/") for name in header.split(",")]
    return "*" in names or etag in names


async def send_segment(request: Request, listing: Listing, segment: PublishedSegment) -> Response:
    """The answer to GET or HEAD."""
    headers, etag = headers_of(segment), etag_of(segment)
    if is_known(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    condition = request.headers.get("if-range")
    wanted = request.headers.get("range") if condition in (None, etag) else None
    span = parse_range(wanted, segment.size_bytes)
    first, last = span or (0, segment.size_bytes - 1)
    headers["Content-Length"] = str(last - first + 1)
    if span is not None:
        headers["Content-Range"] = f"bytes {first}-{last}/{segment.size_bytes}"
    status = 206 if span is not None else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=MEDIA_TYPE)
    held = ExitStack()
    file = await asyncio.to_thread(_open, listing, segment, held)
    return _Holding(_pieces(file, first, last + 1), held, status=status, headers=headers)


def _open(listing: Listing, segment: PublishedSegment, held: ExitStack) -> File:
    gone = Refused(404, "not_found", f"segment {segment.meta.segment_seq} is not there any more")
    try:
        if listing.check_segment(segment):
            return held.enter_context(listing.segment_file(segment))
    except FileNotFoundError:
        pass
    raise gone


class _Holding(StreamingResponse):
    """Lets go of the file when it is sent, or will not be: a peer may leave before the first piece is asked for."""

    def __init__(self, pieces: AsyncIterator[bytes], held: ExitStack, *, status: int, headers: dict[str, str]) -> None:
        super().__init__(pieces, status, headers, MEDIA_TYPE)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


async def _pieces(file: File, start: int, end: int) -> AsyncIterator[bytes]:
    while start < end:
        piece = await asyncio.to_thread(file.pread, min(PIECE_BYTES, end - start), start)
        if not piece:
            raise Closed(what=f"{file.path.name}, which is shorter than the catalog says,")
        start += len(piece)
        yield piece
