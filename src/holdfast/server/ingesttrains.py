"""Small frames that one turn of the loop brings go to the store together, whichever connections they came on.

    connection ─┐                                      ┌─ taken: each connection waits for its share of the answer
    connection ─┼─► board ─► one train per channel ─► leave
    connection ─┘            until it is full, or      └─ not taken: each connection's frames by themselves; what is not
                             the turn is over             taken then is read again, one by one (`walk`)

What a small frame costs is mostly what its commit costs, and many share that. To the store a thousand connections that
send one frame each are as one that sends a thousand; reading and answering each of them costs what it costs.

Promises:

- A connection is on one train at a time, and nothing behind its frames is in the store before the train has left.
- Nobody suffers for what others sent: where one frame keeps a train from being taken, the others' are tried without it.
- Every refusal, and waiting for room, is left to the way of single frames.

Everything happens on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.model.frame import PlainFrame
from holdfast.store.committer import Train
from holdfast.store.lane import Lane, Lanes
from holdfast.store.store import Store
from holdfast.telemetry import event

if TYPE_CHECKING:
    from holdfast.server.ingest import IngestHandler

TRAIN_FRAMES = 64
"""A train with as many leaves at once: with more each would cost hardly less, and others wait meanwhile."""


class _Boarding(msgspec.Struct):
    """A train that has not left."""

    schema: pa.Schema
    riders: list[IngestHandler]
    frames: int = 0


class Trains:
    """The trains that have not left, by channel."""

    def __init__(self, store: Store, *, on_boarding: Callable[[], None]) -> None:
        """`on_boarding` sees to it that `leave_all` is called."""
        self._store = store
        self._on_boarding = on_boarding
        self._boarding: dict[str, _Boarding] = {}

    def board(self, handler: IngestHandler) -> None:
        """Take the frames that a connection has put together (`boarding`); they have one channel and one schema."""
        first = handler.boarding[0][0]
        train = self._boarding.get(first.channel)
        if train is not None and not _is_same(train.schema, first.schema):
            self.leave(first.channel)
            train = None
        if train is None:
            train = self._boarding[first.channel] = _Boarding(first.schema, [])
        train.riders.append(handler)
        train.frames += len(handler.boarding)
        if train.frames >= TRAIN_FRAMES:
            self.leave(first.channel)
        else:
            self._on_boarding()

    def leave(self, channel: str) -> None:
        """Hand over what has boarded for a channel."""
        boarding = self._boarding.pop(channel, None)
        if boarding is None:
            return
        riders = [handler for handler in boarding.riders if handler.boarding]  # some may have gone
        if len(riders) > 1 and self._together(riders):
            return
        for handler in riders:
            train = self._commit([frame for frame, _ in handler.boarding], handler.lane)
            if train is None:
                handler.walk()
            else:
                handler.ride(train, 0)

    def leave_all(self) -> None:
        """The turn is over."""
        for channel in list(self._boarding):
            self.leave(channel)

    def _together(self, riders: Sequence[IngestHandler]) -> bool:
        frames = [frame for handler in riders for frame, _ in handler.boarding]
        train = self._commit(frames, Lanes([(handler.lane, len(handler.boarding)) for handler in riders]))
        if train is None:
            return False
        for share, handler in enumerate(riders):
            handler.ride(train, share)
        return True

    def _commit(self, frames: Sequence[PlainFrame], lane: Lane) -> Train | None:
        try:
            return self._store.commit_train(frames, lane=lane)
        except HoldfastError:
            return None
        except Exception as error:  # one frame must not stop the others on its train; alone it is refused
            event("server.train.fail", error=type(error).__name__, reason=error)
            return None


def _is_same(schema: pa.Schema, other: pa.Schema) -> bool:
    return schema is other or schema.equals(other, check_metadata=True)
