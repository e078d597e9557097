"""Access to the store of a running server, over its admin HTTP; and the subscriber there.

Promise: a segment's bytes are compared with the catalog's checksum here, after the way they came. Where `path` is given
too and the file is seen there, it is read from the disk; the bytes must be the same. A file that is damaged there is
asked of the server, which can heal it from its tier.
"""

from __future__ import annotations

import base64
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.consumer.adminclient import AdminClient
from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, DamagedData, UnknownChannel
from holdfast.spark.access import ChannelFacts, SegmentRef
from holdfast.spark.embedded import open_file
from holdfast.spark.options import Place, SourceOptions
from holdfast.store.segments.reader import SegmentReader
from holdfast.telemetry import event

NAMES_ASKED_MAX = 20
"""Up to so many channels are asked for one by one; more come from the list of all."""


GRACE = "1h"
"""Spark does not sync its checkpoint: after a power cut of the driver a query may read again what it has confirmed."""
ACKS_MAX = 1000
"""Ranges that the server takes in one request."""


class RemoteAccess:
    """Reads one server's store. Used by one thread."""

    def __init__(self, options: SourceOptions, client: AdminClient) -> None:
        self._options = options
        self._client = client

    def channels(self) -> list[ChannelFacts]:
        """By name."""
        names = self._options.names
        if names is None or len(names) > NAMES_ASKED_MAX:
            entries = (entry for entry in self._client.pages("channels") if self._options.matches(entry["name"]))
        else:
            entries = (entry for name in names for entry in self._entry(name))
        return sorted((_facts(entry) for entry in entries), key=lambda facts: facts.name)

    def _entry(self, name: str) -> list[Any]:
        try:
            return [self._client.get("channels", name)]
        except UnknownChannel:
            return []

    def schema(self, channel: str) -> pa.Schema:
        """The channel's schema of now."""
        text = self._client.get("channels", channel)["arrow_schema"]
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))

    def skipped(self, channel: str) -> list[tuple[int, int]]:
        """Never given to an event."""
        return [(first, last) for first, last in self._client.get("channels", channel)["skipped"]]

    def segments(self, channel: str, *, from_seq: int) -> Iterator[SegmentRef]:
        """In order."""
        for entry in self._client.pages("channels", channel, "segments", from_seq=from_seq):
            yield SegmentRef(
                channel=channel,
                number=entry["segment"],
                first_seq=entry["first_seq"],
                last_seq=entry["last_seq"],
                size_bytes=entry["bytes"],
                crc32c=int(entry["crc32c"], 16),
                first_committed_id=entry["first_committed_id"],
                last_ingested_at_ns=entry["last_ingested_at_ns"],
                last_committed_id=entry["last_committed_id"],
                first_ingested_at_ns=entry["first_ingested_at_ns"],
                first_event_time_ns=entry["first_event_time_ns"],
                last_event_time_ns=entry["last_event_time_ns"],
                event_time_column=entry.get("event_time_column") or "",
            )

    def seal(self, channel: str) -> None:
        """What the server has in memory is published soon."""
        self._client.post("channels", channel, "seal", body={})

    @contextmanager
    def opened(self, segment: SegmentRef) -> Iterator[SegmentReader]:
        """From its file where it is seen, else from a copy that is made for this."""
        with ExitStack() as held:
            reader = self._seen(held, segment)
            if reader is None:
                folder = held.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-segment-"))
                reader = held.enter_context(self._fetched(Path(folder), segment))
            yield reader

    def _seen(self, held: ExitStack, segment: SegmentRef) -> SegmentReader | None:
        if not self._options.path:
            return None
        try:
            return held.enter_context(open_file(Path(self._options.path), segment))
        except FileNotFoundError:
            return None
        except DamagedData as error:
            event("spark.segment.elsewhere", level=logging.WARNING, channel=segment.channel, reason=error)
            return None

    @contextmanager
    def _fetched(self, folder: Path, segment: SegmentRef) -> Iterator[SegmentReader]:
        path = folder / f"{segment.channel}-{segment.number}.arrow"
        parts = ("channels", segment.channel, "segments", str(segment.number), "data")
        self._client.download(path, *parts, etag=f'"crc32c-{segment.crc32c:08x}"', size_bytes=segment.size_bytes)
        file = LocalFilesystem().open(path, Mode.READ)
        try:
            with SegmentReader.open(file, expected_crc32c=segment.crc32c) as reader:
                yield reader
        finally:
            file.close()


class RemoteSubscriber:
    """The subscriber that stands for one query."""

    def __init__(self, options: SourceOptions, client: AdminClient) -> None:
        self._options = options
        self._client = client
        self._acked: dict[str, int] = {}
        self._dropped: set[str] = set()
        self._known = False

    def start(self) -> dict[str, int]:
        """Register it, or find it; returns the first seq it has not confirmed, by channel."""
        known = self._find()
        if known is None:
            if self._options.starting.uses("subscriber"):
                reason = f"there is no subscriber {self._options.subscriber!r} at {self._client.addr} to start from"
                raise BadRequest(f"startingOffsets has 'subscriber', but {reason}")
            self._register_by_channel()
        found = self._register(list(self._options.patterns), self._options.starting.everywhere)
        return {lag["channel"]: lag["mark"] + 1 for lag in found["channels"]}

    def _find(self) -> Any:
        entries = self._client.pages("subscribers")
        return next((entry for entry in entries if entry["name"] == self._options.subscriber), None)

    def _register_by_channel(self) -> None:
        """A start counts for channels that are not followed yet, so that they join one after the other."""
        joined: list[str] = []
        for channel, place in self._options.starting.by_channel:
            joined.append(channel)
            self._register(joined, place)

    def _register(self, channels: list[str], place: Place) -> Any:
        words: Mapping[Place, str] = {"earliest": "first", "latest": "new", "subscriber": "first"}
        start = words.get(place, place if isinstance(place, int) else str(place))
        body = {"channels": channels, "start": start, "grace": GRACE}
        return self._client.post("subscribers", self._options.subscriber, body=body)

    def confirm(self, offsets: Mapping[str, int]) -> None:
        """Everything below these seqs is surely in Spark's output; said once per process and position.

        The first time in a process it is registered, if it is not: a query that goes on from its checkpoint may read
        more channels than before. So it is when somebody has removed the name; what is gone then, planning notices.
        A channel that was removed, or retired, stays in the offsets: there is nothing of it to confirm.
        """
        if not self._known:
            self._register(list(self._options.patterns), "earliest")
            self._known = True
        acks = [
            {"channel": channel, "first_seq": 1, "last_seq": seq - 1}
            for channel, seq in sorted(offsets.items())
            if seq > max(1, self._acked.get(channel, 1)) and self._options.matches(channel)
        ]
        for at in range(0, len(acks), ACKS_MAX):
            self._send(acks[at : at + ACKS_MAX])
        self._acked.update(offsets)

    def _send(self, acks: list[dict[str, object]]) -> None:
        while acks:
            try:
                self._post(acks)
                return
            except UnknownChannel as error:
                acks = self._without_removed(acks, error.channel)

    def _post(self, acks: list[dict[str, object]]) -> None:
        place = ("subscribers", self._options.subscriber, "acks")
        try:
            self._client.post(*place, body={"acks": acks})
        except FileNotFoundError:
            event("spark.subscriber.removed", level=logging.WARNING, subscriber=self._options.subscriber)
            self._register(list(self._options.patterns), "earliest")
            self._client.post(*place, body={"acks": acks})

    def _without_removed(self, acks: list[dict[str, object]], removed: str) -> list[dict[str, object]]:
        """Those of channels that are there. The server names one that is not; there may be thousands."""
        followed = {lag["channel"] for lag in self._register(list(self._options.patterns), "earliest")["channels"]}
        kept = [ack for ack in acks if ack["channel"] in followed - {removed}]
        dropped = {str(ack["channel"]) for ack in acks} - {str(ack["channel"]) for ack in kept}
        for channel in sorted(dropped - self._dropped):
            event("spark.channel.removed", level=logging.WARNING, channel=channel, subscriber=self._options.subscriber)
        self._dropped |= dropped
        return kept


def _facts(entry: Any) -> ChannelFacts:
    end_seq = entry["published_seq"] + 1
    first_seq = end_seq if entry["first_seq"] is None else min(entry["first_seq"], end_seq)
    return ChannelFacts(entry["name"], first_seq, end_seq, next_seq=entry["next_seq"])
