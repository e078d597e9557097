"""Frames of one producer that are in flight together.

Promise: once the store refuses a frame of a lane, it refuses every frame of that lane behind it that is not stored
already, for the same reason. A producer that sends again from the refused one keeps its order (G4).
"""

from __future__ import annotations

from holdfast.errors import HoldfastError


class Lane:
    """One per producer and connection; after a refusal the producer takes a new one. Changed by the committer only."""

    __slots__ = ("refusal",)

    def __init__(self) -> None:
        self.refusal: HoldfastError | None = None
