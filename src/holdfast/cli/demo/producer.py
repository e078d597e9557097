"""The process that sends, and is killed: `python -m holdfast.cli.demo.producer CONF CHANNEL FRAMES_PER_SECOND`.

It sends frames until its standard input ends, then waits for their answers and closes the sender. It tells its parent,
one JSON line each on standard output:

    opened      the sender is open; which frames it found in its slot
    published   after `flush` has returned: from here on the events are promised
    acked       the server has accepted all frames up to this one
    closed      everything is answered

Promise: a line is one write of less than PIPE_BUF bytes, so a kill leaves no half line. With a slot directory the next
process goes on with the number after the last frame in the slot, so no event is ever sent under two numbers.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TypeAlias

import msgspec

from holdfast import Sender
from holdfast.cli.demo.events import make_frame

DRAIN_S = 60.0
"""How long the last answers may take; longer than the outage of the demo."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """What was in the slot: the numbers of the last frame and of the last one that was answered; -1 for none."""

    pid: int
    published_fsn: int
    acked_fsn: int


class Published(msgspec.Struct, frozen=True, tag="published"):
    """A frame is in the slot, or in memory without one."""

    fsn: int


class Acked(msgspec.Struct, frozen=True, tag="acked"):
    """All frames up to this one are synced to the server's disk."""

    fsn: int


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The sender was closed in order."""

    acked_fsn: int


Message: TypeAlias = Opened | Published | Acked | Closed


def main(conf: str, channel: str, frames_per_second: float) -> None:
    """Send until standard input ends."""
    stop = end_of_input()
    with Sender.from_conf(conf, progress_handler=lambda fsn: tell(Acked(fsn))) as sender:
        fsn = sender.published_fsn
        tell(Opened(os.getpid(), fsn, sender.acked_fsn))
        while not stop.wait(1 / frames_per_second):
            sender.send(channel, make_frame(channel, fsn + 1))
            fsn = sender.flush()
            tell(Published(fsn))
        sender.drain(DRAIN_S)
        acked = sender.acked_fsn
    tell(Closed(acked))


def tell(message: Message) -> None:
    """A line for the parent, in one write."""
    os.write(1, msgspec.json.encode(message) + b"\n")


def end_of_input() -> threading.Event:
    """Set when the parent closes the pipe, or dies."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=wait, name="end-of-input", daemon=True).start()
    return stop


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
