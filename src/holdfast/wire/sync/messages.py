"""What sync sessions and what is behind them tell each other, whatever the dialect.

An `Item` is an event as a client hands it in; a `Committed` one as the log holds it. JSON of clients stays text
(`payload`, `meta`), so that it goes out as it came in.

Scopes say who gets an event: its partitions, or, for an event of a project, the project (`project:<id>`). A partition
may not be named so.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import msgspec

PROJECT_PREFIX = "project:"


class Code(enum.StrEnum):
    """What a client is told in an `error`, and why an item was refused."""

    BAD_REQUEST = "bad_request"
    AUTH_FAILED = "auth_failed"
    FORBIDDEN = "forbidden"
    VALIDATION_FAILED = "validation_failed"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    VERSION_UNSUPPORTED = "protocol_version_unsupported"
    CURSOR_PRUNED = "cursor_pruned"


class Refusal(msgspec.Struct, frozen=True):
    """Why an item is not committed. `field` is where the fault is; empty where no single one is."""

    reason: Code
    message: str
    field: str = ""


class Item(msgspec.Struct, gc=False):
    """An event handed in. With a `refusal` it never gets further than its place in the answer."""

    id: str
    partitions: tuple[str, ...] = ()
    """Sorted, each once."""
    type: str = ""
    payload: bytes = b""
    value: Any = None
    """The payload, parsed."""
    project_id: str = ""
    user_id: str = ""
    schema_version: int = 0
    """0 stands for none."""
    meta: bytes = b""
    """Empty stands for none."""
    scopes: tuple[str, ...] = ()
    refusal: Refusal | None = None


class Committed(msgspec.Struct, frozen=True, gc=False):
    """An event of the log."""

    committed_id: int
    id: str
    partitions: tuple[str, ...]
    type: str
    payload: bytes
    client_id: str
    server_ts_ms: int
    project_id: str = ""
    user_id: str = ""
    schema_version: int = 0
    meta: bytes = b""
    scopes: tuple[str, ...] = ()
    origin: int = 0
    """The session that handed it in, as long as this process remembers; 0 if it does not."""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return 400 + len(self.payload) + len(self.meta) + len(self.id) + 64 * len(self.partitions)


class NotProcessed(msgspec.Struct, frozen=True):
    """An item behind a refused one, in a dialect that stops there."""

    blocked_by: str


Outcome = Committed | Refusal | NotProcessed
"""What became of an item; `Committed` also when it was committed long before."""


class Submit(msgspec.Struct, gc=False):
    """Items of one message, in order."""

    session: int
    client_id: str
    family: str
    items: list[Item]
    stops_at_refusal: bool
    single: bool = False
    """Whether it came as `submit_event`, which has an answer of its own."""
    msg_id: str = ""

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory while it waits."""
        return sum(600 + len(item.payload) + len(item.meta) for item in self.items)


class ReadKind(enum.Enum):
    """What a read is for."""

    PAGE = "page"  # the answer to a `sync`
    TAIL = "tail"  # what was committed while the client paged, or did not read
    LAST = "last"  # only where the scopes end


class Read(msgspec.Struct, gc=False):
    """Events of some scopes after `since`, up to `upto`, which is included."""

    kind: ReadKind
    scopes: frozenset[str]
    since: int
    upto: int
    limit: int
    wants_snapshots: bool = False
    msg_id: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """The state of a partition after `committed_id`."""

    partition: str
    committed_id: int
    state: bytes
    model_version: int = 0


class Page(msgspec.Struct, frozen=True):
    """What a read found."""

    events: Sequence[Committed] = ()
    has_more: bool = False
    last_committed_id: int = 0
    """For a read of kind LAST."""
    pruned_to: int = 0
    """Events of the scopes up to here are gone; 0 if the read did not ask for any of them."""
    snapshots: Sequence[Snapshot] = ()


class Identity(msgspec.Struct, frozen=True):
    """Whom a token names."""

    client_id: str
    user_id: str = ""
    expires_at_ms: int = 0
    """0 is never."""
    partitions: tuple[str, ...] | None = None
    """Patterns its token is limited to; None is no limit."""
    projects: tuple[str, ...] | None = None
    principal: str = ""


class Send(msgspec.Struct, frozen=True):
    """A message for the client."""

    text: bytes


class Close(msgspec.Struct, frozen=True):
    """End the connection, after what was sent."""

    reason: str


Effect = Send | Close | Submit | Read
