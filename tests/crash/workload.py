"""A small program that uses a store as hard as it can, for tests that interrupt it anywhere.

Every event has a number of its own; its other columns follow from that number, so that a reader can tell which event
it has and whether it is the right one. Settings are so small that a few dozen frames rotate, seal, trim and recover.

    alpha   int32, widened to int64; later a column more       small frames, slots
    beta    a dictionary whose words change, bodies of some KB   large frames, GUIDs
    gamma   events with ids of their own                         repeats of single events
    delta   bodies of some KB, or of some bytes; later a column more   large and small frames by turns

Large frames without dictionaries are written straight into their segments: those of delta, now and then of alpha.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pyarrow as pa

from holdfast import Store
from holdfast.disk.filesystem import Filesystem
from holdfast.model.frame import Entry, EventIds, FrameReceipt, Guid, Identity, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.testing import ManualClock

STORE = Path("/data/store")
TINY: dict[str, object] = {
    "segment.target_size": "24KiB",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "64KiB",
    "frame.max_size": "32KiB",
    "segment.direct_size": "1KiB",
}
NO_SETTINGS: Mapping[str, object] = {}
SLOTS = (b"slot of producer", b"another producer")
CHANNELS = ("alpha", "beta", "gamma", "delta")


@dataclass(frozen=True)
class Frame:
    """What is handed to the store in one call; equal by name, so that a repeat is the same frame."""

    name: str
    events: dict[str, tuple[int, ...]] = field(compare=False)
    """Channel to the numbers of its events."""
    identity: Identity = field(default=None, compare=False)
    wide: bool = field(default=False, compare=False)
    """Whether alpha's events come with the wider type and the later column, delta's with the latter."""

    def entries(self) -> list[Entry]:
        """The same events each time."""
        return [Entry(channel, batch(channel, numbers, wide=self.wide)) for channel, numbers in self.events.items()]

    def numbers(self) -> list[int]:
        """All events of the frame."""
        return [number for numbers in self.events.values() for number in numbers]


@cache
def event(channel: str, number: int, *, wide: bool = False) -> dict[str, object]:
    """The one value that event may have."""
    chance = random.Random(number)
    if channel == "alpha":
        return {"n": number, "text": f"event {number}", **({"later": number * 0.5} if wide else {})}
    if channel == "beta":
        return {"n": number, "word": f"word-{number // 3}", "body": chance.randbytes(chance.choice((100, 3000, 9000)))}
    if channel == "delta":
        body = chance.randbytes(chance.choice((20, 700, 2500, 6000)))
        return {"n": number, "body": body, **({"later": number * 0.5} if wide else {})}
    return {"n": number, "id": f"id-{number}"}


@cache
def batch(channel: str, numbers: tuple[int, ...], *, wide: bool = False) -> pa.RecordBatch:
    """These events as a producer would send them."""
    rows = [event(channel, number, wide=wide) for number in numbers]
    columns = {name: pa.array([row[name] for row in rows]) for name in rows[0]}
    if channel == "alpha":
        columns["n"] = columns["n"].cast(pa.int64() if wide else pa.int32())
    if channel == "beta":
        columns["word"] = columns["word"].dictionary_encode()
    return pa.record_batch(columns)


def slot_frame(name: str, fsn: int, /, slot: int = 0, *, wide: bool = False, **events: tuple[int, ...]) -> Frame:
    """A frame of a producer's slot."""
    return Frame(name, events, SlotFrame(SLOTS[slot], Fsn(fsn)), wide)


def guid_frame(name: str, **events: tuple[int, ...]) -> Frame:
    """A frame with a GUID."""
    return Frame(name, events, Guid(name.encode().ljust(16, b".")))


def id_frame(name: str, *numbers: int) -> Frame:
    """Events that carry their ids."""
    return Frame(name, {"gamma": numbers}, EventIds("id"))


FIRST_SESSION = (
    slot_frame("s1", 1, alpha=(1, 2, 3)),
    slot_frame("s2", 2, alpha=(4,), beta=(1001, 1002), gamma=(2001,)),
    slot_frame("u1", 11, 1, delta=(3001, 3002, 3003)),
    Frame("small", {"delta": (3004,)}),
    guid_frame("g1", beta=(1003,)),
    Frame("plain", {"alpha": (5, 6)}),
    id_frame("i1", 2002, 2003),
    id_frame("i2", 2003, 2004, 2002),
    slot_frame("s3", 3, beta=(1004, 1005), alpha=(7,), delta=(3005, 3006)),
    slot_frame("t1", 1, 1, gamma=(2005,), alpha=(8, 9)),
    guid_frame("u2", delta=(3007, 3008, 3009), gamma=(2011,)),
    slot_frame("s4", 4, wide=True, alpha=(10, 11), beta=(1006,), delta=(3010, 3011)),
    slot_frame("u3", 12, 1, wide=True, delta=(3012, 3013)),
    guid_frame("g2", beta=(1007, 1008), gamma=(2006,)),
    slot_frame("s6", 6, beta=(1009,)),
    slot_frame("s5", 5, alpha=(12,)),
)
SECOND_SESSION = (
    slot_frame("s7", 7, alpha=(13, 14), beta=(1010, 1011)),
    slot_frame("u4", 13, 1, delta=(3014, 3015, 3016, 3017)),
    Frame("wide alpha", {"alpha": tuple(range(40, 80))}),
    id_frame("i3", 2004, 2007),
    slot_frame("t2", 2, 1, beta=(1012, 1013, 1014)),
    guid_frame("g3", alpha=(15,), beta=(1015,), gamma=(2008,)),
    Frame("plainer", {"alpha": (16,), "beta": (1016, 1017)}),
    slot_frame("u5", 14, 1, delta=(3018,), alpha=(81,)),
    guid_frame("u6", delta=(3019, 3020, 3021, 3022), beta=(1033,)),
    slot_frame("s8", 8, beta=(1018, 1019), alpha=(17,)),
    slot_frame("s9", 9, beta=(1020, 1021)),
    slot_frame("s10", 10, beta=(1022, 1023, 1024)),
    id_frame("i4", 2009),
    slot_frame("s11", 11, beta=(1025, 1026, 1027)),
    Frame("more", {"delta": (3023, 3024)}),
    slot_frame("u7", 15, 1, delta=(3025, 3026, 3027), alpha=(82,)),
    slot_frame("s12", 12, beta=(1028, 1029), alpha=(18,)),
    guid_frame("g4", beta=(1030, 1031, 1032)),
    slot_frame("t3", 3, 1, alpha=(19, 20), gamma=(2010,)),
)
AFTERWARDS = (
    slot_frame("z1", 1001, alpha=(90,), beta=(1090,), gamma=(2090,)),
    guid_frame("zg", beta=(1091, 1092), delta=(3090, 3091, 3092, 3093)),
    id_frame("zi", 2007, 2091),
)
"""What is sent after a recovery, to see that the store goes on."""

Note = Callable[["Frame", "FrameReceipt | None"], None]
"""Called with a frame before it is sent, and with its receipt after."""


def open_store(
    filesystem: Filesystem, clock: ManualClock, settings: Mapping[str, object] = NO_SETTINGS, directory: Path = STORE
) -> Store:
    """A store that does everything in the caller's thread."""
    return Store.open(directory, {**TINY, **settings}, filesystem=filesystem, clock=clock, inline=True)


def send(store: Store, frame: Frame, note: Note) -> FrameReceipt:
    """Hand a frame over and note both ends of the call."""
    note(frame, None)
    receipt = store.commit_frame(frame.entries(), identity=frame.identity)
    note(frame, receipt)
    return receipt


def run(
    disk: Filesystem,
    clock: ManualClock,
    note: Note,
    settings: Mapping[str, object] = NO_SETTINGS,
    directory: Path = STORE,
) -> Iterator[Store]:
    """The whole program, a step at a time: two sessions, repeats, a flush, a pause, a close. Yields the store."""
    for session in (FIRST_SESSION, SECOND_SESSION):
        store = open_store(disk, clock, settings, directory)
        yield store
        for number, frame in enumerate(session):
            send(store, frame, note)
            yield store
            if number == 4:
                send(store, session[0], note)  # a repeat
            if number == 6:
                clock.advance(60)  # whatever is open is now too old
        if session is FIRST_SESSION:
            store.flush()
            yield store
        for frame in FIRST_SESSION[:3]:
            send(store, frame, note)
        store.close()
    store = open_store(disk, clock, settings, directory)
    yield store
    store.close()
