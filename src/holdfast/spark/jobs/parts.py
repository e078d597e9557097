"""A range of a channel, cut into parts.

Promise: parts begin at multiples of their length, counted from seq 1, except where the range begins or ends inside one.
So the parts of a range depend on nothing but the range and the length: not on segments, not on when they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from holdfast.errors import BadRequest, UnknownChannel
from holdfast.spark.access import ChannelFacts, StoreAccess
from holdfast.spark.options import SourceOptions, is_glob
from holdfast.spark.resolving import INTERACTIVE_PATIENCE_S, open_access, resolve


@dataclass(frozen=True)
class Part:
    """Events `first_seq..last_seq` of a channel."""

    channel: str
    first_seq: int
    last_seq: int

    @property
    def events(self) -> int:
        """How many seqs it covers."""
        return self.last_seq - self.first_seq + 1


def parts_of(channel: str, first_seq: int, end_seq: int, *, length: int) -> Iterator[Part]:
    """The parts of `first_seq..end_seq - 1`."""
    position = first_seq
    while position < end_seq:
        border = ((position - 1) // length + 1) * length + 1
        yield Part(channel, position, min(border, end_seq) - 1)
        position = border


def planned(options: SourceOptions, *, length: int) -> tuple[StoreAccess, list[Part]]:
    """The parts of the range that the options name, as of now; `UnknownChannel` if one is not there."""
    if len(options.servers) > 1:
        raise BadRequest(f"addr names {len(options.servers)} servers; a job reads one, so run it for each of them")
    access = open_access(options, patience_s=INTERACTIVE_PATIENCE_S)
    channels = access.channels()
    if not channels:
        raise UnknownChannel(channel=", ".join(options.patterns))
    check_there(options, channels)
    starts = resolve(access, channels, options.starting)
    ends = resolve(access, channels, options.ending)
    parts: list[Part] = []
    for facts in channels:
        first, end = _clamped(facts, starts[facts.name], ends[facts.name])
        parts += parts_of(facts.name, first, end, length=length)
    return access, parts


def check_there(options: SourceOptions, channels: Iterable[ChannelFacts]) -> None:
    """`UnknownChannel` for the first that is called by its name and is nowhere; a glob may find nothing."""
    found = {facts.name for facts in channels}
    for name in options.patterns:
        if not is_glob(name) and name not in found:
            raise UnknownChannel(channel=name)


def _clamped(facts: ChannelFacts, first: int, end: int) -> tuple[int, int]:
    """To what is there; what was evicted before cannot be had."""
    return max(first, facts.first_seq), min(end, facts.end_seq)
