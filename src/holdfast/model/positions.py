"""Coordinates as types, so that a seq is never passed where an fsn is meant.

Numbers of events and frames start at 1; 0 means "before the first".
"""

from __future__ import annotations

from typing import NewType

Seq = NewType("Seq", int)
"""Position of an event in its channel."""

CommittedId = NewType("CommittedId", int)
"""Position of an event in the commit order of the whole store."""

Fsn = NewType("Fsn", int)
"""A producer's frame number in its slot."""

FSN_MAX = 2**63 - 1
"""The last one there is."""

SegmentSeq = NewType("SegmentSeq", int)
"""Store-wide number of a segment."""

LogPosition = NewType("LogPosition", int)
"""Byte position in the endless stream of an append log, across its files."""

ChannelId = NewType("ChannelId", int)
"""Short number of a channel inside one store; stands for its name in logs."""
