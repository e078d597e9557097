"""What a validator is.

The writer calls `begin` before a batch, `judge` for each item in order, and `keep` with what was committed of it. A
batch that was not committed is followed by the next `begin`, so what `judge` assumed must not outlive it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.wire.sync import Committed, Item, Refusal


class Validator(Protocol):
    """Judges items, one batch at a time, on the writer's thread."""

    def begin(self) -> None:
        """A batch begins; what was judged before and not kept did not happen."""

    def judge(self, item: Item) -> Refusal | None:
        """Why the item may not be committed; if it may, the next is judged as if it were."""

    def keep(self, committed: Sequence[Committed]) -> None:
        """What was judged good is in the log."""


class AnyEvent:
    """Takes everything."""

    def begin(self) -> None:
        """Nothing to prepare."""

    def judge(self, _item: Item) -> Refusal | None:
        """Never a refusal."""
        return None

    def keep(self, _committed: Sequence[Committed]) -> None:
        """Nothing to remember."""
