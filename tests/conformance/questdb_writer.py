"""A program that uses the real `questdb` client, to be killed: python -m tests.conformance.questdb_writer ADDR DIR ID …

Publishes rows `first … first + count - 1`, one frame each, into its slot and says so. Then it waits for its standard
input to end, and drains.
"""

from __future__ import annotations

import sys
from typing import Any

import questdb

AT_NS = 1_700_000_000_000_000_000


def main(address: str, directory: str, sender_id: str, first: str, count: str, options: str = "") -> None:
    """Write, say what was published, wait, drain."""
    conf = (
        f"ws::addr={address};auto_flush=off;sf_dir={directory};sender_id={sender_id};initial_connect_retry=async;"
        f"reconnect_initial_backoff_millis=20;reconnect_max_backoff_millis=200;close_flush_timeout_millis=60000;{options}"
    )
    sender: Any = questdb.Sender.from_conf(conf)
    sender.establish()
    for number in range(int(first), int(first) + int(count)):
        sender.row(
            "trades",
            symbols={"pair": f"pair-{number % 5}"},
            columns={"n": number},
            at=questdb.TimestampNanos(AT_NS + number),
        )
        sender.flush()
    sys.stdout.write("published\n")
    sys.stdout.flush()
    sys.stdin.read()
    sender.close()
    sys.stdout.write("drained\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
