"""A program that uses the real `questdb` client, to be killed: python -m tests.conformance.questdb_writer ADDR DIR ID …

Publishes rows `first … first + count - 1`, one frame each, into its slot and says so. Then it waits for its standard
input to end, and drains. With PAUSE it says `paused` after so many rows and waits for a line; from there on it says how
many it has published, at every hundredth.
"""

from __future__ import annotations

import sys
from typing import Any

import questdb

AT_NS = 1_700_000_000_000_000_000
SAID_EVERY = 100


def say(word: str) -> None:
    """A line to whom has started this."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(
    address: str, directory: str, sender_id: str, first: str, count: str, options: str = "", pause: str = "0"
) -> None:
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
        published = number + 1 - int(first)
        if published == int(pause):
            say("paused")
            sys.stdin.readline()
        elif published > int(pause) > 0 and published % SAID_EVERY == 0:
            say(str(published))
    say("published")
    sys.stdin.read()
    sender.close()
    sys.stdout.write("drained\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
