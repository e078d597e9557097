"""What a sender is answered: success, partial success, or a refusal that says whether and when to come again.

    accepted     gRPC OK                           HTTP 200          the response of the signal
    later        UNAVAILABLE + RetryInfo           503, Retry-After  a bound is reached, or the server stops or fails
    too much     RESOURCE_EXHAUSTED, no RetryInfo  413               no retry would help
    bad          INVALID_ARGUMENT                  400               cannot be parsed
    forbidden    PERMISSION_DENIED                 403               behind a server: the caller may not publish
    failed       INTERNAL                          500               a bug of ours; senders may not repeat these

HTTP refusals carry a `google.rpc.Status`, in the content type of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from holdfast.wire.otlp.signals import Signal
from holdfast.wire.otlp.varint import fields, varint

RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


class Refusal(Enum):
    """Why a request was not accepted: the code of gRPC and the status of HTTP."""

    LATER = (14, 503)
    BUSY = (14, 429)
    TOO_LARGE = (8, 413)
    BAD = (3, 400)
    UNAUTHENTICATED = (16, 401)
    FORBIDDEN = (7, 403)
    FAILED = (13, 500)

    @property
    def grpc_code(self) -> int:
        """The number of the gRPC status."""
        return self.value[0]

    @property
    def http_status(self) -> int:
        """The HTTP status."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request is answered. `refused` are records that were left out of an accepted request."""

    refusal: Refusal | None = None
    message: str = ""
    refused: int = 0
    retry_after_s: float = 0.0
    duplicate: bool = False


def success(signal: Signal, answer: Answer) -> bytes:
    """The response of an accepted request; empty unless something of it was refused."""
    if not answer.refused:
        return b""
    response = signal.response()
    setattr(response.partial_success, signal.rejected_field, answer.refused)
    response.partial_success.error_message = answer.message
    data: bytes = response.SerializeToString()
    return data


def success_json(signal: Signal, answer: Answer) -> bytes:
    """The same as JSON; 64-bit numbers are texts there."""
    if not answer.refused:
        return b"{}"
    words = signal.rejected_field.split("_")
    name = words[0] + "".join(word.title() for word in words[1:])
    return msgspec.json.encode({"partialSuccess": {name: str(answer.refused), "errorMessage": answer.message}})


def status(answer: Answer) -> bytes:
    """A `google.rpc.Status`, with a hint when to come again."""
    assert answer.refusal is not None
    data = b"\x08" + varint(answer.refusal.grpc_code) + _field(2, answer.message.encode())
    if answer.retry_after_s > 0:
        data += _field(3, _field(1, RETRY_INFO.encode()) + _field(2, retry_info(answer)))
    return data


def retry_info(answer: Answer) -> bytes:
    """The `google.rpc.RetryInfo` alone."""
    seconds = int(answer.retry_after_s)
    nanos = int((answer.retry_after_s - seconds) * 1e9)
    return _field(1, (b"\x08" + varint(seconds) if seconds else b"") + (b"\x10" + varint(nanos) if nanos else b""))


def retry_delay_s(data: bytes) -> float | None:
    """What the RetryInfo of a `google.rpc.Status` says; None without one."""
    for number, detail in fields(data):
        if number == 3 and isinstance(detail, bytes):
            found = dict(fields(detail))
            if found.get(1) == RETRY_INFO.encode() and isinstance(found.get(2), bytes):
                info = dict(fields(bytes(found[2])))
                delay = dict(fields(bytes(info.get(1, b""))))
                return float(delay.get(1, 0)) + float(delay.get(2, 0)) / 1e9
    return None


def status_json(answer: Answer) -> bytes:
    """The same as JSON."""
    assert answer.refusal is not None
    found: dict[str, object] = {"code": answer.refusal.grpc_code, "message": answer.message}
    if answer.retry_after_s > 0:
        found["details"] = [{"@type": RETRY_INFO, "retryDelay": f"{answer.retry_after_s:.3f}s"}]
    return msgspec.json.encode(found)


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data
