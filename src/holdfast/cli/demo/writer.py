"""The process that commits, and is killed: `python -m holdfast.cli.demo.writer DIRECTORY FIRST_FSN`.

It writes frames from FIRST_FSN on until its standard input ends, then closes the store in order. It tells its parent,
one JSON line each on standard output:

    opened      the store is open; what recovery found
    sent        before a frame is handed over
    answered    after the store has accepted it, never earlier
    closed      after everything was answered and the store was closed

Promise: a line is one write of less than PIPE_BUF bytes, so a kill leaves no half line. The writer keeps nothing
between lives; its parent tells it with which frame to go on, and that may be one that is stored already.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TypeAlias

import msgspec

from holdfast.cli.demo.events import make_frame
from holdfast.clock import SystemClock
from holdfast.model.frame import SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.answer import CommitFuture
from holdfast.store.store import Store

WINDOW = 64
"""Frames under way at a time: a kill always finds some that are written and not answered."""

SLOT_ID = b"holdfast-demo-01"

CONFIG = {
    "segment.target_size": "4MiB",
    "segment.max_open_duration": "1s",
    "wal.rotation_size": "8MiB",
    "wal.max_size": "64MiB",
    "frame.max_size": "1MiB",
    "event_time": "ts",
}
"""Small bounds, so that a few seconds see rotation, sealing and trimming."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """What recovery found and did."""

    pid: int
    milliseconds: float
    log_records: int
    recovered_frames: int
    recovered_events: int
    torn_bytes_cut: int
    segments: int


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """A frame is about to be handed over."""

    fsn: int


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """A frame was accepted; where its events are, per channel."""

    fsn: int
    duplicate: bool
    first_seqs: dict[str, int]


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The store was closed in order."""

    syncs: int


Message: TypeAlias = Opened | Sent | Answered | Closed


def main(directory: Path, first_fsn: int) -> None:
    """Write until standard input ends."""
    clock = SystemClock()
    started_ns = clock.monotonic_ns()
    with Store.open(directory, CONFIG) as store:
        found = store.recovery
        cut_bytes = found.cut.cut_bytes if found.cut is not None else 0
        milliseconds = (clock.monotonic_ns() - started_ns) / 1e6
        _tell(
            Opened(
                pid=os.getpid(),
                milliseconds=round(milliseconds, 1),
                log_records=found.wal_records,
                recovered_frames=found.recovered_frames,
                recovered_events=found.recovered_events,
                torn_bytes_cut=cut_bytes,
                segments=found.segments,
            )
        )
        _write(store, first_fsn, stop=_end_of_input())
        syncs = store.statistics().syncs
    _tell(Closed(syncs))


def _write(store: Store, fsn: int, *, stop: threading.Event) -> None:
    waiting: deque[tuple[int, CommitFuture]] = deque()
    while not stop.is_set():
        frame = make_frame(fsn)
        _tell(Sent(fsn))
        waiting.append((fsn, store.commit_frame_async(frame, identity=SlotFrame(SLOT_ID, Fsn(fsn)))))
        fsn += 1
        if len(waiting) >= WINDOW:
            _answer(*waiting.popleft())
    while waiting:
        _answer(*waiting.popleft())


def _answer(fsn: int, future: CommitFuture) -> None:
    receipt = future.result()
    _tell(Answered(fsn, receipt.duplicate, {entry.channel: entry.first_seq for entry in receipt.entries}))


def _tell(message: Message) -> None:
    os.write(1, msgspec.json.encode(message) + b"\n")


def _end_of_input() -> threading.Event:
    """Set when the parent closes the pipe, or dies."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=wait, name="end-of-input", daemon=True).start()
    return stop


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
