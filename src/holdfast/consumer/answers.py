"""Acknowledgements on their way: collected while the application works, sent together.

An ack without a wait costs its caller an append; the loop sends all that came within `LINGER_S`, or as soon as half of
what may be in flight is acknowledged, as runs of seqs. They are not kept over a lost connection.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from holdfast.wire.consume import RANGES_MAX, Range

LINGER_S = 0.001


class Answers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[list[int]] = []
        self._count = 0
        self._is_scheduled = False

    def add(self, ranges: Sequence[Range], *, hurry_at: int) -> bool | None:
        """Collect; True when sending is to be scheduled now, False when it is, None when it must not linger."""
        with self._lock:
            runs = self._runs
            for first, last in ranges:
                self._count += last - first + 1
                if runs and runs[-1][1] + 1 == first:
                    runs[-1][1] = last
                else:
                    runs.append([first, last])
            if self._count >= hurry_at or len(runs) >= RANGES_MAX:
                self._is_scheduled = True
                return None
            if self._is_scheduled:
                return False
            self._is_scheduled = True
            return True

    def take(self) -> list[tuple[Range, ...]]:
        """All there is, as messages may carry them."""
        with self._lock:
            runs, self._runs = self._runs, []
            self._count, self._is_scheduled = 0, False
        found = [(first, last) for first, last in runs]
        return [tuple(found[at : at + RANGES_MAX]) for at in range(0, len(found), RANGES_MAX)]
