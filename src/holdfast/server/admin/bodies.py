"""The JSON body of a request, as a value: bounded, of the right content type, without unknown fields."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from holdfast.errors import BadRequest
from holdfast.server.admin.envelope import Refused
from holdfast.server.admin.events import JSON, body_of

_T = TypeVar("_T", bound=msgspec.Struct)


async def json_body(request: Request, kind: type[_T], *, bytes_max: int) -> _T:
    """The body; refused if it is of another type, too long, or does not fit."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise Refused(415, "unsupported_media_type", f"the Content-Type must be {JSON}")
    return decode_body(await body_of(request, bytes_max), kind)


def decode_body(body: bytes, kind: type[_T]) -> _T:
    """The value in these bytes, or `BadRequest`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body does not fit: {error}") from None
