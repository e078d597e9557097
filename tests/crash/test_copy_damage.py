"""Damage to a copy of a segment that is only in the tier: no byte of it is believed, and another copy is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import CorruptData
from holdfast.store.copies import Copies
from tests.crash.sweeps import every, flipped
from tests.unit.store.test_copies import Shelf


class Victim:
    """A shelf with one copy, to be damaged again and again between two processes."""

    def __init__(self, folder: Path) -> None:
        self.shelf = Shelf(folder, events=40, count=1)
        (self.segment,) = self.shelf.segments
        self.right = self.read(self.shelf.copies)
        (self.path,) = self.shelf.files()
        self.data = self.path.read_bytes()

    def read(self, copies: Copies) -> list[object]:
        """Its rows, and nothing that is mapped: the file is overwritten in place."""
        with copies.open(self.segment, None) as reader:
            return [row for _, batch in reader.batches() for row in batch.to_pylist()]

    def damage_in(self, copies: Copies) -> Path | None:
        """The file that is refused; what is not refused must be right."""
        try:
            found = self.read(copies)
        except CorruptData as error:
            return error.file
        assert found == self.right
        return None

    def is_refused(self, data: bytes) -> bool:
        """Whether the next process refuses this copy by its name; then, as always, it reads what is right."""
        self.path.write_bytes(data)
        copies = self.shelf.opened()
        refused = self.damage_in(copies)
        assert refused in {None, self.path}
        assert self.read(copies) == self.right, "another copy is fetched"
        return refused is not None


@pytest.mark.guarantee("G9")
@every(37)
def test_changed_byte_of_a_copy_is_refused_and_another_copy_fetched(step: int, tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    fetched = len(victim.shelf.source.copied)
    damages = range(0, len(victim.data), step)
    for at in damages:
        assert victim.is_refused(flipped(victim.data, at)), f"byte {at}"
    assert len(victim.shelf.source.copied) == fetched + len(damages)


@pytest.mark.guarantee("G9")
@every(37)
def test_copy_that_ends_early_is_not_taken_over(step: int, tmp_path: Path) -> None:
    victim = Victim(tmp_path)
    for size in range(0, len(victim.data), step):
        assert not victim.is_refused(victim.data[:size]), f"cut at {size}"
        assert victim.is_refused(victim.data[:size].ljust(len(victim.data), b"\0")) or not any(victim.data[size:])
