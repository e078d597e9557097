"""The comparison of what was accepted with what is stored. Pure.

Promise: for each channel every accepted event is looked for, and every stored event is accounted for:

    lost           accepted, and not stored
    duplicated     stored again: copies beyond the first
    out of order   stored behind an event that was sent later
    moved          not under the seq that its receipt named
    altered        stored with another value than was sent
    invented       stored, and never sent

Ids of a channel are 1, 2, 3 … in the order of sending.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AcceptedRows:
    """Accepted events: their ids, and the seq that each receipt named."""

    ids: Ints
    seqs: Ints


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Stored events in the order of reading: their ids and seqs, and how many do not have the value that was sent."""

    ids: Ints
    seqs: Ints
    altered: int = 0


@dataclass(frozen=True, slots=True)
class ChannelResult:
    """One channel's line of the proof, in events."""

    channel: str
    sent: int
    accepted: int
    stored: int
    lost: int
    duplicated: int
    out_of_order: int
    moved: int
    altered: int
    invented: int

    @property
    def flawless(self) -> bool:
        """Whether every accepted event is there once, in order, as it was sent."""
        flaws = (self.lost, self.duplicated, self.out_of_order, self.moved, self.altered, self.invented)
        return not any(flaws)


def compare(channel: str, *, sent: int, accepted: AcceptedRows, stored: StoredRows) -> ChannelResult:
    """Compare one channel. Ids 1 to `sent` were sent at least once."""
    known = (stored.ids >= 1) & (stored.ids <= sent)
    ids, seqs = stored.ids[known], stored.seqs[known]
    copies = np.bincount(ids, minlength=sent + 1)
    first_seq = np.full(sent + 1, -1, dtype=np.int64)
    first_seq[ids[::-1]] = seqs[::-1]  # of several copies the first one stays
    there = copies[accepted.ids] > 0
    return ChannelResult(
        channel=channel,
        sent=sent,
        accepted=len(accepted.ids),
        stored=len(stored.ids),
        lost=int(np.count_nonzero(~there)),
        duplicated=int(np.sum(np.maximum(copies - 1, 0))),
        out_of_order=int(np.count_nonzero(ids < np.maximum.accumulate(ids))) if len(ids) else 0,
        moved=int(np.count_nonzero(first_seq[accepted.ids[there]] != accepted.seqs[there])),
        altered=stored.altered,
        invented=len(stored.ids) - len(ids),
    )
