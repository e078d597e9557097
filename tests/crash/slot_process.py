"""A real process that hands frames to a slot until somebody kills it.

    python -m tests.crash.slot_process DIRECTORY DURABILITY RUN

Several producer threads append; one thread reads, as a link would, and acknowledges some. A frame is reported on
standard output after `append` returned, in one write, as "fsn slot-id payload"; an acknowledgement before it is made,
as "ack fsn".
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot
from holdfast.sender.substrate import RingOptions

OPTIONS = RingOptions(segment_bytes=4096, cap_bytes=64 << 10)
PRODUCERS = 3


def payload_of(run: int, producer: int, number: int) -> str:
    """What a frame says; each text is used once in the life of the test."""
    chance = random.Random(run * 1_000_003 + producer * 7919 + number)
    return f"{run}.{producer}.{number}." + "x" * chance.choice((0, 10, 300, 2000))


def produce(ring: Ring, run: int, producer: int) -> None:
    """Append for ever."""
    number = 0
    while True:
        payload = payload_of(run, producer, number)
        fsn = ring.append(payload.encode())
        os.write(1, f"{fsn} {ring.slot_id.hex()} {payload}\n".encode())
        number += 1


def send(ring: Ring, chance: random.Random) -> None:
    """Read for ever, acknowledging now and then."""
    woken = threading.Event()
    ring.on_published = woken.set
    with ring.cursor(ring.acked_fsn + 1) as cursor:
        while True:
            frame = cursor.next()
            if frame is None:
                woken.wait(1)
                woken.clear()
            elif chance.random() < 0.1:
                os.write(1, f"ack {frame.fsn}\n".encode())
                ring.acknowledge(frame.fsn)


def main(directory: str, durability: str, run: str) -> None:
    """Open the slot and never come back."""
    slot = Slot.open(Path(directory), filesystem=LocalFilesystem(), clock=SystemClock(), durable=durability != "memory")
    ring = Ring(slot, OPTIONS._replace(durability=durability), clock=SystemClock())
    threads = [threading.Thread(target=produce, args=(ring, int(run), who), daemon=True) for who in range(PRODUCERS)]
    threads.append(threading.Thread(target=send, args=(ring, random.Random(int(run))), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
