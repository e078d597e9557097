"""Subscribers as values that the catalog and the acknowledgement log both keep (MessagePack arrays)."""

from __future__ import annotations

import msgspec


class SubscriberNote(msgspec.Struct, frozen=True, array_like=True):
    """A subscriber as the catalog and the log keep it."""

    subscriber_id: int
    name: str
    patterns: tuple[str, ...]
    newest_first: bool
    created_at_ns: int
    grace_ns: int = 0
    """How long what it confirmed is kept: its own record of it may come back older than its answers."""


class ProgressNote(msgspec.Struct, frozen=True, array_like=True):
    """How far a subscriber is in a channel, as the catalog and the log keep it."""

    subscriber_id: int
    channel_id: int
    start_seq: int
    ranges: tuple[tuple[int, int], ...]
    attempts: tuple[tuple[int, int, int], ...] = ()
    """First and last seq, and how often their delivery failed."""
    handed: tuple[tuple[int, int], ...] = ()
    """Owed events that were handed out before."""
    flying: tuple[tuple[int, int], ...] = ()
    """Those of them that nobody has answered."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """All subscribers at one moment."""

    next_subscriber_id: int
    subscribers: tuple[SubscriberNote, ...]
    progress: tuple[ProgressNote, ...]
