"""A producer that outlives its server: it keeps events in a slot, decides about refusals, and shows its metrics.

    python examples/resilient_producer.py DIRECTORY HOST:PORT

First nobody listens at a wrong address, and the events wait in the slot. Then the same program, started again with the
right address, sends them, and each is stored once. One frame does not fit its channel: it is set aside, not lost.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from holdfast import Sender
from holdfast.sender.happenings import SenderError
from holdfast.sender.prometheus import PrometheusCollector

console = Console(highlight=False, width=110)
NOWHERE = "127.0.0.1:1"
SHOWN = ("frames_sent", "frames_rejected", "acked_fsn", "halted")


def drop_bad_readings(error: SenderError) -> str | None:
    """Readings may be set aside; about everything else the keys of the connect string decide."""
    return "drop" if "readings" in error.message else None


def open_sender(directory: str, address: str, **keys: Any) -> Sender:
    """The same slot each time: the next sender goes on where the last one ended."""
    return Sender(addr=address, sf_dir=directory, sender_id="gauge", error_policy=drop_bad_readings, **keys)


def main(directory: str, address: str) -> None:
    away = open_sender(directory, NOWHERE, initial_connect_retry="async", close_flush_timeout_millis=0)
    for minute in range(10):
        away.send("readings", {"minute": minute, "celsius": 20.0 + minute / 10})
    console.print(f"published up to frame {away.flush()} while nobody listens")
    away.close()

    with open_sender(directory, address) as sender:
        registry = CollectorRegistry()
        registry.register(PrometheusCollector({"gauge": sender}))
        sender.send("readings", pa.table({"minute": ["not a number"], "celsius": [21.0]}))
        sender.flush()
        sender.send("readings", {"minute": 10, "celsius": 21.0})
        assert sender.drain(timeout=60), "the server did not answer in time"
        for line in generate_latest(registry).decode().splitlines():
            if line.startswith(tuple(f"holdfast_sender_{name}" for name in SHOWN)):
                console.print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
