"""What was handed to a sender and is not in a frame yet: per channel and partitions, in order.

Rows are kept as they came and become columns when they are taken, all at once. Batches are kept as they are. Not
thread-safe; the sender takes turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.errors import SchemaMismatch
from holdfast.model.frame import Entry
from holdfast.sender.rows import NAME_BYTES_MAX, Row, RowShape, check_names, size_of, size_of_batch

Place: TypeAlias = tuple[str, tuple[str, ...]]
CONVERTED_ROWS_MIN = 64
"""Rows of one call that become a batch at once; fewer are collected, because each batch costs as much as many rows."""
CHANNELS_MAX = 10_000
"""Channels whose columns are remembered; beyond, they are forgotten and learnt again."""


class Pending:
    """Rows and batches not yet in a frame."""

    def __init__(self, *, name_bytes_max: int = NAME_BYTES_MAX) -> None:
        self._name_bytes_max = name_bytes_max
        self._pieces: dict[Place, list[Any]] = {}  # a list of rows, or a batch
        self._shapes: dict[str, RowShape] = {}
        self.rows = 0
        self.size_bytes = 0

    def add_rows(self, place: Place, rows: Sequence[Row], *, is_at: bool = False) -> None:
        """Rows, or none of them and `SchemaMismatch`. The caller may change its rows afterwards."""
        pieces = self._pieces.get(place)
        run = pieces[-1] if pieces and type(pieces[-1]) is list else None
        shape = self._shapes.get(place[0]) or self._new_shape(place[0])
        try:
            shape.check(rows, place=len(run) if run else 0, is_at=is_at)
        except SchemaMismatch:
            if self._has_rows(place[0]):
                raise
            shape.forget()  # what was sent before may differ; the server decides
            shape.check(rows, place=0, is_at=is_at)
        if len(rows) >= CONVERTED_ROWS_MIN:
            self.add_batches(place, [shape.batch([row if type(row) is dict else dict(row) for row in rows])])
            return
        if run is None:
            run = []
            self._pieces.setdefault(place, []).append(run)
        run.extend(deepcopy(rows) if shape.has_nested else map(dict, rows))
        self.rows += len(rows)
        self.size_bytes += sum(map(size_of, rows))

    def add_batches(self, place: Place, batches: Sequence[pa.RecordBatch]) -> None:
        """Batches, behind what is there."""
        for batch in batches[:1]:  # all of one call have the same columns
            check_names(place[0], batch.schema.names, self._name_bytes_max)
        for batch in batches:
            if batch.num_rows:
                self._pieces.setdefault(place, []).append(batch)
                self.rows += batch.num_rows
                self.size_bytes += size_of_batch(batch)

    def _new_shape(self, channel: str) -> RowShape:
        if len(self._shapes) >= CHANNELS_MAX:
            held = {place[0] for place in self._pieces}
            self._shapes = {name: shape for name, shape in self._shapes.items() if name in held}
        return self._shapes.setdefault(channel, RowShape(channel, name_bytes_max=self._name_bytes_max))

    def _has_rows(self, channel: str) -> bool:
        return any(
            type(piece) is list for place, pieces in self._pieces.items() if place[0] == channel for piece in pieces
        )

    def entries(self) -> list[Entry]:
        """Everything, as entries of frames; it stays here until `clear`. `InvalidBatch` if rows cannot be converted."""
        return [
            Entry(channel, self._shapes[channel].batch(piece) if type(piece) is list else piece, partitions)
            for (channel, partitions), pieces in self._pieces.items()
            for piece in pieces
        ]

    def clear(self) -> None:
        """All of it is in frames now."""
        self._pieces = {}
        self.rows = self.size_bytes = 0

    def restore(self, entries: Sequence[Entry]) -> None:
        """Put back what found no room, before everything that came since."""
        later, self._pieces = self._pieces, {}
        for entry in entries:
            self.add_batches((entry.channel, entry.partitions), [entry.batch])
        for place, pieces in later.items():
            self._pieces.setdefault(place, []).extend(pieces)

    def take(self, channel: str) -> list[Any]:
        """Remove and return what is pending for a channel: rows as they came, and batches."""
        taken: list[Any] = []
        for place in [place for place in self._pieces if place[0] == channel]:
            for piece in self._pieces.pop(place):
                taken += piece if type(piece) is list else [piece]
        self.rows = sum(len(piece) for pieces in self._pieces.values() for piece in pieces)
        self.size_bytes = sum(
            sum(map(size_of, piece)) if type(piece) is list else size_of_batch(piece)
            for pieces in self._pieces.values()
            for piece in pieces
        )
        return taken
