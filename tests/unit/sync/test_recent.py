"""The newest events in memory: a window that says when it is too short."""

from __future__ import annotations

from holdfast.sync.recent import Recent
from holdfast.wire.sync import Committed


def event(number: int, *scopes: str, payload: bytes = b"{}") -> Committed:
    return Committed(number, f"e{number}", scopes or ("P1",), "note", payload, "A", 0, scopes=scopes or ("P1",))


def test_window_gives_all_that_came_after_a_position() -> None:
    recent = Recent(10, bytes_max=1 << 20)
    for number in (11, 15, 16):
        recent.add(event(number))
    assert [one.committed_id for one in recent.since(10) or ()] == [11, 15, 16]
    assert [one.committed_id for one in recent.since(14) or ()] == [15, 16]
    assert recent.since(16) == []
    assert recent.since(9) is None


def test_window_is_bounded_in_bytes_and_keeps_the_newest() -> None:
    recent = Recent(0, bytes_max=10_000)
    for number in range(1, 101):
        recent.add(event(number, payload=b"x" * 1000))
    assert recent.size_bytes <= 10_000
    assert recent.since(0) is None
    assert recent.find("e1") is None
    assert recent.find("e100") is not None
    recent.add(event(101, payload=b"x" * 50_000))
    assert [one.committed_id for one in recent.since(100) or ()] == [101]
    assert len(recent) == 1


def test_last_of_scopes_is_found_from_the_end() -> None:
    recent = Recent(0, bytes_max=1 << 20)
    for number, scope in ((1, "P1"), (2, "P2"), (3, "P1")):
        recent.add(event(number, scope))
    assert (recent.last_of(frozenset({"P2"})), recent.last_of(frozenset({"P9"}))) == (2, 0)
