"""A producer of many events: batches to one channel, in turn with everybody; says how far it has published.

Started by a nursery. Each line on standard output is the number of an event whose `flush()` has returned.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa

from holdfast import Sender
from holdfast.sender import dialing

ROWS = 500
PAUSE_S = 0.05
"""How long an answer is waited for before the next batch: the ring must not fill while the server is away."""
IMPATIENT_S = 1.0
"""How soon a silent connection is taken for dead."""


def main(conf: str, channel: str, producer: int, first: int) -> None:
    """Send until killed; `first` is the number of the first event."""
    dialing.IDLE_PING_S = dialing.PONG_TIMEOUT_S = IMPATIENT_S
    sender = Sender.from_conf(conf)
    who = pa.array(np.full(ROWS, producer, np.int64))
    n = first
    while True:
        numbers = pa.array(np.arange(n, n + ROWS, dtype=np.int64))
        sender.send(channel, pa.record_batch({"producer": who, "n": numbers, "check": numbers}))
        n += ROWS
        sender.await_acked(sender.flush(), PAUSE_S)
        sys.stdout.write(f"{n - 1}\n")
        sys.stdout.flush()
