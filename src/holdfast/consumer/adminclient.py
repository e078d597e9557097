"""A client of the admin server's HTTP, which outlasts restarts of the server.

Promise: a request is repeated, with growing pauses, while the server is away or says that it cannot now, for at most
`patience_s`; then `ServerAway`. Everything that is asked here may be repeated. Any other refusal is raised at once with
the server's own words. The token is read again from its file for every request, so that it can be replaced.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa

from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.config.values import split_url
from holdfast.errors import AccessRefused, BadRequest, DamagedData, ServerAway, UnknownChannel

REQUEST_TIMEOUT_S = 30.0
"""How long one answer may take; a segment is sent in pieces, each of which counts anew."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 2.0
PAGE = 1000
PIECE_BYTES = 1 << 20
ARROW_STREAM = "application/vnd.apache.arrow.stream"
_TRY_AGAIN = {429, 500, 502, 503, 504}


class _Again(Exception):
    """This attempt failed in a way that a later one may not."""


@dataclass
class _Refusal(Exception):
    """The server's answer to a request that it refuses."""

    status: int
    code: str
    message: str
    where: Mapping[str, object]


class ServerOptions(Protocol):
    """Which server, and the credential for it."""

    @property
    def addr(self) -> str: ...

    @property
    def token(self) -> str: ...

    @property
    def token_file(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ServerAt:
    """The plainest of these."""

    addr: str
    token: str = ""
    token_file: str = ""


class AdminClient:
    """Asks one server. Used by one thread."""

    def __init__(self, options: ServerOptions, *, patience_s: float, clock: Clock | None = None) -> None:
        self._url = split_url(options.addr)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise BadRequest(f"addr {options.addr[:80]!r} is no admin address; it looks like http://127.0.0.1:9001")
        self.addr = options.addr
        self.patience_s = patience_s
        self._options = options
        self._clock = clock or SystemClock()
        self._pause = threading.Event()

    # -- what is asked ----------------------------------------------------------------------------------------------

    def get(self, *parts: str, **query: int | str) -> Any:
        """The data of one answer."""
        return self._ask("GET", _path(parts, query), None)["data"]

    def pages(self, *parts: str, **query: int | str) -> Iterator[Any]:
        """The entries of a list, page by page as they are asked for."""
        following: str | None = _path(parts, {**query, "limit": PAGE})
        while following:
            page = self._ask("GET", following, None)
            yield from page["data"]
            following = page["next"]

    def post(self, *parts: str, body: object) -> Any:
        """The data of the answer to a change that may be repeated."""
        return self._ask("POST", _path(parts, {}), json.dumps(body).encode())["data"]

    def delete(self, *parts: str) -> Any:
        """The data of the answer to a removal."""
        return self._ask("DELETE", _path(parts, {}), None)["data"]

    def send_frame(self, channel: str, stream: bytes, *, slot_id: str, fsn: int) -> Any:
        """Store an Arrow stream as a frame of a slot; the data of the answer, the same for a repeat."""
        headers = {"Content-Type": ARROW_STREAM, "X-Holdfast-Slot-Id": slot_id, "X-Holdfast-First-Fsn": str(fsn)}
        return self._ask("POST", _path(("channels", channel, "events"), {}), stream, headers)["data"]

    def events(self, channel: str, **query: str) -> pa.Table:
        """The events of a channel as of now; `start`, `end`, `columns` and `system` as the page of the API says."""

        def attempt() -> pa.Table:
            path, headers = _path(("channels", channel, "events"), query), {"Accept": ARROW_STREAM}
            with _Exchange(self, "GET", path, body=None, headers=headers) as response:
                try:
                    return pa.ipc.open_stream(response).read_all()
                except pa.ArrowException as error:
                    raise _Again(f"the stream broke: {error}") from None

        table: pa.Table = self._repeat(attempt)
        return table

    def download(self, target: Path, *parts: str, etag: str, size_bytes: int) -> None:
        """A file of known size into `target`; a broken transfer is taken up where it broke."""
        with target.open("wb") as sink:

            def attempt() -> None:
                position = sink.tell()
                headers = {"Range": f"bytes={position}-", "If-Range": etag} if position else {}
                with _Exchange(self, "GET", _path(parts, {}), body=None, headers=headers) as response:
                    if response.status == 200:
                        sink.seek(0)
                        sink.truncate()
                    while piece := response.read(PIECE_BYTES):
                        sink.write(piece)
                if sink.tell() < size_bytes:
                    raise _Again(f"the transfer broke at byte {sink.tell()} of {size_bytes}")

            self._repeat(attempt)

    def lines(self, *parts: str) -> Iterator[bytes]:
        """The lines of an answer that goes on, as they come; `ServerAway` when it ends. Not repeated."""
        reason = "it ended the connection"
        try:
            with _Exchange(self, "GET", _path(parts, {}), body=None, headers={}) as response:
                yield from response
        except _Refusal as refusal:
            raise _as_ours(refusal, self.addr) from None
        except (_Again, OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
        raise ServerAway(addr=self.addr, reason=reason, waited_s=0)

    # -- how --------------------------------------------------------------------------------------------------------

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> Any:
        def attempt() -> Any:
            with _Exchange(self, method, path, body=body, headers=headers or {}) as response:
                return json.loads(response.read())

        return self._repeat(attempt)

    def _repeat(self, attempt: Any) -> Any:
        start_ns, pause_s = self._clock.monotonic_ns(), PAUSE_FIRST_S
        while True:
            try:
                return attempt()
            except _Refusal as refusal:
                raise _as_ours(refusal, self.addr) from None
            except (_Again, OSError, http.client.HTTPException) as error:
                waited_s = (self._clock.monotonic_ns() - start_ns) / NS_PER_S
                if waited_s >= self.patience_s:
                    reason = str(error) or type(error).__name__
                    raise ServerAway(addr=self.addr, reason=reason, waited_s=waited_s) from None
            self._pause.wait(min(pause_s, max(0.01, self.patience_s - waited_s)))
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def connect(self) -> http.client.HTTPConnection:
        """A connection of its own for one request."""
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port or 443, timeout=REQUEST_TIMEOUT_S, context=context)
        return http.client.HTTPConnection(host, port or 80, timeout=REQUEST_TIMEOUT_S)

    def headers(self) -> dict[str, str]:
        """The credential, if there is one."""
        token = self._options.token
        if self._options.token_file:
            try:
                token = Path(self._options.token_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                reason = error.strerror or error
                raise BadRequest(f"the token file {self._options.token_file} cannot be read: {reason}") from None
        return {"Authorization": f"Bearer {token}"} if token else {}


class _Exchange:
    """One request and its answer; anything but success is raised."""

    def __init__(
        self, client: AdminClient, method: str, path: str, *, body: bytes | None, headers: Mapping[str, str]
    ) -> None:
        self._connection = client.connect()
        kind = {"Content-Type": "application/json"} if body is not None else {}
        self._request = (method, path, body, {**client.headers(), **kind, **headers})

    def __enter__(self) -> http.client.HTTPResponse:
        try:
            self._connection.request(*self._request)
            response = self._connection.getresponse()
            if response.status not in (200, 206):
                _refuse(response)
        except BaseException:
            self._connection.close()
            raise
        return response

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def _refuse(response: http.client.HTTPResponse) -> None:
    body = response.read()
    try:
        error = json.loads(body)["error"]
        refusal = _Refusal(response.status, error["code"], error["message"], error["where"] or {})
    except (ValueError, LookupError, TypeError):
        refusal = _Refusal(response.status, "", _not_ours(response), {})
    if refusal.code == "corrupt_data" or response.status not in _TRY_AGAIN:
        raise refusal
    raise _Again(f"{response.status} {refusal.message}" if refusal.code else refusal.message)


def _not_ours(response: http.client.HTTPResponse) -> str:
    told = f"{response.status} {response.reason}"
    return f"{told}; no admin server answers there, whose address `holdfast serve` prints behind admin="


def _as_ours(refusal: _Refusal, addr: str) -> Exception:
    text = f"{addr}: {refusal.message}"
    if refusal.code == "unknown_channel":
        return UnknownChannel(channel=str(refusal.where.get("channel", "")))
    kinds: dict[str | int, type[Exception]] = {401: AccessRefused, 403: AccessRefused, "not_found": FileNotFoundError}
    kinds["corrupt_data"] = DamagedData
    return kinds.get(refusal.code, kinds.get(refusal.status, BadRequest))(text)


def _path(parts: tuple[str, ...], query: Mapping[str, int | str]) -> str:
    path = "/".join(["/api/v1", *(quote(part, safe="") for part in parts)])
    return path + ("?" + "&".join(f"{name}={quote(str(value))}" for name, value in query.items()) if query else "")
