"""What a sender tells its handlers: errors of servers, and events of the connection. Plain values."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import msgspec

from holdfast.errors import Category
from holdfast.sender.policies import Policy


class SenderError(msgspec.Struct, frozen=True, kw_only=True):
    """A server refused frames, or broke the connection in a way that says so."""

    category: Category
    policy: Policy
    """What was done about it."""
    message: str
    """The server's words, or ours where it had none."""
    first_fsn: int
    last_fsn: int
    """The frames concerned; one frame unless the server did not say which."""
    status: int = -1
    """The byte the server sent; -1 without one."""
    wire_seq: int = -1
    channel: str | None = None
    address: str = ""
    detected_at_ns: int = 0
    kept_in: Path | None = None
    """Where a copy of dropped frames is; None when they were not dropped, or there is no slot directory."""


class EventKind(Enum):
    """What happened to the connection."""

    CONNECTED = "connected"  # for the first time
    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"  # to the same server
    FAILED_OVER = "failed_over"  # to another one
    STATE_RESTORED = "state_restored"  # all that had been sent before the break is acknowledged
    ENDPOINT_ATTEMPT_FAILED = "endpoint_attempt_failed"
    ALL_ENDPOINTS_UNREACHABLE = "all_endpoints_unreachable"
    AUTH_FAILED = "auth_failed"


class ConnectionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the connection."""

    kind: EventKind
    address: str = ""
    previous_address: str = ""
    reason: str = ""
    attempts: int = 0
    """Attempts since the connection was lost."""
    outage_s: float = 0.0
    at_ns: int = 0
