"""What happened in a run, and whether it may have happened: one checker for every test that breaks something.

A history is a list of happenings in the order in which somebody outside could have seen them: what was handed over,
what was answered, what readers got and said, what was found on a disk or in a bucket, and what broke. `check` names
everything in it that the guarantees exclude:

| kind | what was found |
|---|---|
| lost | accepted, kept by a producer, or told as durable, and not there |
| duplicate | stored twice, or sent to a reader again after its confirmation was told as durable |
| phantom | stored or delivered, and handed over by nobody, or refused for good |
| reorder | events of one producer in a channel, or deliveries of one session, in another order |
| position | one event at two places, or two events at one place |
| reused | two events at one place, the second one after a crash: the number was given out again |
| torn | a part of a frame |
| skip | seqs that nobody took away are missing, or a mark covers an event its reader never got |
| back | a mark moved back |
| hole | a mark covers an event that its reader never confirmed |
| undurable | told as durable, and not in the bucket |

Promise: a history that keeps the guarantees gives no finding; the time grows with the length of the history and of what
was read back. Nothing here knows how a run was made: the simulation, the crash disk and tests with real processes write
the same happenings.

| file | purpose |
|---|---|
| happenings.py | what can happen |
| stored.py | rules about what a store holds |
| readers.py | rules about what readers got and said |
| checker.py | `check`, `require`: a history against all rules |
"""

from __future__ import annotations

from holdfast.testing.history.checker import Finding, HistoryBroken, Kind, check, require
from holdfast.testing.history.happenings import (
    Accepted,
    Acked,
    Bucket,
    Crash,
    Delivered,
    Durable,
    Evicted,
    Happening,
    Joined,
    Kept,
    Mark,
    Refused,
    Restart,
    Row,
    Sent,
    Settled,
    Stored,
    Wiped,
)

__all__ = [
    "Accepted",
    "Acked",
    "Bucket",
    "Crash",
    "Delivered",
    "Durable",
    "Evicted",
    "Finding",
    "Happening",
    "HistoryBroken",
    "Joined",
    "Kept",
    "Kind",
    "Mark",
    "Refused",
    "Restart",
    "Row",
    "Sent",
    "Settled",
    "Stored",
    "Wiped",
    "check",
    "require",
]
