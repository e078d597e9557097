"""Frames of one producer that are in flight together.

Promise: once the store refuses a frame of a lane, it refuses every frame of that lane behind it that is not stored
already, for the same reason. A producer that sends again from the refused one keeps its order (G4). Lanes that share a
train know nothing of each other: what is refused in one is stored in another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.errors import HoldfastError


class Lane:
    """One per producer and connection; after a refusal the producer takes a new one. Changed by the committer only.

    `told` is called on the committer's thread when something of the lane was answered; it must not wait.
    """

    __slots__ = ("_told", "refusal")

    def __init__(self, told: Callable[[], object] | None = None) -> None:
        self.refusal: HoldfastError | None = None
        self._told = told

    def refuse(self, error: HoldfastError) -> None:
        """Nothing more of it is stored. The first reason stays."""
        if self.refusal is None:
            self.refusal = error

    def tell(self) -> None:
        """Something of it was answered."""
        if self._told is not None:
            self._told()

    def shares(self, frames: int) -> Sequence[tuple[Lane, int]]:
        """Whose the frames of a train are: so many of each lane, one lane after the other."""
        return ((self, frames),)


class Lanes(Lane):
    """The lanes of a train that has frames of several."""

    __slots__ = ("_shares",)

    def __init__(self, shares: Sequence[tuple[Lane, int]]) -> None:
        super().__init__()
        self._shares = shares

    def refuse(self, error: HoldfastError) -> None:
        """Nothing more of any of them is stored."""
        for lane, _ in self._shares:
            lane.refuse(error)

    def tell(self) -> None:
        """Something of each of them was answered."""
        for lane, _ in self._shares:
            lane.tell()

    def shares(self, frames: int) -> Sequence[tuple[Lane, int]]:
        """As they were given; there are no other frames on the train."""
        assert sum([count for _, count in self._shares]) == frames
        return self._shares
