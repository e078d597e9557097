"""How far a subscriber is behind, per channel: in events, in bytes, in seconds."""

from __future__ import annotations

from holdfast.clock import NS_PER_S
from holdfast.store.channels import Channel
from holdfast.store.ground import Ground
from holdfast.store.subscribers.progress import bytes_owed
from holdfast.store.subscribers.registry import Registry, SubscriberState
from holdfast.store.subscribers.subscriber import ChannelLag

Span = tuple[int, int]


def lag_of(ground: Ground, registry: Registry, state: SubscriberState) -> list[ChannelLag]:
    """What is owed to it of the channels it follows."""
    with registry.lock:
        followed = [
            (channel, progress.mark, tuple(progress.gaps()), list(progress.owed(1, channel.last_seq)))
            for channel, progress in registry.followed(state)
        ]
    return [
        ChannelLag(
            channel.name,
            mark,
            gaps,
            events=sum(last - first + 1 for first, last in owed),
            bytes=_bytes_of(ground, channel, owed),
            seconds=_age_of(ground, channel, owed),
        )
        for channel, mark, gaps, owed in followed
    ]


def _bytes_of(ground: Ground, channel: Channel, owed: list[Span]) -> int:
    """What owed events take in segments."""
    if not owed:
        return 0
    first, last = owed[-1]
    whole = 0
    if last >= channel.published_seq:  # all from there on is owed: those segments need not be looked at one by one
        whole, last = ground.catalog.bytes_from(channel.id, first), first - 1
    return whole + bytes_owed(owed, ground.catalog.segment_spans(channel.id, first_seq=owed[0][0], last_seq=last))


def _age_of(ground: Ground, channel: Channel, owed: list[Span]) -> float:
    """Seconds since the oldest event that is owed came in; of one in a segment, since its first event did."""
    if not owed:
        return 0.0
    _, chunks = ground.tail.snapshot(channel)
    segment = ground.catalog.segment_within(channel.id, (owed[0][0], channel.published_seq), newest_first=False)
    times = [segment.meta.first_ingested_at_ns] if segment else [chunk.run.ingested_at_ns for chunk in chunks]
    return max(0.0, (ground.clock.wall_ns() - min(times)) / NS_PER_S) if times else 0.0
