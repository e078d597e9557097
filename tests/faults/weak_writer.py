"""A writer that answers before it syncs, to be started by a nursery; it says so, and waits to be killed."""

from __future__ import annotations

import signal
import sys

import pyarrow as pa

from holdfast import Store

EVENTS = 50
SETTINGS: dict[str, object] = {"wal.flush": "interval", "wal.flush_interval": "60s"}


def main(directory: str) -> None:
    """Commit; the first event makes the channel, and is synced."""
    store = Store.open(directory, SETTINGS)
    for n in range(EVENTS):
        store.commit("weak", pa.record_batch({"n": [n]}))
    sys.stdout.write("written\n")
    sys.stdout.flush()
    signal.pause()
