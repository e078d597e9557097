"""The manifest as a log: reading to its end, appending, fencing."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import DamagedObject, FencedOut, TierRefused, TierUnavailable
from holdfast.testing.objects import Fault, FaultyObjects, MemoryObjects
from holdfast.tier.journal import Journal, probe
from holdfast.tier.manifest import Entry, ManifestState, Reserved, checkpoint_key, encode, entry_key


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


def test_what_is_garbled_on_its_way_is_read_again() -> None:
    objects = MemoryObjects()
    state = filled(objects, 3)
    watched = FaultyObjects(objects)
    Journal(watched, nonce="x").load()
    reads = [number for number, request in enumerate(watched.requests) if request.startswith("read")]
    for number in reads[:3]:
        faulty = FaultyObjects(objects, {number: Fault.GARBLED, number + 1: Fault.PARTIAL})
        assert Journal(faulty, nonce="x").load().checkpoint() == state.checkpoint()


def test_what_reads_otherwise_each_time_is_no_damage_but_trouble() -> None:
    objects = MemoryObjects()
    filled(objects, 2)
    faults = [Fault.GARBLED, Fault.PARTIAL]
    with pytest.raises(TierUnavailable, match="different each time"):
        Journal(FaultyObjects(objects, lambda n: faults[n % 2] if n > 2 else None), nonce="x").load()


def test_a_torn_end_is_passed_over_by_the_entry_that_says_so() -> None:
    objects = MemoryObjects()
    filled(objects, 3)
    objects.objects[entry_key(4)] = b""
    objects.objects[entry_key(5)] = objects.objects[entry_key(3)][:-7]
    journal = Journal(objects, nonce="us")
    state = journal.load()
    assert (state.number, state.torn) == (3, 2)
    appended = journal.append(state, entry(4))
    assert (appended.number, appended.torn, state.number, state.previous) == (6, 2, 6, 3)
    assert Journal(objects, nonce="x").load().checkpoint() == state.checkpoint()


def test_an_entry_that_was_passed_over_counts_as_soon_as_it_can_be_read() -> None:
    objects = MemoryObjects()
    filled(objects, 3)
    whole, objects.objects[entry_key(3)] = objects.objects[entry_key(3)], b"torn"
    journal = Journal(objects, nonce="us")
    state = journal.load()
    journal.append(state, entry(3))
    objects.objects[entry_key(3)] = whole
    assert Journal(objects, nonce="x").load().number == 4


@pytest.mark.guarantee("G5")
def test_an_entry_that_nobody_said_is_torn_is_damage() -> None:
    objects = MemoryObjects()
    state = filled(objects, 3)
    objects.objects[entry_key(4)] = b"torn"
    Journal(objects, nonce="us").refresh(state)
    Journal(objects, nonce="us").append(state, entry(4))
    objects.objects[entry_key(3)] = b"torn"
    with pytest.raises(DamagedObject, match="manifest"):
        Journal(objects, nonce="x").load()


@pytest.mark.guarantee("G5")
def test_an_entry_of_a_later_release_at_the_end_is_never_taken_for_torn() -> None:
    objects = MemoryObjects()
    filled(objects, 3)
    objects.objects[entry_key(4)] = encode(msgspec.structs.replace(entry(4), format=99))
    with pytest.raises(DamagedObject, match="upgrade"):
        Journal(objects, nonce="x").load()


@pytest.mark.guarantee("G5")
def test_a_process_that_was_replaced_behind_a_torn_number_is_fenced_out() -> None:
    objects = MemoryObjects()
    state = filled(objects, 3)
    objects.objects[entry_key(4)] = b"torn"
    them = Journal(objects, nonce="them")
    them.append(them.load(), entry(4, "them", epoch=2))
    us = Journal(objects, nonce="us")
    with pytest.raises(TierUnavailable, match="no entry"):
        us.append(state, entry(4))
    with pytest.raises(FencedOut, match="epoch 2"):
        us.append(state, entry(4))


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
    Journal(objects, nonce="them").append(Journal(objects, nonce="them").load(), entry(4, "them", epoch=2))
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
