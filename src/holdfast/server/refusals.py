"""From an error of the store, the decoder or the door to the category and the text a producer is answered with.

| error | category | what the producer can do |
|---|---|---|
| `SchemaMismatch` | SCHEMA_MISMATCH | mend its columns |
| `WireError` | its own | mend its encoder |
| `InvalidBatch`, `InvalidName` | PARSE_ERROR | mend the batch or the name |
| `LimitReached`, `ChannelFull` | WRITE_ERROR | nothing soon: the channel's owner set a limit |
| other `RetryLater` (full store or disk) | NOT_WRITABLE | send it again, here later or to another server |
| `AccessRefused` | SECURITY_ERROR | ask for the right |
| `StoreFailed`, `Closed` | NOT_WRITABLE | the same; the operator has the reason |
| anything unforeseen | INTERNAL_ERROR | ask the operator, whose log has the reason |

A refusal that is not the frame's fault is NOT_WRITABLE, so that no producer sets a good frame aside or halts because a
server is full or its disk failed.

Promise: a text names channel, column and reason where the error knows them, and nothing of the inside where it is not
one of ours.
"""

from __future__ import annotations

from holdfast.errors import (
    AccessRefused,
    BadRequest,
    Category,
    ChannelFull,
    Closed,
    HoldfastError,
    LimitReached,
    RetryLater,
    SchemaMismatch,
    StoreFailed,
    WireError,
)

_CATEGORIES: tuple[tuple[tuple[type[HoldfastError], ...], Category], ...] = (
    ((SchemaMismatch,), Category.SCHEMA_MISMATCH),
    ((LimitReached, ChannelFull), Category.WRITE_ERROR),
    ((RetryLater,), Category.NOT_WRITABLE),
    ((BadRequest,), Category.PARSE_ERROR),
    ((AccessRefused,), Category.SECURITY_ERROR),
)
_STOPPED = "the store stopped after an input/output error and accepts nothing more; connect again after a restart"
_CLOSED = "the server is stopping; connect again"
_UNFORESEEN = "the server failed on this frame; its log has the reason"


def explain(error: BaseException) -> tuple[Category, str]:
    """Category and text of a refusal."""
    if isinstance(error, WireError):
        return error.category, str(error)
    for kinds, category in _CATEGORIES:
        if isinstance(error, kinds):
            return category, str(error)
    if isinstance(error, StoreFailed):
        return Category.NOT_WRITABLE, _STOPPED
    if isinstance(error, Closed):
        return Category.NOT_WRITABLE, _CLOSED
    return Category.INTERNAL_ERROR, _UNFORESEEN
