"""Events of a channel sent to another channel, of the same server or of another one, each stored once.

A frame carries a slot that is made of the replay's identity, and the seq of its first event as its number. A server
knows what it has stored under a slot and a number without a time limit, and answers a repeat with how many events that
were; then the replay goes on behind them. So a replay that was interrupted, or is run again after the channel has
grown, or with frames of other sizes, stores nothing twice. A repeat whose events the target does not have any more has
no number, so nobody knows where to go on: that ends the replay.

A frame has so many events at most, and so many bytes, but always one event. What waits to be sent is about a frame and
a slice of a segment, however large the events are.

The identity says which replay it is: by default the source, its channel, the target and the length of parts. A replay
with another start is another one if it begins inside of a part. System columns are not sent: the target gives its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from holdfast.consumer.adminclient import AdminClient
from holdfast.errors import BadRequest
from holdfast.model.names import check_channel_name
from holdfast.spark.access import StoreAccess
from holdfast.spark.batch import TASK_PATIENCE_S
from holdfast.spark.frames import encode
from holdfast.spark.jobs.apart import is_among
from holdfast.spark.jobs.engine import run_parts
from holdfast.spark.jobs.parts import Part, planned
from holdfast.spark.options import SourceOptions
from holdfast.spark.planning import pieces_within
from holdfast.spark.reading import read_pieces
from holdfast.spark.resolving import open_access
from holdfast.spark.sinkoptions import FRAME_BYTES_DEFAULT

PART_EVENTS = 200_000
"""A task: some seconds of sending."""
FRAME_EVENTS = 10_000
"""A frame of small events: more in one make it no faster, and a repeat that is half new would cost more."""
SEND_PATIENCE_S = 300.0
NAMESPACE = uuid.UUID("8f0c6d2e-5f1b-4b57-9d4e-5f7a0f0c7a11")


@dataclass(frozen=True)
class Target:
    """Where events go."""

    addr: str
    channel: str
    token: str = field(default="", repr=False)
    token_file: str = ""


@dataclass(frozen=True)
class Replay:
    """What was sent; `repeated` of it was there already."""

    parts: int = 0
    events: int = 0
    repeated: int = 0

    def plus(self, other: Replay) -> Replay:
        """Both together."""
        return Replay(self.parts + other.parts, self.events + other.events, self.repeated + other.repeated)


@dataclass(frozen=True)
class _Sending:
    """What a worker needs; it is pickled."""

    options: SourceOptions
    target: Target
    slot_id: str
    schema: bytes
    frame_events: int
    frame_bytes: int

    def __call__(self, part: Part) -> Replay:
        """Send one part."""
        access = open_access(self.options, patience_s=TASK_PATIENCE_S)
        client = AdminClient(self.target, patience_s=SEND_PATIENCE_S)
        done = Replay(parts=1)
        for first, last in runs_within(access, part):
            done = done.plus(self._run(access, client, part.channel, (first, last)))
        return done

    def _run(self, access: StoreAccess, client: AdminClient, channel: str, span: tuple[int, int]) -> Replay:
        """Events without a gap between them."""
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        pieces = pieces_within(access, channel, span)
        ahead = _Ahead(read_pieces(access, pieces, schema, fail_on_data_loss=True))
        position, last, sent, repeated = *span, 0, 0
        while position <= last:
            count, frame = self._frame(ahead)
            answer = client.send_frame(self.target.channel, frame, slot_id=self.slot_id, fsn=position)
            if answer["duplicate"]:
                count = min(self._stored(answer["events"], channel, position), last - position + 1)
                repeated += count
            ahead.drop(count)
            sent += count
            position += count
        return Replay(0, sent, repeated)

    def _frame(self, ahead: _Ahead) -> tuple[int, pa.Buffer]:
        """The next events that fit into one, and how many they are."""
        count = ahead.look(self.frame_events, self.frame_bytes)
        frame = encode(ahead.first(count))
        while frame.size > self.frame_bytes and count > 1:
            count = -(-count // 2)
            frame = encode(ahead.first(count))
        return count, frame

    def _stored(self, events: int, channel: str, position: int) -> int:
        """How many events a repeat has; another cut than that one would lose some, or store some twice."""
        if events:
            return events
        raise BadRequest(
            f"channel {self.target.channel!r} at {self.target.addr} has stored events of this replay from seq "
            f"{position} of {channel!r} on, and has evicted them, or has them in its tier only, so that it cannot say "
            "how many; begin behind them with --from, or send all again with another --identity"
        )


class _Ahead:
    """Events that were read and not sent yet."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._held: list[pa.RecordBatch] = []

    def look(self, events_max: int, bytes_max: int) -> int:
        """Read on until there is enough for a frame of this size; how many of the events it may have."""
        while self._events < events_max and sum(batch.nbytes for batch in self._held) < bytes_max and self._read():
            pass
        return min(events_max, self._events)

    def first(self, count: int) -> list[pa.RecordBatch]:
        """The next events; so many were read."""
        taken = []
        for batch in self._held:
            if count > 0:
                taken.append(batch.slice(0, count))
            count -= batch.num_rows
        return taken

    def drop(self, count: int) -> None:
        """Leave so many behind, whether they were read or not."""
        while count > 0 and (self._held or self._read()):
            batch = self._held.pop(0)
            if batch.num_rows > count:
                self._held.insert(0, batch.slice(count))
            count -= batch.num_rows

    @property
    def _events(self) -> int:
        return sum(batch.num_rows for batch in self._held)

    def _read(self) -> bool:
        batch = next(self._batches, None)
        if batch is not None:
            self._held.append(batch)
        return batch is not None


def runs_within(access: StoreAccess, part: Part) -> Iterator[tuple[int, int]]:
    """First and last seq of what there is of a part, without the seqs that no event has."""
    first = last = 0
    for piece in pieces_within(access, part.channel, (part.first_seq, part.last_seq)):
        if last and piece.first_seq == last + 1:
            last = piece.last_seq
            continue
        if last:
            yield first, last
        first, last = piece.first_seq, piece.last_seq
    if last:
        yield first, last


def replay(
    options: SourceOptions,
    target: Target,
    *,
    identity: str = "",
    master: str | None = None,
    part_events: int = PART_EVENTS,
    frame_events: int = FRAME_EVENTS,
    frame_bytes: int = FRAME_BYTES_DEFAULT,
    on_part: Callable[[Replay, int], None] = lambda _done, _parts: None,
) -> Replay:
    """Send what the options name; `on_part` is told what is done and how many parts there are in all."""
    check_channel_name(target.channel)
    _check_apart(options, target)
    access, parts = planned(options, length=part_events)
    if len({part.channel for part in parts}) > 1:
        raise BadRequest(f"channel {', '.join(options.patterns)} names several channels; replay them one by one")
    name = identity or "\0".join((_place(options), *options.patterns))
    slot = uuid.uuid5(NAMESPACE, "\0".join((name, target.channel, str(part_events))))
    schema = access.schema(parts[0].channel).serialize().to_pybytes() if parts else b""
    done = Replay()
    work = _Sending(options, target, slot.hex, schema, frame_events, frame_bytes)
    for result in run_parts(work, parts, master=master):
        done = done.plus(result)
        on_part(done, len(parts))
    return done


def _place(options: SourceOptions) -> str:
    """Which store it is; what is named here must stay as it is, or replays are not known again."""
    if options.addr or options.path:
        return options.addr or str(Path(options.path).absolute())
    tier = options.tier
    assert tier is not None, "options name a store"
    return "\0".join(("tier", tier.endpoint.rstrip("/"), tier.url.rstrip("/"), tier.prefix.strip("/")))


def _check_apart(options: SourceOptions, target: Target) -> None:
    """A channel that is sent to itself would have every event twice."""
    if is_among(target.addr, options.servers) and options.matches(target.channel):
        raise BadRequest(f"the events of channel {target.channel!r} would go to itself; give another --to-channel")
