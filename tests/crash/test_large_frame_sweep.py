"""Every byte of the file that holds large frames: flipped, and cut. The log knows what was synced; nothing is believed.

The quick profile has these sweeps with a sample of the bytes here and in test_large_frame_damage.py.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast.errors import CorruptData
from tests.crash.sweeps import every, flipped
from tests.crash.test_large_frame_damage import ROOMY, victim
from tests.crash.workload import open_store


@pytest.mark.guarantee("G9")
@every(211)
def test_flipped_byte_of_an_accepted_large_frame_is_refused_with_its_place(step: int) -> None:
    """All but the last frame: the log says that it was synced past them."""
    for reference in victim().references[:-1]:
        for offset in range(reference.offset_bytes, reference.end_bytes, step):
            disk = victim().with_file(flipped(victim().data, offset))
            with pytest.raises(CorruptData, match="checksum") as caught:
                open_store(disk, victim().clock, ROOMY)
            assert (caught.value.file, caught.value.offset_bytes) == (victim().path, reference.offset_bytes)


@pytest.mark.guarantee("G9")
@every(211)
def test_flipped_byte_of_the_last_large_frame_is_refused_or_the_frame_cut_and_told(step: int) -> None:
    last = victim().references[-1]
    for offset in range(last.offset_bytes, last.end_bytes, step):
        disk = victim().with_file(flipped(victim().data, offset))
        with suppress(CorruptData):
            assert victim().check(disk, victim().without_last()), f"byte {offset}"


@pytest.mark.guarantee("G4")
@every(607)
def test_file_that_ends_inside_the_last_large_frame_loses_that_frame_only(step: int) -> None:
    last = victim().references[-1]
    for size in range(last.offset_bytes, last.end_bytes, step):
        assert victim().check(victim().with_file(victim().data[:size]), victim().without_last())


@pytest.mark.guarantee("G9")
@every(607)
def test_file_that_ends_inside_an_accepted_large_frame_is_refused(step: int) -> None:
    """The log says that more of it was synced."""
    for reference in victim().references[:-1]:
        for size in range(reference.offset_bytes, reference.end_bytes, step):
            with pytest.raises(CorruptData) as caught:
                open_store(victim().with_file(victim().data[:size]), victim().clock, ROOMY)
            assert caught.value.file == victim().path
