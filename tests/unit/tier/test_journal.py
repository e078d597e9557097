"""The manifest as a log: reading to its end, appending, fencing."""

from __future__ import annotations

import pytest

from holdfast.errors import DamagedObject, FencedOut, TierRefused, TierUnavailable
from holdfast.testing.objects import Fault, FaultyObjects, MemoryObjects
from holdfast.tier.journal import Journal, probe
from holdfast.tier.manifest import Entry, ManifestState, Reserved, checkpoint_key, entry_key


def entry(number: int, nonce: str = "us", *, epoch: int = 1, at_ns: int = 0) -> Entry:
    kind = "open" if number == 1 else "progress"
    return Entry(number, kind, "00", epoch, nonce, at_ns or number, 1, reserved=Reserved(1, number, 1, 1))  # type: ignore[arg-type]


def filled(objects: MemoryObjects, count: int) -> ManifestState:
    journal, state = Journal(objects, nonce="us"), ManifestState()
    for number in range(1, count + 1):
        journal.append(state, entry(number))
    return state


def test_what_was_appended_is_read_back_in_order() -> None:
    objects = MemoryObjects()
    state = filled(objects, 25)
    assert Journal(objects, nonce="x").load().checkpoint() == state.checkpoint()


def test_a_checkpoint_saves_reading_the_entries_before_it() -> None:
    objects = MemoryObjects()
    state = filled(objects, 10)
    journal = Journal(objects, nonce="us")
    journal.write_checkpoint(state)
    journal.append(state, entry(11))
    watched = FaultyObjects(objects)
    assert Journal(watched, nonce="x").load().number == 11
    assert not any(entry_key(5) in request for request in watched.requests)


def test_a_damaged_checkpoint_costs_time_and_nothing_else() -> None:
    objects = MemoryObjects()
    state = filled(objects, 10)
    Journal(objects, nonce="us").write_checkpoint(state)
    objects.objects[checkpoint_key(10)] = b"{}"
    assert Journal(objects, nonce="x").load().checkpoint() == state.checkpoint()


def test_entries_that_a_stale_list_leaves_out_are_found_by_name() -> None:
    class Stale(MemoryObjects):
        def names(self, folder: str, *, after: str = ""):  # type: ignore[no-untyped-def]
            return (name for name in super().names(folder, after=after) if name <= entry_key(3))

    objects = Stale()
    filled(objects, 7)
    assert Journal(objects, nonce="x").load().number == 7


def test_a_missing_entry_in_the_middle_is_damage() -> None:
    objects = MemoryObjects()
    filled(objects, 5)
    objects.remove(entry_key(3))
    with pytest.raises(DamagedObject, match="0003"):
        Journal(objects, nonce="x").load()


def test_a_garbled_entry_is_damage() -> None:
    objects = MemoryObjects()
    filled(objects, 3)
    objects.objects[entry_key(2)] = objects.objects[entry_key(2)].replace(b'"epoch":1', b'"epoch":9')
    with pytest.raises(DamagedObject, match="checksum"):
        Journal(objects, nonce="x").load()


def test_reading_stops_at_a_chosen_entry() -> None:
    objects = MemoryObjects()
    state = filled(objects, 9)
    journal = Journal(objects, nonce="us")
    journal.write_checkpoint(state)
    assert journal.load(until=lambda item: item.number <= 4).number == 4
    assert journal.load(until=lambda item: item.number <= 9).number == 9


def test_an_append_whose_answer_was_lost_succeeds_when_repeated() -> None:
    objects = MemoryObjects()
    journal, state = Journal(FaultyObjects(objects, {0: Fault.AFTER}), nonce="us"), ManifestState()
    with pytest.raises(TierUnavailable):
        journal.append(state, entry(1))
    journal.append(state, entry(1))
    assert (state.number, list(objects.objects)) == (1, [entry_key(1)])


@pytest.mark.guarantee("G5")
def test_a_process_that_was_replaced_is_fenced_out() -> None:
    objects = MemoryObjects()
    state = filled(objects, 3)
    Journal(objects, nonce="them").try_append(entry(4, "them", epoch=2))
    before = dict(objects.objects)
    with pytest.raises(FencedOut, match="epoch 2") as caught:
        Journal(objects, nonce="us").append(state, entry(4))
    assert (caught.value.epoch, caught.value.later_epoch) == (1, 2)
    assert objects.objects == before
    assert state.number == 3


def test_a_store_that_overwrites_is_refused_and_told_why() -> None:
    with pytest.raises(TierRefused, match=r"tier\.fencing: none"):
        probe(MemoryObjects(overwrites=True), nonce="us", fencing="conditional")


def test_a_store_that_overwrites_is_taken_when_somebody_says_so() -> None:
    probe(MemoryObjects(overwrites=True), nonce="us", fencing="none")


def test_the_probe_leaves_nothing_behind() -> None:
    objects = MemoryObjects()
    probe(objects, nonce="us", fencing="conditional")
    assert objects.objects == {}
