"""Time is an argument: the one seam through which Holdfast reads clocks.

Promise: `monotonic_ns` never goes back and drives every timeout; `wall_ns` is data (ingestion times) and drives none.
Relies on the operating system. `holdfast.testing.ManualClock` is the fake that tests advance by hand.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

NS_PER_S = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Where time comes from."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 UTC; may jump."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary start; never goes back."""


class SystemClock:
    """The machine's clocks."""

    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


def wall_ns_of(moment: datetime) -> int:
    """Nanoseconds since 1970 UTC of a time, exactly; `timestamp()` is a float and misses by a microsecond at times."""
    aware = moment if moment.tzinfo is not None else moment.astimezone()
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000
