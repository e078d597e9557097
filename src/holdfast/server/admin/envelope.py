"""Answers: one envelope, errors as statuses and codes, pages.

    {"data": …, "next": "/api/v1/channels?after=m&limit=100"}         next is null on the last page
    {"error": {"code": "schema_mismatch", "message": "…", "where": {"channel": "trades", "column": "price"}}}

`code` is for programs and never changes; `message` is for people; `where` has the places the error knows of, or is
null. An error that is none of ours says nothing of its cause.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast import errors
from holdfast.config.values import whole_number

PAGE_DEFAULT = 100
PAGE_MAX = 1000
"""Entries of a page: some hundred kilobytes of JSON at most."""
CURSOR_CHARS_MAX = 512
RETRY_AFTER_S = 1

SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer that does not say otherwise."""

_PLACES = ("channel", "column", "row", "key", "limit", "bound", "place", "file", "offset_bytes")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")

_STATUSES: tuple[tuple[type[errors.HoldfastError], int], ...] = (
    (errors.Unauthenticated, 401),
    (errors.Forbidden, 403),
    (errors.QuotaReached, 429),
    (errors.RetryLater, 503),
    (errors.UnknownChannel, 404),
    (errors.LimitReached, 409),
    (errors.BadRequest, 400),
    (errors.WireError, 400),
    (errors.Closed, 503),
    (errors.StoreFailed, 503),
)


class Refused(HTTPException):
    """A request that this server refuses by itself."""

    def __init__(
        self, status: int, code: str, message: str, *, where: Mapping[str, object] | None = None, retry_after_s: int = 0
    ) -> None:
        headers = {"Retry-After": str(retry_after_s)} if retry_after_s else None
        super().__init__(status, message, headers)
        self.code = code
        self.where = where


def answer(data: object, *, next_page: str | None = None, status: int = 200) -> Response:
    """The envelope with a result."""
    return as_json({"data": data, "next": next_page}, status=status)


def as_json(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Any value as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


# --------------------------------------------------------------------------------------------------------------- errors


async def refuse_ours(_request: Request, error: Exception) -> Response:
    """An error of Holdfast."""
    assert isinstance(error, errors.HoldfastError)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="holdfast", Basic realm="holdfast", charset="UTF-8"'
    if status in (429, 503):
        headers["Retry-After"] = str(math.ceil(max(RETRY_AFTER_S, getattr(error, "retry_after_s", 0))))
    code = _WORD.sub("_", type(error).__name__).lower()
    message = str(error).partition("\n")[0]
    return _error(status, code, message, where=places_of(error), headers=headers)


def places_of(error: Exception) -> dict[str, object] | None:
    """The places an error knows of."""
    found = {name: getattr(error, name) for name in _PLACES if getattr(error, name, None) not in (None, "")}
    return {name: value if isinstance(value, int) else str(value) for name, value in found.items()} or None


async def refuse_http(_request: Request, error: Exception) -> Response:
    """A request that the router or a view refuses."""
    assert isinstance(error, HTTPException)
    if isinstance(error, Refused):
        return _error(error.status_code, error.code, error.detail, where=error.where, headers=error.headers)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    return _error(error.status_code, code, error.detail.lower(), where=None, headers=error.headers)


async def refuse_bug(_request: Request, _error_of_ours: Exception) -> Response:
    """Anything else is a bug; the log has it."""
    return _error(500, "internal", "an error of the server; its log says more", where=None, headers=SAFE_HEADERS)


def _error(
    status: int,
    code: str,
    message: str,
    *,
    where: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
) -> Response:
    body = {"error": {"code": code, "message": message, "where": dict(where) if where else None}}
    return as_json(body, status=status, headers=headers)


# ---------------------------------------------------------------------------------------------------------------- pages


class Page(msgspec.Struct, frozen=True):
    """Which part of a list was asked for."""

    path: str
    after: str
    limit: int
    others: tuple[tuple[str, str], ...]

    def next_page(self, after: str) -> str:
        """The address of the page that begins behind `after`."""
        cursor = base64.urlsafe_b64encode(after.encode()).decode().rstrip("=")
        return f"{self.path}?{urlencode([*self.others, ('after', cursor), ('limit', str(self.limit))])}"


def page_of(request: Request, *others: str) -> Page:
    """The page a request asks for with `after` and `limit`; other parameters than `others` are refused."""
    query = request.query_params
    known = ("after", "limit", *others)
    for name in query:
        if name not in known:
            reason = f"parameter {name[:80]!r} is not known; known are {', '.join(known)}"
            raise Refused(400, "bad_parameter", reason, where={"parameter": name[:80]})
    limit = whole_number(query.get("limit", str(PAGE_DEFAULT)), least=1, most=PAGE_MAX)
    if limit is None:
        raise Refused(400, "bad_parameter", f"limit is a number from 1 to {PAGE_MAX}", where={"parameter": "limit"})
    return Page(
        request.url.path,
        _cursor(query.get("after", "")),
        limit,
        tuple((name, query[name]) for name in others if name in query),
    )


def _cursor(text: str) -> str:
    try:
        if len(text) > CURSOR_CHARS_MAX:
            raise ValueError
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        reason = "after is what `next` of the page before says; leave it out for the first page"
        raise Refused(400, "bad_parameter", reason, where={"parameter": "after"}) from None
