"""What an HTTP upgrade request gets: a refusal with its status, or the headers of its 101.

Promise: pure. Checks go from the outside in, so that a stranger learns least: path, origin, WebSocket headers, then who
it is, then whether this server takes writes. `picows` refuses what is not HTTP at all before this is asked.

| answer | when |
|---|---|
| 404 | no protocol lives at this path |
| 400 | `Origin` is not on the list, or a header that makes an upgrade is missing or wrong |
| 426 | another WebSocket version than 13; the answer names 13 |
| 401, 403 | no credential that is known; a known caller without the right |
| 429 | a limit of the caller is reached |
| 421 | this server is a replica; the answer names its role |
| 503 | the server is full, or is stopping |
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers

from holdfast.config.values import whole_number
from holdfast.errors import AccessRefused, QuotaReached, RetryLater, Unauthenticated
from holdfast.model.positions import FSN_MAX
from holdfast.wire.ingest import SlotOrigin

WEBSOCKET_VERSION = "13"
KEY_BYTES = 16
SLOT_ID_HEADER = "X-Holdfast-Slot-Id"
FIRST_FSN_HEADER = "X-Holdfast-First-Fsn"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the upgrade does not happen."""

    status: HTTPStatus
    reason: str
    headers: tuple[tuple[str, str], ...] = ()


def split_head(head: bytes) -> tuple[str, Mapping[str, str]]:
    """Path and headers of a request, as far as they can be told; names may be asked for in any case."""
    first, *lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")
    pairs = [line.partition(b":") for line in lines]
    path = [*first.split(), b"", b""][1]
    return path_of(path), Headers(raw=[(name.strip().lower(), value.strip()) for name, _, value in pairs])


def path_of(target: bytes) -> str:
    """The path of a request's target, without its query."""
    return target.decode("ascii", "replace").partition("?")[0]


def check_upgrade(headers: Mapping[str, str], *, origins: Sequence[str]) -> Refusal | None:
    """None if the request asks for a WebSocket in a way we speak, from where it may."""
    origin = headers.get("Origin")
    if origin is not None and origin not in origins:
        return Refusal(HTTPStatus.BAD_REQUEST, "this Origin may not connect; the server's ingest.origins lists who may")
    if headers.get("Upgrade", "").strip().lower() != "websocket":
        return Refusal(HTTPStatus.BAD_REQUEST, "the header Upgrade must be websocket")
    if "upgrade" not in [part.strip().lower() for part in headers.get("Connection", "").split(",")]:
        return Refusal(HTTPStatus.BAD_REQUEST, "the header Connection must be Upgrade")
    if headers.get("Sec-WebSocket-Version", "").strip() != WEBSOCKET_VERSION:
        return Refusal(
            HTTPStatus.UPGRADE_REQUIRED,
            f"the header Sec-WebSocket-Version must be {WEBSOCKET_VERSION}",
            (("Sec-WebSocket-Version", WEBSOCKET_VERSION),),
        )
    if not _is_key(headers.get("Sec-WebSocket-Key", "")):
        return Refusal(HTTPStatus.BAD_REQUEST, f"the header Sec-WebSocket-Key must be {KEY_BYTES} bytes in base64")
    return None


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text.encode("ascii"), validate=True)) == KEY_BYTES
    except (UnicodeEncodeError, binascii.Error):
        return False


def check_role(role: str) -> Refusal | None:
    """None if a server of this role takes writes."""
    if role == "primary":
        return None
    headers = (("X-QuestDB-Role", role.upper()), ("Content-Length", "0"))
    return Refusal(HTTPStatus.MISDIRECTED_REQUEST, "", headers)


def refusal_of(error: AccessRefused | RetryLater) -> Refusal:
    """How a refused caller is told at the door."""
    if isinstance(error, Unauthenticated):
        challenges = (("WWW-Authenticate", "Bearer"), ("WWW-Authenticate", 'Basic realm="holdfast"'))
        return Refusal(HTTPStatus.UNAUTHORIZED, str(error), challenges)
    if isinstance(error, AccessRefused):
        return Refusal(HTTPStatus.FORBIDDEN, str(error))
    wait_s = error.retry_after_s if isinstance(error, QuotaReached) else 1.0
    return Refusal(HTTPStatus.TOO_MANY_REQUESTS, str(error), (("Retry-After", str(max(1, round(wait_s)))),))


def unavailable(reason: str) -> Refusal:
    """The server cannot take the connection now, whoever asks."""
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason, (("Retry-After", "1"),))


def slot_origin(headers: Mapping[str, str]) -> SlotOrigin | Refusal | None:
    """The slot whose frames the connection sends, and the number of the first; None if it does not say."""
    slot, first = headers.get(SLOT_ID_HEADER), headers.get(FIRST_FSN_HEADER)
    if slot is None and first is None:
        return None
    if slot is None or first is None:
        return Refusal(HTTPStatus.BAD_REQUEST, f"{SLOT_ID_HEADER} and {FIRST_FSN_HEADER} go together")
    try:
        slot_id = bytes.fromhex(slot.replace("-", ""))
    except ValueError:
        slot_id = b""
    if len(slot_id) != 16 or not any(slot_id):
        return Refusal(HTTPStatus.BAD_REQUEST, f"{SLOT_ID_HEADER} must be a UUID, and not all zeros")
    first_fsn = whole_number(first, most=FSN_MAX)
    if first_fsn is None:
        return Refusal(HTTPStatus.BAD_REQUEST, f"{FIRST_FSN_HEADER} must be a number from 0 to 2^63-1")
    return SlotOrigin(slot_id, first_fsn)


def wants_durable_ack(headers: Mapping[str, str]) -> bool:
    """Whether the client trims only what is in the object store."""
    return headers.get("X-QWP-Request-Durable-Ack", "").strip().lower() == "true"


def accept_headers(*, batch_bytes_max: int, durability: str, durable_ack: bool) -> list[tuple[str, str]]:
    """The headers of a 101 beside those of the WebSocket."""
    headers = [
        ("X-QWP-Version", "1"),
        ("X-QWP-Max-Batch-Size", str(batch_bytes_max)),
        ("X-Holdfast-Durability", durability),
    ]
    if durable_ack:
        headers.append(("X-QWP-Durable-Ack", "enabled"))
    return headers
