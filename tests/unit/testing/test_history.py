"""The history checker finds what it says it finds: valid histories pass, and each way to spoil one is named.

A model of some sixty lines makes histories that keep every guarantee; each mutation breaks one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing.history import (
    Accepted,
    Acked,
    Bucket,
    Crash,
    Delivered,
    Durable,
    Evicted,
    Happening,
    HistoryBroken,
    Joined,
    Kept,
    Kind,
    Mark,
    Refused,
    Restart,
    Row,
    Sent,
    Settled,
    Stored,
    Wiped,
    check,
    require,
)

CHANNELS = ("a", "b")
READER = "reader"
History = list[Happening]


@dataclass
class Model:
    """Producers, a store, a bucket and a reader that do everything right."""

    chance: random.Random
    history: History = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    next_id: int = 1
    next_seq: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANNELS, 1))
    read: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANNELS, 0))
    session: int = 0

    def send(self) -> None:
        """A frame over one or two channels: answered, or stored without an answer, or refused."""
        source, frame = self.chance.choice(["p", "q"]), f"frame {self.next_id}"
        fate = self.chance.choice(["accepted", "accepted", "stored", "refused", "lost"])
        answers: History = []
        for channel in self.chance.sample(CHANNELS, self.chance.choice([1, 2])):
            ids = tuple(range(self.next_id, self.next_id + self.chance.randint(1, 3)))
            self.next_id += len(ids)
            self.history.append(Sent(source, channel, ids, frame))
            if fate == "refused":
                answers.append(Refused(ids))
            elif fate != "lost":
                answers += self.store(channel, ids) if fate == "accepted" else self.store(channel, ids)[:1]
        self.history += answers

    def store(self, channel: str, ids: tuple[int, ...]) -> History:
        first, committed_id = self.next_seq[channel], 1 + len(self.rows)
        self.rows += [Row(channel, first + n, one, committed_id + n) for n, one in enumerate(ids)]
        self.next_seq[channel] += len(ids)
        return [Kept(ids), Accepted(channel, ids, first, committed_id)]

    def deliver(self) -> None:
        channel = self.chance.choice(CHANNELS)
        here = {row.seq: row.id for row in self.rows if row.channel == channel}
        first = self.read[channel] + 1
        last = min(first + self.chance.randint(0, 2), len(here))
        if first > last:
            return
        for seq in range(first, last + 1):
            self.history.append(Delivered(READER, channel, seq, here[seq], session=self.session))
            if self.chance.random() < 0.3:
                self.history.append(Delivered(READER, channel, seq, here[seq], again=True, session=self.session))
        self.history.append(Acked(READER, channel, first, last))
        self.read[channel] = last
        self.history += [Settled(READER, channel, first, last), Mark(READER, channel, last)]

    def look(self, *, is_final: bool = False) -> None:
        rows = tuple(sorted(self.rows))
        self.history.append(Stored(rows, is_final))

    def upload(self) -> None:
        self.history += [Durable(channel, seq - 1) for channel, seq in self.next_seq.items() if seq > 1]
        self.history.append(Bucket(tuple(self.rows)))

    def crash(self) -> None:
        self.session += 1
        self.history += [Crash("server"), Restart("server")]

    def run(self) -> History:
        self.history += [Joined(READER, channel, 1) for channel in CHANNELS]
        steps = [self.send, self.send, self.deliver, self.deliver, self.look, self.upload, self.crash]
        for _ in range(self.chance.randint(5, 25)):
            self.chance.choice(steps)()
        for channel in CHANNELS:  # so that every mutation finds what it spoils
            self.history.append(Sent("p", channel, (self.next_id, self.next_id + 1), f"last {channel}"))
            self.history += self.store(channel, (self.next_id, self.next_id + 1))
            self.next_id += 2
        self.look()
        for _ in range(self.next_id):
            self.deliver()
        self.upload()
        self.crash()
        self.look(is_final=True)
        return self.history


def valid(seed: int) -> History:
    return Model(random.Random(seed)).run()


# --- mutations ------------------------------------------------------------------------------------------------------

Mutation = Callable[[History, random.Random], History]


def final(history: History) -> Stored:
    last = history[-1]
    assert isinstance(last, Stored)
    return last


def with_rows(history: History, rows: list[Row]) -> History:
    return [*history[:-1], Stored(tuple(rows), is_final=True)]


def one_of(history: History, kind: type, chance: random.Random) -> int:
    return chance.choice([line for line, item in enumerate(history) if isinstance(item, kind)])


def lose_an_accepted_event(history: History, chance: random.Random) -> History:
    promised = {one for item in history if isinstance(item, Accepted) for one in item.ids}
    rows = list(final(history).rows)
    victim = chance.choice([row for row in rows if row.id in promised])
    return with_rows(history, [row for row in rows if row.id != victim.id])


def lose_a_kept_event(history: History, _chance: random.Random) -> History:
    rest = [item for item in history if not isinstance(item, Stored)]
    extra: History = [Sent("p", "a", (9_000,)), Kept((9_000,))]
    return [*rest, *extra, final(history)]


def store_an_event_twice(history: History, chance: random.Random) -> History:
    rows = list(final(history).rows)
    again = chance.choice(rows)
    place = max(row.seq for row in rows if row.channel == again.channel) + 1
    rows.append(Row(again.channel, place, again.id, 99_999))
    return with_rows(history, rows)


def deliver_a_confirmed_event(history: History, chance: random.Random) -> History:
    line = one_of(history, Settled, chance)
    settled = history[line]
    assert isinstance(settled, Settled)
    one = next(
        item.id
        for item in history
        if isinstance(item, Delivered) and (item.channel, item.seq) == (settled.channel, settled.last)
    )
    again = Delivered(READER, settled.channel, settled.last, one, again=True)
    return [*history[: line + 1], again, *history[line + 1 :]]


def store_what_nobody_sent(history: History, _chance: random.Random) -> History:
    rows = list(final(history).rows)
    return with_rows(history, [*rows, Row("z", 1, "nobody's", 88_888)])


def store_what_was_refused(history: History, _chance: random.Random) -> History:
    extra: History = [Sent("p", "z", (9_000,)), Refused((9_000,))]
    rows = [*final(history).rows, Row("z", 1, 9_000, 88_888)]
    return with_rows([*history[:-1], *extra, history[-1]], rows)


def swap_two_events_of_a_producer(history: History, chance: random.Random) -> History:
    channel = chance.choice(CHANNELS)
    extra: History = [Sent("p", f"{channel}z", (9_000,)), Sent("p", f"{channel}z", (9_001,))]
    rows = [*final(history).rows, Row(f"{channel}z", 1, 9_001), Row(f"{channel}z", 2, 9_000)]
    return with_rows([*history[:-1], *extra, history[-1]], rows)


def deliver_out_of_order(history: History, _chance: random.Random) -> History:
    rows = [row for row in final(history).rows if row.channel == "a"]
    extra = [Delivered("other", "a", row.seq, row.id) for row in (rows[1], rows[0])]
    return [*history, *extra]


def answer_with_another_place(history: History, chance: random.Random) -> History:
    line = one_of(history, Accepted, chance)
    answer = history[line]
    assert isinstance(answer, Accepted)
    return [*history[: line + 1], msgspec.structs.replace(answer, first_seq=7_000), *history[line + 1 :]]


def give_a_committed_id_twice(history: History, _chance: random.Random) -> History:
    rows = list(final(history).rows)
    rows[-1] = rows[-1]._replace(committed_id=rows[0].committed_id)
    return with_rows(history, rows)


def reuse_a_seq_after_the_crash(history: History, _chance: random.Random) -> History:
    rows = list(final(history).rows)
    extra: History = [Sent("r", rows[-1].channel, (9_000,))]
    rows[-1] = rows[-1]._replace(id=9_000)
    return with_rows([*history[:-1], *extra, history[-1]], rows)


def store_half_a_frame(history: History, _chance: random.Random) -> History:
    extra: History = [Sent("r", "z", (9_000,), "torn"), Sent("r", "y", (9_001,), "torn")]
    rows = [*final(history).rows, Row("z", 1, 9_000)]
    return with_rows([*history[:-1], *extra, history[-1]], rows)


def leave_a_gap_in_the_seqs(history: History, _chance: random.Random) -> History:
    extra: History = [Sent("r", "z", (9_000, 9_001))]
    rows = [*final(history).rows, Row("z", 1, 9_000), Row("z", 3, 9_001)]
    return with_rows([*history[:-1], *extra, history[-1]], rows)


def mark_what_was_never_delivered(history: History, chance: random.Random) -> History:
    line = one_of(history, Delivered, chance)
    one = history[line]
    assert isinstance(one, Delivered)
    return [
        item
        for item in history
        if not (isinstance(item, Delivered) and (item.channel, item.seq) == (one.channel, one.seq))
    ]


def move_a_mark_back(history: History, chance: random.Random) -> History:
    mark = history[one_of(history, Mark, chance)]
    assert isinstance(mark, Mark)
    return [*history, msgspec.structs.replace(mark, seq=0)]


def mark_what_was_never_confirmed(history: History, chance: random.Random) -> History:
    line = one_of(history, Acked, chance)
    return [*history[:line], *history[line + 1 :]]


def tell_durable_too_early(history: History, chance: random.Random) -> History:
    line = one_of(history, Bucket, chance)
    bucket = history[line]
    assert isinstance(bucket, Bucket)
    if not bucket.rows:
        return [*history[:line], Durable("a", 1), *history[line:]]
    rows = list(bucket.rows)
    del rows[chance.randrange(len(rows))]
    return [*history[:line], Bucket(tuple(rows)), *history[line + 1 :]]


MUTATIONS: dict[Mutation, Kind] = {
    lose_an_accepted_event: Kind.LOST,
    lose_a_kept_event: Kind.LOST,
    store_an_event_twice: Kind.DUPLICATE,
    deliver_a_confirmed_event: Kind.DUPLICATE,
    store_what_nobody_sent: Kind.PHANTOM,
    store_what_was_refused: Kind.PHANTOM,
    swap_two_events_of_a_producer: Kind.REORDER,
    deliver_out_of_order: Kind.REORDER,
    answer_with_another_place: Kind.POSITION,
    give_a_committed_id_twice: Kind.POSITION,
    reuse_a_seq_after_the_crash: Kind.REUSED,
    store_half_a_frame: Kind.TORN,
    leave_a_gap_in_the_seqs: Kind.SKIP,
    mark_what_was_never_delivered: Kind.SKIP,
    move_a_mark_back: Kind.BACK,
    mark_what_was_never_confirmed: Kind.HOLE,
    tell_durable_too_early: Kind.UNDURABLE,
}


@given(seed=st.integers(0, 2**32))
def test_history_that_keeps_every_guarantee_passes(seed: int) -> None:
    assert check(valid(seed)) == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
@given(seed=st.integers(0, 2**32))
def test_each_way_to_spoil_a_history_is_named(mutation: Mutation, seed: int) -> None:
    spoilt = mutation(valid(seed), random.Random(seed))
    found = check(spoilt)
    assert MUTATIONS[mutation] in {finding.kind for finding in found}
    assert all(0 <= line < len(spoilt) for finding in found for line in finding.lines)


def test_every_kind_of_finding_has_a_mutation() -> None:
    assert set(MUTATIONS.values()) == set(Kind)


def test_report_shows_the_lines_that_prove_it() -> None:
    history: History = [Sent("p", "a", (1,)), Accepted("a", (1,), 1), Stored(())]
    with pytest.raises(HistoryBroken, match="lost: event 1 was accepted and is not there") as caught:
        require(history)
    assert "line 1: Accepted" in str(caught.value)
    assert [finding.kind for finding in caught.value.findings] == [Kind.LOST]


def test_evicted_events_may_be_missing_and_stay_where_they_were() -> None:
    sent: History = [Sent("p", "a", (1, 2, 3)), Accepted("a", (1, 2, 3), 1), Evicted("a", 1, 2)]
    assert check([*sent, Stored((Row("a", 3, 3),))]) == []
    assert [finding.kind for finding in check([*sent, Stored((Row("a", 4, 3),))])] == [Kind.POSITION, Kind.SKIP]


def test_wiped_disk_may_lose_what_was_not_durable_but_no_number_comes_again() -> None:
    before: History = [
        Sent("p", "a", (1, 2, 3)), Accepted("a", (1, 2, 3), 1), Durable("a", 1), Wiped("server"),
    ]  # fmt: skip
    replayed = (Row("a", 1, 1), Row("a", 1_000, 2), Row("a", 1_001, 3))
    assert check([*before, Stored(replayed)]) == []
    assert [finding.kind for finding in check([*before, Stored(())])] == [Kind.LOST]
    reused: History = [*before, Sent("p", "a", (4,)), Stored((Row("a", 1, 1), Row("a", 2, 4)))]
    assert [finding.kind for finding in check(reused)] == [Kind.REUSED]


def test_part_of_a_frame_may_be_gone_after_a_wipe_if_it_was_evicted_before() -> None:
    frame: History = [
        Sent("p", "a", (1,), "f"),
        Sent("p", "b", (2,), "f"),
        Accepted("a", (1,), 1),
        Accepted("b", (2,), 1),
    ]
    confirmed: History = [Joined(READER, "b", 1), Delivered(READER, "b", 1, 2), Acked(READER, "b", 1, 1)]
    found: History = [Wiped("server"), Accepted("b", (2,)), Stored((Row("a", 1, 1),), is_final=True)]
    durable: History = [Durable("a", 1)]
    assert check([*frame, *confirmed, *durable, Evicted("b", 1, 1, confirmed=True), *found]) == []
    assert [finding.kind for finding in check([*frame, *confirmed, *durable, *found])] == [Kind.LOST]
    assert [finding.kind for finding in check([*frame, *durable, Evicted("b", 1, 1, confirmed=True), *found])] == [
        Kind.LOST
    ]


def test_event_is_no_duplicate_if_it_was_on_its_way_when_another_confirmed_it() -> None:
    """Members of a group have connections of their own, and one may be slow."""
    history: History = [
        Sent("p", "a", (1,)), Accepted("a", (1,), 1),
        Delivered(READER, "a", 1, 1, again=True, session=2), Acked(READER, "a", 1, 1), Settled(READER, "a", 1, 1),
    ]  # fmt: skip
    settled_at = len(history) - 1
    for sent_at, kinds in ((settled_at, []), (settled_at + 1, [Kind.DUPLICATE]), (None, [Kind.DUPLICATE])):
        late = Delivered(READER, "a", 1, 1, again=True, session=1, sent_at=sent_at)
        assert [finding.kind for finding in check([*history, late])] == kinds


@pytest.mark.parametrize(("delay", "kinds"), [(0, []), (1, [Kind.POSITION])])
def test_news_of_a_disk_that_is_lost_by_now_says_nothing_of_the_next_one(delay: int, kinds: list[Kind]) -> None:
    """The network keeps back what the server said before; what it says afterwards counts."""
    history: History = [Sent("p", "a", (1,)), Accepted("a", (1,), 1), Wiped("server")]
    sent_at = len(history) - 1 + delay
    moved: History = [Stored((Row("a", 7, 1),))]
    accepted = Accepted("a", (1,), 1, sent_at=sent_at)
    delivered = Delivered(READER, "a", 1, 1, sent_at=sent_at)
    assert [finding.kind for finding in check([*history, accepted, *moved])] == kinds
    assert [finding.kind for finding in check([*history, delivered, *moved])] == kinds


def test_number_that_late_news_tell_of_is_given_to_nobody_else() -> None:
    history: History = [Sent("p", "a", (1, 2)), Wiped("server"), Accepted("a", (1,), 1, sent_at=1)]
    assert [finding.kind for finding in check([*history, Stored((Row("a", 1, 2),))])] == [Kind.POSITION]


def test_confirmation_told_by_a_disk_that_is_lost_by_now_does_not_bind_the_next_one() -> None:
    history: History = [Sent("p", "a", (1,)), Delivered(READER, "a", 1, 1), Acked(READER, "a", 1, 1), Wiped("server")]
    wiped_at = len(history) - 1
    for sent_at, kinds in ((wiped_at, []), (wiped_at + 1, [Kind.DUPLICATE])):
        found: History = [Settled(READER, "a", 1, 1, sent_at=sent_at), Delivered(READER, "a", 1, 1, again=True)]
        assert [finding.kind for finding in check([*history, *found])] == kinds
    for sent_at, kinds in ((wiped_at, []), (wiped_at + 1, [Kind.BACK])):
        marks: History = [Mark(READER, "a", 1, sent_at=sent_at), Mark(READER, "a", 0)]
        assert [finding.kind for finding in check([*history, *marks])] == kinds


def test_weakly_accepted_events_may_be_lost_in_a_crash() -> None:
    history: History = [Sent("p", "a", (1,)), Accepted("a", (1,), 1, weak=True), Crash("store"), Stored(())]
    assert check(history) == []


def test_replayed_frames_may_change_places_with_others_that_were_stored_first() -> None:
    history: History = [Sent("p", "a", (1,)), Crash("store"), Sent("p", "a", (2,)), Sent("p", "a", (1,))]
    assert check([*history, Stored((Row("a", 1, 2), Row("a", 2, 1)))]) == []
