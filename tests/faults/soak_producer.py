"""A producer of many events at a steady rate: batches to one channel; says how far it has published.

Started by a nursery. Each line on standard output is the number of an event whose `flush()` has returned.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import pyarrow as pa

from holdfast import Sender
from holdfast.clock import NS_PER_S, SystemClock
from holdfast.sender import dialing

ROWS = 500
EVERY_S = 0.1
"""A batch this often: 5,000 events/s, which go into the slot also while the server is away."""
IMPATIENT_S = 1.0
"""How soon a silent connection is taken for dead."""


def main(conf: str, channel: str, producer: int, first: int) -> None:
    """Send until killed; `first` is the number of the first event."""
    dialing.IDLE_PING_S = dialing.PONG_TIMEOUT_S = IMPATIENT_S
    sender = Sender.from_conf(conf)
    who = pa.array(np.full(ROWS, producer, np.int64))
    clock, pause = SystemClock(), threading.Event()
    n, due_ns = first, clock.monotonic_ns()
    while True:
        numbers = pa.array(np.arange(n, n + ROWS, dtype=np.int64))
        sender.send(channel, pa.record_batch({"producer": who, "n": numbers, "check": numbers}))
        n += ROWS
        sender.flush()
        sys.stdout.write(f"{n - 1}\n")
        sys.stdout.flush()
        due_ns = max(due_ns + int(EVERY_S * NS_PER_S), clock.monotonic_ns())
        pause.wait((due_ns - clock.monotonic_ns()) / NS_PER_S)
