"""A whole sender, with its threads, on a disk that loses power: what `flush` returned for is in the slot afterwards.

Power loss, at every call of a sender's first events; which thread makes the call is left to chance, and what must hold
does not depend on it. The next sender takes over what is left, and goes on.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import HoldfastError
from holdfast.sender.recovery import NOTHING
from holdfast.sender.ring import Ring
from holdfast.sender.sender import Sender
from holdfast.sender.slot import Slot
from holdfast.sender.substrate import RingOptions
from holdfast.testing import CrashFilesystem, PowerCut
from holdfast.wire import hfa
from holdfast.wire.limits import FrameLimits

SF_DIR = Path("/sf")
EVENTS = 30
CUTS = range(1, 120, 2)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of threads cut short


def live(disk: CrashFilesystem, durability: str, first: int) -> int:
    """Send event after event until the power goes or all are sent; the last one whose `flush` returned."""
    flushed = first - 1
    sender: Sender | None = None
    with suppress(PowerCut, HoldfastError):
        sender = Sender(
            addr="127.0.0.1:1", initial_connect_retry="async", reconnect_initial_backoff_millis=5000,
            sf_dir=str(SF_DIR), sf_durability=durability, sf_max_segment_bytes=1024, auto_flush=False,
            close_flush_timeout_millis=0, filesystem=disk,
        )  # fmt: skip
        for n in range(first, first + EVENTS):
            sender.send("t", {"n": n})
            sender.flush()
            flushed = n
    if sender is not None:
        with suppress(PowerCut, HoldfastError):
            sender.close()
    return flushed


def stored(disk: CrashFilesystem) -> list[int]:
    """The events in the slot."""
    slot = Slot.open(SF_DIR / "default", filesystem=disk, clock=SystemClock(), writing=False)
    ring = Ring(slot, RingOptions(), clock=SystemClock(), threaded=False)
    assert ring.acked_fsn == NOTHING
    with ring.cursor(0) as cursor:
        frames = [hfa.decode(frame.payload, FrameLimits()) for frame in cursor.until(ring.published_fsn)]
    found = [value for frame in frames for entry in frame.entries for value in entry.batch.column("n").to_pylist()]
    ring.close()
    return found


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("durability", ["flush", "append"])
def test_power_cut_under_a_sender_loses_no_event_whose_flush_returned(durability: str) -> None:
    flushed_before = []
    for call in CUTS:
        disk = CrashFilesystem()
        disk.cut_at(call)
        flushed = live(disk, durability, 0)
        flushed_before.append(flushed)
        left = disk.after_power_cut(call)
        again = live(left, durability, 1000)
        found = stored(left.after_power_cut(call + 1))
        old = [n for n in found if n < 1000]
        assert old == list(range(len(old)))
        assert len(old) > flushed, f"event {flushed} was flushed before the cut at call {call}"
        assert found[len(old) :] == list(range(1000, again + 1))
    assert max(flushed_before) > 5
    assert min(flushed_before) == -1
