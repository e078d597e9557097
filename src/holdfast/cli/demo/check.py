"""The comparison of what was promised with what arrived. Pure.

Promise: of each channel every event whose `flush` returned is looked for in each place, and every event found there is
accounted for:

    lost           promised, and not there
    duplicated     there again: copies beyond the first
    out of order   behind an event that was sent later
    altered        there with another value than was sent
    invented       there, and never sent
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Found:
    """Events of a channel in one place, in the order of reading; how many do not have the value that was sent."""

    ids: Ints
    altered: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One channel in one place, in events."""

    channel: str
    place: str
    found: int
    lost: int
    duplicated: int
    out_of_order: int
    altered: int
    invented: int

    def flaws(self, *, may_repeat: bool) -> int:
        """What breaks the promise of that place; a consumer may get an event again that it had not confirmed."""
        repeats = 0 if may_repeat else self.duplicated + self.out_of_order
        return self.lost + self.altered + self.invented + repeats


def compare(channel: str, place: str, *, promised: int, sent: int, found: Found) -> Comparison:
    """Compare one channel in one place. Ids 1 to `promised` must be there; up to `sent` they may."""
    known = (found.ids >= 1) & (found.ids <= sent)
    ids = found.ids[known]
    copies = np.bincount(ids, minlength=sent + 1)
    return Comparison(
        channel=channel,
        place=place,
        found=len(found.ids),
        lost=int(np.count_nonzero(copies[1 : promised + 1] == 0)),
        duplicated=int(np.sum(np.maximum(copies - 1, 0))),
        out_of_order=int(np.count_nonzero(ids < np.maximum.accumulate(ids))) if len(ids) else 0,
        altered=found.altered,
        invented=len(found.ids) - len(ids),
    )
