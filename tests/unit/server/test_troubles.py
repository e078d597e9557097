"""Which refusals are kept for people."""

from __future__ import annotations

from holdfast.server.troubles import MESSAGE_CHARS_MAX, TROUBLES_MAX, Troubles
from holdfast.testing import ManualClock


def test_newest_come_first_and_the_oldest_are_forgotten() -> None:
    troubles = Troubles(ManualClock())
    for number in range(TROUBLES_MAX + 5):
        troubles.note("WRITE_ERROR", f"number {number}", peer="p")
    found = troubles.current()
    assert len(found) == TROUBLES_MAX
    assert (found[0].id, found[0].message) == (TROUBLES_MAX + 5, f"number {TROUBLES_MAX + 4}")
    assert found[-1].id == 6


def test_long_words_of_a_peer_are_cut() -> None:
    troubles = Troubles(ManualClock())
    troubles.note("PARSE_ERROR", "x" * 10_000, peer="p")
    assert len(troubles.current()[0].message) == MESSAGE_CHARS_MAX
