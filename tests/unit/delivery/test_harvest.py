"""Turns of a feed over a real store: every owed message that passes, once, in order, within what was offered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Store
from holdfast.delivery.filters import Filter
from holdfast.delivery.groups import Offer
from holdfast.delivery.harvest import Cut, Harvest, Shape, Wish, harvest
from holdfast.delivery.pieces import Pieces
from holdfast.store.subscribers.handing import Place
from holdfast.store.subscribers.progress import Outcome
from holdfast.testing import CrashFilesystem
from holdfast.testing.objects import MemoryObjects
from holdfast.wire.consume import Deliver, Delivery
from tests.unit.tier.rig import Rig

ROOM = 1 << 20
NUMBERS = count()


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """One for all examples; each has a channel of its own."""
    settings = {"max_channels": 0, "retention.tick": "1h"}
    with Store.open("/data", settings, filesystem=CrashFilesystem(), inline=True) as opened:
        yield opened


def numbers_of(cut: Cut) -> list[int]:
    """The column `n` of a cut, read as a consumer would."""
    delivery = Delivery(Deliver(sub=1, ranges=cut.ranges), memoryview(cut.body))
    found: list[int] = delivery.batch().column("n").to_pylist()
    return found


def seqs_of(cut: Cut) -> list[int]:
    return [seq for first, last in cut.ranges for seq in range(first, last + 1)]


def fill(store: Store, frames: list[tuple[int, bool]], channel: str = "trades") -> int:
    """Frames of so many rows, published or not; a row's number is ten times its seq. Returns the last seq."""
    seq = 0
    for rows, publish in frames:
        store.commit(channel, pa.record_batch({"n": [10 * (seq + row) for row in range(1, rows + 1)]}))
        seq += rows
        if publish:
            store.flush()
    return seq


FRAMES = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=8)
OFFERS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), min_size=1, max_size=4)


@given(FRAMES, OFFERS, st.sets(st.integers(1, 60)), st.sets(st.integers(1, 60), min_size=1), st.booleans())
def test_turns_bring_every_owed_message_that_passes_once_and_in_order(
    store: Store,
    frames: list[tuple[int, bool]],
    offered: list[tuple[int, int]],
    confirmed: set[int],
    wanted: set[int],
    filtered: bool,
) -> None:
    channel = f"channel-{next(NUMBERS)}"
    last = fill(store, frames, channel)
    port, pieces = store.handing, Pieces(store.handing)
    place = port.join(channel, channel, start="first", others=0)
    done = [(seq, seq) for seq in sorted(confirmed) if seq <= last]
    port.settle(place, Outcome.ACK, done).result()
    text = f"n in ({', '.join(str(10 * seq) for seq in sorted(wanted))})" if filtered else ""
    offers = tuple(Offer(member, rows, ROOM) for member, rows in offered)
    expected = [s for s in range(1, last + 1) if s not in confirmed and (not filtered or s in wanted)]
    got, passed, next_seq = [], set(), 1
    for _ in count():
        found = harvest(port, pieces, Wish(channel, offers, SHAPES, next_seq, filter=Filter(text), place=place))
        check_offers(found.cuts, offered)
        got += [seq for cut in found.cuts for seq in seqs_of(cut)]
        passed |= {seq for first, end in found.passed for seq in range(first, end + 1)}
        assert all(numbers_of(cut) == [10 * seq for seq in seqs_of(cut)] for cut in found.cuts)
        if found.next_seq == next_seq and not found.cuts:
            break
        next_seq = found.next_seq
    store.deregister(channel)
    assert got == expected
    assert passed == set(range(1, last + 1)) - set(expected) - confirmed


SHAPES = {1: Shape(), 2: Shape(("n",)), 3: Shape(None, ("_seq",))}


def check_offers(cuts: list[Cut], offered: list[tuple[int, int]]) -> None:
    """Members get, in the order of the offers, no more than each of them."""
    rooms = [list(item) for item in offered]
    for cut in cuts:
        while rooms and (rooms[0][0] != cut.member or rooms[0][1] < cut.rows):
            rooms.pop(0)
        assert rooms, "more than was offered"
        rooms[0][1] -= cut.rows


@given(FRAMES, st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5), st.integers(2, 3)), min_size=1, max_size=6))
def test_messages_again_come_with_their_attempt_and_what_does_not_fit_is_left(
    store: Store, frames: list[tuple[int, bool]], spans: list[tuple[int, int, int]]
) -> None:
    channel = f"channel-{next(NUMBERS)}"
    last = fill(store, frames, channel)
    port, pieces = store.handing, Pieces(store.handing)
    attempts: dict[int, int] = {}
    for first, length, attempt in spans:
        attempts |= dict.fromkeys(range(first, min(last, first + length) + 1), attempt)
    again = tuple((seq, seq, attempt) for seq, attempt in sorted(attempts.items()))
    got: dict[int, int] = {}
    while again:
        found = harvest(port, pieces, Wish(channel, (Offer(1, 4, ROOM),), SHAPES, again=again))
        for cut in found.cuts:
            assert numbers_of(cut) == [10 * seq for seq in seqs_of(cut)]
            got |= dict.fromkeys(seqs_of(cut), cut.attempt)
        assert sum(cut.rows for cut in found.cuts) <= 4
        again = tuple(found.left)
    assert got == attempts


def test_events_that_are_gone_are_reported_and_not_waited_for(tmp_path: Path) -> None:
    with Store.open(tmp_path, inline=True) as store:
        fill(store, [(3, True)])
        found = harvest(
            store.handing,
            Pieces(store.handing),
            Wish("trades", (Offer(1, 9, ROOM),), SHAPES, again=((2, 3, 2), (7, 9, 2))),
        )
        assert [cut.ranges for cut in found.cuts] == [((2, 3),)]
        assert found.gone == [(7, 9)]
        assert found.left == []


def test_a_message_that_does_not_fit_waits_for_room_and_the_first_one_always_fits(tmp_path: Path) -> None:
    with Store.open(tmp_path, inline=True) as store:
        store.commit("trades", pa.record_batch({"b": [bytes(1000)] * 4}))

        def bring(offer: Offer) -> tuple[int, set[int]]:
            wish = Wish("trades", (offer,), SHAPES, 1)
            found = harvest(store.handing, Pieces(store.handing), wish)
            return sum(cut.rows for cut in found.cuts), found.tight

        assert bring(Offer(1, 4, 10, held_bytes_left=10, holds_some=False)) == (1, set())
        assert bring(Offer(1, 4, 10, held_bytes_left=10, holds_some=True)) == (0, {1})
        assert bring(Offer(1, 4, 3000, held_bytes_left=3000, holds_some=True)) == (2, {1})


def test_a_subscriber_that_was_removed_brings_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path, inline=True) as store:
        fill(store, [(3, False)])
        place: Place = store.handing.join("d", "trades", start="first", others=0)
        store.deregister("d")
        found = harvest(store.handing, Pieces(store.handing), Wish("trades", (Offer(1, 9, ROOM),), SHAPES, place=place))
        assert (found.removed, found.cuts) == (True, [])


def test_a_turn_that_must_not_wait_stops_where_events_are_only_in_the_tier(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects(), store={"retention": {"local": "5KiB"}})
    for fsn in range(1, 5):
        rig.send(fsn, "a")
        rig.upload()
    rig.tick()
    assert rig.remote("a") == [1, 2, 3]
    port = rig.store.handing

    def bring(*, remote: bool, again: tuple[tuple[int, int, int], ...] | None = None) -> Harvest:
        wish = Wish("a", (Offer(1, 9, ROOM),), SHAPES, 1, again, remote=remote)
        return harvest(port, Pieces(port), wish)

    stopped = bring(remote=False)
    assert (stopped.in_tier, stopped.cuts, stopped.next_seq) == (True, [], 1)
    spans = ((2, 2, 2), (4, 4, 2))
    stopped = bring(remote=False, again=spans)
    assert (stopped.in_tier, stopped.left, stopped.gone) == (True, list(spans), [])
    found = bring(remote=True)
    assert [seq for cut in found.cuts for seq in seqs_of(cut)] == [1, 2, 3, 4]
    rig.close()
