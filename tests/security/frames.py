"""Frames that no encoder of ours would write."""

from __future__ import annotations

import pyarrow as pa

from holdfast.model.frame import Entry
from holdfast.wire import hfa

NAME_BYTES_MAX = 120


def raw_frame(channel: str) -> bytes:
    """A frame whose channel has any name at all, cut to what a frame can hold."""
    name = channel.encode()[:NAME_BYTES_MAX]
    entry = Entry("c" * len(name), pa.record_batch({"n": pa.array([1], pa.int64())}))
    frame = b"".join(hfa.encode([entry], slot_id=None, fsn=0, guid=None))
    return frame.replace(entry.channel.encode(), name, 1)
