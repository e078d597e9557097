"""Events of a channel sent to another channel, of the same server or of another one, each stored once.

A frame carries a slot that is made of the replay's identity, and the seq of its first event as its number. A server
knows what it has stored under a slot and a number without a time limit, and answers a repeat with how many events that
were; then the replay goes on behind them. So a replay that was interrupted, or is run again after the channel has
grown, stores nothing twice.

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
from holdfast.spark.jobs.engine import run_parts
from holdfast.spark.jobs.parts import Part, planned
from holdfast.spark.options import SourceOptions
from holdfast.spark.planning import pieces_within
from holdfast.spark.reading import read_pieces
from holdfast.spark.resolving import open_access

PART_EVENTS = 200_000
"""A task: some seconds of sending."""
FRAME_EVENTS = 10_000
"""A frame: below what servers take in one message, unless events are larger than a kilobyte."""
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
        position, last, sent, repeated = *span, 0, 0
        while position <= last:
            end = min(last, position + self.frame_events - 1)
            pieces = pieces_within(access, channel, (position, end))
            batches = list(read_pieces(access, pieces, schema, fail_on_data_loss=True))
            answer = client.send_frame(self.target.channel, encode(batches), slot_id=self.slot_id, fsn=position)
            count = end - position + 1
            if answer["duplicate"]:
                count = answer["events"] or count  # 0: the target has evicted them by now
                repeated += count
            sent += count
            position += count
        return Replay(0, sent, repeated)


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
    on_part: Callable[[Replay, int], None] = lambda _done, _parts: None,
) -> Replay:
    """Send what the options name; `on_part` is told what is done and how many parts there are in all."""
    check_channel_name(target.channel)
    _check_apart(options, target)
    access, parts = planned(options, length=part_events)
    if len({part.channel for part in parts}) > 1:
        raise BadRequest(f"channel {', '.join(options.patterns)} names several channels; replay them one by one")
    name = identity or "\0".join((options.addr or str(Path(options.path).absolute()), *options.patterns))
    slot = uuid.uuid5(NAMESPACE, "\0".join((name, target.channel, str(part_events))))
    schema = access.schema(parts[0].channel).serialize().to_pybytes() if parts else b""
    done = Replay()
    work = _Sending(options, target, slot.hex, schema, frame_events)
    for result in run_parts(work, parts, master=master):
        done = done.plus(result)
        on_part(done, len(parts))
    return done


def _check_apart(options: SourceOptions, target: Target) -> None:
    """A channel that is sent to itself would never end."""
    if options.addr == target.addr and options.matches(target.channel):
        raise BadRequest(f"the events of channel {target.channel!r} would go to itself; give another --to-channel")
