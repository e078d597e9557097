"""Entries of the manifest: their bytes, and their sum."""

from __future__ import annotations

import pytest

from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.subscribers.notes import ProgressNote, Snapshot, SubscriberNote
from holdfast.tier.manifest import (
    ChannelNote,
    Entry,
    ManifestState,
    Reserved,
    SegmentNote,
    decode,
    encode,
    entry_key,
    segment_key,
)

META = SegmentMeta("5a" * 16, "trades", 4, 1, 3, 7, 9, 100, 200, None, None, "hash", 3)
SEGMENT = SegmentNote(1, segment_key("trades", 4, "ab" * 32), 512, 99, "ab" * 32, True, META, {"cd" * 16: [(0, 2)]})
READERS = Snapshot(2, (SubscriberNote(1, "s", ("*",), False, 5),), (ProgressNote(1, 1, 1, ((1, 2),)),))
ENTRY = Entry(
    1,
    "open",
    "5a" * 16,
    1,
    "n",
    1000,
    1,
    added=(SEGMENT,),
    channels=(ChannelNote(1, "trades", 4, 1, b"\x00\xff"),),
    reserved=Reserved(100, 110, 104, 1),
    readers=READERS,
)
VECTOR = (
    b'{"crc32c":"19180583","body":{"number":1,"kind":"open","store_id":"00","epoch":1,"nonce":"n","at_ns":1000,'
    b'"format":1,"channels":[{"channel_id":1,"name":"trades","next_seq":4,"schema":"AP8="}],"reserved":{"window":100,'
    b'"committed_id":110,"segment_seq":104,"birth_seq":1}}}'
)
VECTOR_ENTRY = Entry(
    1,
    "open",
    "00",
    1,
    "n",
    1000,
    1,
    channels=(ChannelNote(1, "trades", 4, 1, b"\x00\xff"),),
    reserved=Reserved(100, 110, 104, 1),
)


def follow(entry: Entry, **changes: object) -> Entry:
    fields = {"number": entry.number + 1, "kind": "progress", "store_id": entry.store_id, "epoch": entry.epoch}
    return Entry(**{**fields, "nonce": entry.nonce, "at_ns": entry.at_ns, "format": 1, **changes})  # type: ignore[arg-type]


def test_an_entry_comes_back_as_it_was_written() -> None:
    assert decode(encode(ENTRY)) == ENTRY


def test_the_bytes_of_an_entry_never_change() -> None:
    assert encode(VECTOR_ENTRY) == VECTOR
    assert decode(VECTOR) == VECTOR_ENTRY


def test_every_flipped_bit_of_an_entry_is_found() -> None:
    data = encode(ENTRY)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        try:
            found = decode(bytes(damaged))
        except ValueError:
            continue
        assert found == ENTRY, position  # only where JSON means the same


def test_an_entry_of_a_later_format_is_refused() -> None:
    with pytest.raises(ValueError, match="upgrade holdfast"):
        decode(encode(follow(ENTRY, format=2)))


def test_a_gap_in_the_numbers_is_refused() -> None:
    state = ManifestState.of([ENTRY])
    with pytest.raises(ValueError, match="does not follow"):
        state.apply(follow(ENTRY, number=3))


def test_entries_of_another_store_are_refused() -> None:
    state = ManifestState.of([ENTRY])
    with pytest.raises(ValueError, match="is of store"):
        state.apply(follow(ENTRY, store_id="77" * 16))


def test_a_checkpoint_stands_for_all_entries_before_it() -> None:
    second = follow(ENTRY, removed=(4,), channels=(ChannelNote(1, "trades", 9),))
    whole = ManifestState.of([ENTRY, second])
    again = ManifestState.of([decode(encode(whole.checkpoint()))])
    assert again.checkpoint() == whole.checkpoint()
    third = follow(second, number=3)
    whole.apply(third)
    again.apply(third)
    assert again.checkpoint() == whole.checkpoint()


def test_frames_of_removed_segments_stay_known() -> None:
    state = ManifestState.of([ENTRY, follow(ENTRY, removed=(4,))])
    assert state.segments == {}
    assert list(state.slots["cd" * 16]) == [(0, 2)]


def test_a_channel_keeps_its_schema_when_only_its_number_moved() -> None:
    state = ManifestState.of([ENTRY, follow(ENTRY, channels=(ChannelNote(1, "trades", 9),))])
    assert state.channels[1] == ChannelNote(1, "trades", 9, 1, b"\x00\xff")


def test_names_of_entries_sort_as_their_numbers_do() -> None:
    assert entry_key(9) < entry_key(10) < entry_key(10**15) < "manifest/checkpoint-"
