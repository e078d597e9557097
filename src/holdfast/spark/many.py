"""Several servers in one query: producers that fail over leave a channel's events on more than one.

Offsets name each channel with its server, `http://10.0.0.1:9001/trades`. A server that is away is passed over while
news are looked for, and the others go on; what was promised to Spark is waited for, at the servers that hold it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from holdfast.errors import ServerAway, UnknownChannel
from holdfast.spark.access import ChannelFacts, SegmentRef, StoreAccess, channel_key
from holdfast.store.segments.reader import SegmentReader
from holdfast.telemetry import event


class Subscriber(Protocol):
    """What confirms for a query."""

    def start(self) -> dict[str, int]:
        """Register it, or find it; the first seq it has not confirmed, by channel."""

    def confirm(self, offsets: Mapping[str, int]) -> None:
        """Everything below these seqs is surely in Spark's output."""


class ManyServers:
    """Reads several stores as one."""

    def __init__(self, servers: Mapping[str, StoreAccess], *, lenient: bool) -> None:
        """`lenient`: go on with those that answer, if one does."""
        self._servers = dict(servers)
        self._lenient = lenient

    def holding(self, channels: Iterable[str]) -> ManyServers:
        """The servers of these channels alone."""
        chosen = {addr: access for access, addr, _ in map(self._at, channels)}
        return ManyServers(chosen, lenient=self._lenient)

    def channels(self) -> list[ChannelFacts]:
        """By server, then by name."""
        found: list[ChannelFacts] = []
        away: list[ServerAway] = []
        for addr, access in self._servers.items():
            try:
                found += [replace(facts, server=addr) for facts in access.channels()]
            except ServerAway as error:
                _pass_over(error, away, one_of=len(self._servers), lenient=self._lenient)
        return found

    def schema(self, channel: str) -> pa.Schema:
        """Of the channel at its server."""
        access, _, name = self._at(channel)
        return access.schema(name)

    def skipped(self, channel: str) -> list[tuple[int, int]]:
        """Of the channel at its server."""
        access, _, name = self._at(channel)
        return access.skipped(name)

    def segments(self, channel: str, *, from_seq: int) -> Iterator[SegmentRef]:
        """Of the channel at its server."""
        access, addr, name = self._at(channel)
        return (replace(segment, server=addr) for segment in access.segments(name, from_seq=from_seq))

    def opened(self, segment: SegmentRef) -> AbstractContextManager[SegmentReader]:
        """From its server."""
        return self._servers[segment.server].opened(segment)

    def seal(self, channel: str) -> None:
        """At its server."""
        access, _, name = self._at(channel)
        access.seal(name)

    def _at(self, channel: str) -> tuple[StoreAccess, str, str]:
        addr, _, name = channel.rpartition("/")
        if addr not in self._servers:
            raise UnknownChannel(channel=channel)
        return self._servers[addr], addr, name


class ManySubscribers:
    """One subscriber of the same name at each server."""

    def __init__(self, servers: Mapping[str, Subscriber], *, lenient: bool) -> None:
        """`lenient`: go on with those that answer, if one does."""
        self._servers = dict(servers)
        self._lenient = lenient

    def start(self) -> dict[str, int]:
        """All of them, or none: a query begins with all its servers."""
        return {
            channel_key(addr, channel): seq
            for addr, subscriber in self._servers.items()
            for channel, seq in subscriber.start().items()
        }

    def confirm(self, offsets: Mapping[str, int]) -> None:
        """At each server; those that are passed over are told with the next batch."""
        away: list[ServerAway] = []
        for addr, subscriber in self._servers.items():
            start = f"{addr}/"
            own = {key.removeprefix(start): seq for key, seq in offsets.items() if key.startswith(start)}
            try:
                subscriber.confirm(own)
            except ServerAway as error:
                _pass_over(error, away, one_of=len(self._servers), lenient=self._lenient)


def _pass_over(error: ServerAway, away: list[ServerAway], *, one_of: int, lenient: bool) -> None:
    away.append(error)
    if not lenient or len(away) == one_of:
        raise error
    event("spark.server.away", level=logging.WARNING, addr=error.addr, reason=error.reason)
