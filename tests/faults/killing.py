"""How often the kill loops kill: a few times in the quick profile, two thousand times in the long one.

`HOLDFAST_KILLS` is another number for the long one, for a look in between.
"""

from __future__ import annotations

import os

import pytest

LONG_KILLS = int(os.environ.get("HOLDFAST_KILLS", "2000"))
_HOURS = 3600
QUICK = pytest.mark.timeout(600)
"""For loops over processes: one wait inside may take a minute, as long as it takes to be sure that it never ends."""


def kill_counts(quick: int) -> pytest.MarkDecorator:
    """The parameter `kills` of a test."""
    few = pytest.param(quick, marks=QUICK)
    long = pytest.param(LONG_KILLS, marks=[pytest.mark.long, pytest.mark.timeout(4 * _HOURS)])
    return pytest.mark.parametrize("kills", [few, long], ids=lambda kills: f"{kills} kills")


def profile_of(kills: int, quick: int) -> str:
    """For the figures."""
    return "quick" if kills == quick else "long"
