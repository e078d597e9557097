"""A real process that commits frames from several threads until somebody kills it.

    python -m tests.crash.writer_process DIRECTORY FIRST_FSN...

One thread per FIRST_FSN, each with a slot of its own. A frame is reported on standard output after it was accepted, one
line of JSON, in one write: [producer, fsn, [[channel, first seq, last seq, first committed_id], ...], duplicate].
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading

import pyarrow as pa

from holdfast import Store
from holdfast.model.frame import Entry, SlotFrame
from holdfast.model.positions import Fsn

SETTINGS: dict[str, object] = {
    "segment.target_size": "48KiB",
    "segment.max_open_duration": "50ms",
    "wal.rotation_size": "128KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "1MiB",
    "frame.max_size": "32KiB",
    "segment.direct_size": "1KiB",
}
BOTH = ("left", "right")


def slot_id(producer: int) -> bytes:
    """The slot of a producer."""
    return b"producer %07d" % producer


def events_of(producer: int, fsn: int) -> dict[str, list[int]]:
    """Channel to the numbers of its events; each number is used once in the life of the test."""
    chance = random.Random(producer * 1_000_003 + fsn)
    channels = BOTH if fsn % 3 == 0 else (BOTH[fsn % 2],)
    first = producer * 10_000_000 + fsn * 100
    return {
        channel: list(range(first + 10 * place, first + 10 * place + chance.randint(1, 5)))
        for place, channel in enumerate(channels)
    }


def body_of(number: int) -> bytes:
    """What the event with that number says."""
    chance = random.Random(number)
    return chance.randbytes(chance.choice((10, 200, 2000)))


def entry(channel: str, numbers: list[int]) -> Entry:
    """Events as Arrow."""
    body = pa.array([body_of(number) for number in numbers], pa.binary())
    return Entry(channel, pa.record_batch({"n": pa.array(numbers, pa.int64()), "body": body}))


def produce(store: Store, producer: int, fsn: int) -> None:
    """Commit frame after frame, for ever."""
    while True:
        entries = [entry(channel, numbers) for channel, numbers in events_of(producer, fsn).items()]
        receipt = store.commit_frame(entries, identity=SlotFrame(slot_id(producer), Fsn(fsn)))
        places = [[item.channel, item.first_seq, item.last_seq, item.first_committed_id] for item in receipt.entries]
        os.write(1, json.dumps([producer, fsn, places, receipt.duplicate]).encode() + b"\n")
        fsn += 1


def main(directory: str, *first_fsns: str) -> None:
    """Open the store and never come back."""
    store = Store.open(directory, SETTINGS)
    threads = [
        threading.Thread(target=produce, args=(store, producer, int(fsn)), daemon=True)
        for producer, fsn in enumerate(first_fsns)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
