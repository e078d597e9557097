"""A producer that is killed: sends events all the time and says what was published.

    python -m tests.e2e.producer_process CONF CHANNEL RUN

Each line on standard output is the number of an event whose `flush()` has returned; of a tracked producer then also how
many events the server has answered for.
"""

from __future__ import annotations

import sys
from collections import deque

from holdfast import Sender
from holdfast.sender import dialing

PAUSE_S = 0.002
"""How long an answer is waited for: without it an outage would fill the disk."""
TRACKED_S = 0.1
"""The same for a tracked one, which sends on at once while no more than `WINDOW` frames wait for an answer."""
WINDOW = 8
IMPATIENT_S = 0.05
"""How soon an impatient producer takes a silent connection for dead."""


def rows_at(n: int) -> int:
    """How many events the frame has that begins with event `n`."""
    return n % 5 + 1


def _send(sender: Sender, channel: str, run: int, n: int) -> int:
    """A frame from event `n` on; its number."""
    sender.send(channel, [{"run": run, "n": n + place, "pad": "x" * (n % 97)} for place in range(rows_at(n))])
    return sender.flush()


def main(conf: str, channel: str, run: int) -> None:
    sender = Sender.from_conf(conf)
    n = 0
    while True:
        fsn = _send(sender, channel, run, n)
        n += rows_at(n)
        sender.await_acked(fsn, PAUSE_S)
        sys.stdout.write(f"{n - 1}\n")
        sys.stdout.flush()


def tracked(conf: str, channel: str, run: int) -> None:
    """Many frames on their way, and the answers are told too."""
    sender = Sender.from_conf(conf)
    n = answered = 0
    unanswered: deque[tuple[int, int]] = deque()
    while True:
        fsn = _send(sender, channel, run, n)
        n += rows_at(n)
        unanswered.append((fsn, n))
        if len(unanswered) > WINDOW:
            sender.await_acked(unanswered[-WINDOW][0], TRACKED_S)
        while unanswered and unanswered[0][0] <= sender.acked_fsn:
            answered = unanswered.popleft()[1]
        sys.stdout.write(f"{n - 1} {answered}\n")
        sys.stdout.flush()


def impatient(conf: str, channel: str, run: int) -> None:
    """The same for networks that swallow everything without a word; a patient one takes a minute and a half to see."""
    dialing.IDLE_PING_S = dialing.PONG_TIMEOUT_S = IMPATIENT_S
    main(conf, channel, run)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
