"""From an error of the store or the door to the code and the text a consumer is refused with.

| error | code |
|---|---|
| `InvalidFilter` | invalid_filter |
| `LimitReached` | limit_reached |
| `AccessRefused` | forbidden |
| `RetryLater`, `StoreFailed`, `Closed` | unavailable: the same may work later, here or elsewhere |
| other `BadRequest` | bad_request |
| anything unforeseen | internal: the server's log has the reason |
"""

from __future__ import annotations

from holdfast.errors import (
    AccessRefused,
    BadRequest,
    Closed,
    HoldfastError,
    InvalidFilter,
    LimitReached,
    RetryLater,
    StoreFailed,
)
from holdfast.wire import consume

_CODES: tuple[tuple[tuple[type[HoldfastError], ...], consume.RefusalCode], ...] = (
    ((InvalidFilter,), "invalid_filter"),
    ((LimitReached,), "limit_reached"),
    ((AccessRefused,), "forbidden"),
    ((RetryLater, StoreFailed, Closed), "unavailable"),
    ((BadRequest,), "bad_request"),
)


def refusal(request: int, sub: int, error: BaseException | None) -> consume.Refused:
    """The refusal of a request."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return consume.Refused(
                request=request, sub=sub, code=code, reason=str(error)[:1000], retry=code == "unavailable"
            )
    reason = "the server failed on this request; its log has the reason"
    return consume.Refused(request=request, sub=sub, code="internal", reason=reason)
