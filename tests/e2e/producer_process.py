"""A producer that is killed: sends events all the time and says what was published.

    python -m tests.e2e.producer_process CONF CHANNEL RUN

Each line on standard output is the number of an event whose `flush()` has returned.
"""

from __future__ import annotations

import sys

from holdfast import Sender
from holdfast.sender import dialing

PAUSE_S = 0.002
"""How long an answer is waited for: without it an outage would fill the disk."""
IMPATIENT_S = 0.05
"""How soon an impatient producer takes a silent connection for dead."""


def main(conf: str, channel: str, run: int) -> None:
    sender = Sender.from_conf(conf)
    n = 0
    while True:
        sender.send(channel, [{"run": run, "n": n + place, "pad": "x" * (n % 97)} for place in range(n % 5 + 1)])
        n += n % 5 + 1
        sender.await_acked(sender.flush(), PAUSE_S)
        sys.stdout.write(f"{n - 1}\n")
        sys.stdout.flush()


def impatient(conf: str, channel: str, run: int) -> None:
    """The same for networks that swallow everything without a word; a patient one takes a minute and a half to see."""
    dialing.IDLE_PING_S = dialing.PONG_TIMEOUT_S = IMPATIENT_S
    main(conf, channel, run)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
