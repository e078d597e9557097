"""Who is shown as connected, as away, and not at all."""

from __future__ import annotations

from holdfast.server.senders import FORGET_S, SENDERS_MAX, Senders
from holdfast.testing import ManualClock


def arrive(senders: Senders, slot: str) -> None:
    senders.arrive(slot, peer="peer", principal="somebody")


def test_sender_that_is_cut_off_is_away_until_it_comes_back() -> None:
    clock = ManualClock()
    senders = Senders(clock)
    arrive(senders, "a")
    senders.leave("a", goodbye=False)
    assert [item.connected for item in senders.current()] == [False]
    clock.advance(7)
    arrive(senders, "a")
    senders.replay("a", 3)
    (found,) = senders.current()
    assert (found.connected, found.outages, found.outage_s, found.replayed) == (True, 1, 7.0, 3)


def test_sender_that_says_goodbye_is_not_shown_any_more() -> None:
    senders = Senders(ManualClock())
    arrive(senders, "a")
    senders.leave("a", goodbye=True)
    assert senders.current() == ()


def test_old_connection_that_ends_late_does_not_make_its_sender_away() -> None:
    senders = Senders(ManualClock())
    arrive(senders, "a")
    arrive(senders, "a")
    senders.leave("a", goodbye=False)
    assert [item.connected for item in senders.current()] == [True]


def test_away_ones_come_first_and_are_forgotten_in_time() -> None:
    clock = ManualClock()
    senders = Senders(clock)
    arrive(senders, "a")
    arrive(senders, "b")
    senders.leave("b", goodbye=False)
    assert [item.slot_id for item in senders.current()] == ["b", "a"]
    clock.advance(FORGET_S + 1)
    assert [item.slot_id for item in senders.current()] == ["a"]


def test_list_is_bounded_and_those_away_longest_go_first() -> None:
    clock = ManualClock()
    senders = Senders(clock)
    for number in range(SENDERS_MAX + 10):
        arrive(senders, str(number))
        senders.leave(str(number), goodbye=False)
        clock.advance(1)
    found = senders.current()
    assert len(found) <= SENDERS_MAX
    assert str(SENDERS_MAX + 9) in {item.slot_id for item in found}
    assert "0" not in {item.slot_id for item in found}
