"""The body of a request: bounded by itself, together with those of all others, and in time.

A JSON body of a command becomes a value, of the right content type and without unknown fields.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from holdfast.errors import BadRequest
from holdfast.server.admin.caller import visit_of
from holdfast.server.admin.envelope import Refused
from holdfast.server.admin.room import BodyRoom

BODY_TIMEOUT_S = 60.0
"""How long a body may take; a slow peer must not hold memory for ever."""
JSON = "application/json"

_T = TypeVar("_T", bound=msgspec.Struct)


async def json_body(request: Request, kind: type[_T], *, bytes_max: int) -> _T:
    """The body; refused if it is of another type, too long, or does not fit."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Refused(415, "unsupported_media_type", f"the Content-Type must be {JSON}")
    return decode_body(await body_of(request, bytes_max), kind)


async def body_of(request: Request, bytes_max: int, *, hint: str = "") -> bytes:
    """The whole body; it is counted among those of all requests until this one is answered. `hint` is what whoever has
    more may do."""
    too_large = Refused(413, "too_large", f"the body has more than {bytes_max} bytes{hint}")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:19]) > bytes_max:
        raise too_large
    room: BodyRoom = request.app.state.bodies
    held, body = visit_of(request).enter_context(room.hold()), bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                if len(body) + len(part) > bytes_max:
                    raise too_large
                held.add(len(part))
                body += part
    except TimeoutError:
        raise Refused(408, "too_slow", f"the body did not come within {BODY_TIMEOUT_S:.0f} s") from None
    except ClientDisconnect:
        raise Refused(400, "gone", "the peer left before the body was whole") from None
    if not body:
        raise Refused(400, "empty_body", "the body is empty; send rows")
    return bytes(body)


def decode_body(body: bytes, kind: type[_T]) -> _T:
    """The value in these bytes, or `BadRequest`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body does not fit: {error}") from None
