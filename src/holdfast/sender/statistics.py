"""What a sender has done and holds, at one moment: one frozen value for people, tests and metrics."""

from __future__ import annotations

import msgspec

from holdfast.errors import HoldfastError
from holdfast.sender.core import LinkCore
from holdfast.sender.substrate import RingStatistics


class DrainerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What became of other senders' slots."""

    active: int = 0
    waiting: int = 0
    succeeded: int = 0
    failed: int = 0


class SenderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A sender at one moment; totals count from its start."""

    published_fsn: int
    acked_fsn: int
    synced_fsn: int
    pending_rows: int
    """Rows in no frame yet."""
    used_bytes: int
    cap_bytes: int
    segments: int
    is_connected: bool
    was_ever_connected: bool
    address: str
    """The server of the connection that stands; empty without one."""
    outage: str
    """Since when, and how many attempts; empty while connected."""
    total_reconnect_attempts: int
    """Attempts to connect, the first one included."""
    total_reconnects_succeeded: int
    total_frames_sent: int
    total_bytes_sent: int
    total_frames_replayed: int
    total_frames_rejected: int
    """Frames given up because of a refusal."""
    total_acks: int
    total_server_errors: int
    total_backpressure_stalls: int
    total_error_notifications_delivered: int
    dropped_error_notifications: int
    last_terminal_error: str
    active_background_drainers: int
    total_background_drainers_succeeded: int
    total_background_drainers_failed: int


def collect(
    core: LinkCore,
    ring: RingStatistics,
    drainers: DrainerStatistics,
    *,
    pending_rows: int,
    delivered: int,
    dropped: int,
) -> SenderStatistics:
    """One value from the parts."""
    halted: HoldfastError | None = core.halted
    totals, outage = core.totals, core.outage
    return SenderStatistics(
        published_fsn=ring.published_fsn,
        acked_fsn=ring.acked_fsn,
        synced_fsn=ring.synced_fsn,
        pending_rows=pending_rows,
        used_bytes=ring.used_bytes,
        cap_bytes=ring.cap_bytes,
        segments=ring.segments,
        is_connected=core.is_online,
        was_ever_connected=core.was_connected,
        address=core.connected_to,
        outage=str(outage) if outage is not None else "",
        total_reconnect_attempts=totals.attempts,
        total_reconnects_succeeded=totals.reconnects,
        total_frames_sent=totals.frames_sent,
        total_bytes_sent=totals.bytes_sent,
        total_frames_replayed=totals.frames_replayed,
        total_frames_rejected=totals.frames_rejected,
        total_acks=totals.acks,
        total_server_errors=totals.server_errors,
        total_backpressure_stalls=ring.stalls,
        total_error_notifications_delivered=delivered,
        dropped_error_notifications=dropped,
        last_terminal_error=str(halted) if halted is not None else "",
        active_background_drainers=drainers.active,
        total_background_drainers_succeeded=drainers.succeeded,
        total_background_drainers_failed=drainers.failed,
    )
