"""The ingest session without a network: what is to be committed, and what may be answered when."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import Category, WireError
from holdfast.model.frame import Durability, Entry, FrameReceipt, Guid, Receipt, SlotFrame
from holdfast.model.positions import FSN_MAX, CommittedId, Fsn, Seq
from holdfast.wire import hfa, qwp, replies
from holdfast.wire.ingest import Answers, FrameReader, NotAtOnce, SessionLimits, SlotOrigin, Ticket, joined
from holdfast.wire.limits import FrameLimits
from holdfast.wire.replies import Ok, Refusal
from tests.unit.wire.qwp.raw import LONG, delta, longs, message, table
from tests.unit.wire.test_hfa import around

SLOT = bytes(range(16))
LIMITS = SessionLimits(FrameLimits(), deferred_bytes_max=1 << 20, deferred_rows_max=10)


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def arrow(*numbers: int, slot_id: bytes | None = None, fsn: int = 0, guid: bytes | None = None) -> bytes:
    return b"".join(hfa.encode([Entry("trades", batch(*numbers))], slot_id=slot_id, fsn=fsn, guid=guid))


def columns(*numbers: int, channel: str = "trades", deferred: bool = False) -> bytes:
    entries = [Entry(channel, batch(*numbers))] if numbers else []
    return qwp.encode(entries, None, deferred=deferred)


def hfa_of_batches(count: int) -> bytes:
    """A frame of one entry whose stream has so many batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch(1).schema) as stream:
        for number in range(count):
            stream.write_batch(batch(number))
    return around(sink.getvalue().to_pybytes())


def receipt(*marks: tuple[str, int]) -> FrameReceipt:
    entries = tuple(
        Receipt(channel, Seq(seq), Seq(seq), CommittedId(seq), duplicate=False, durability=Durability.SYNCED)
        for channel, seq in marks
    )
    return FrameReceipt(entries, duplicate=False, durability=Durability.SYNCED)


def reader(origin: SlotOrigin | None = None) -> FrameReader:
    return FrameReader(LIMITS, origin=origin)


def numbers_of(entries: tuple[Entry, ...]) -> list[list[int]]:
    return [entry.batch.column("n").to_pylist() for entry in entries]


# -- reading ----------------------------------------------------------------------------------------------------------


def test_arrow_frame_keeps_the_slot_identity_it_carries() -> None:
    frame = reader(SlotOrigin(bytes(16), 900)).read(arrow(1, 2, slot_id=SLOT, fsn=7), now_us=0)
    assert frame is not None
    assert frame.identity == SlotFrame(SLOT, Fsn(7))
    assert numbers_of(frame.entries) == [[1, 2]]


def test_arrow_frame_with_guid_is_known_by_it() -> None:
    frame = reader().read(arrow(1, guid=SLOT), now_us=0)
    assert frame is not None
    assert frame.identity == Guid(SLOT)


def test_frame_without_any_identity_has_none() -> None:
    first, second = reader().read(arrow(1), now_us=0), reader().read(columns(1), now_us=0)
    assert first is not None
    assert second is not None
    assert first.identity is None
    assert second.identity is None


def test_frames_of_an_upgrade_slot_are_numbered_from_its_first() -> None:
    session = reader(SlotOrigin(SLOT, 40))
    frames = [session.read(columns(n), now_us=0) for n in (1, 2, 3)]
    assert [frame and frame.identity for frame in frames] == [SlotFrame(SLOT, Fsn(fsn)) for fsn in (40, 41, 42)]


def test_catch_up_messages_before_the_first_data_are_not_counted() -> None:
    session = reader(SlotOrigin(SLOT, 40))
    assert session.read(columns(), now_us=0) is None
    assert session.read(columns(), now_us=0) is None
    frame = session.read(columns(5), now_us=0)
    assert frame is not None
    assert frame.identity == SlotFrame(SLOT, Fsn(40))


def test_tables_without_rows_are_data_that_counts() -> None:
    session = reader(SlotOrigin(SLOT, 5))
    assert session.read(qwp.encode([Entry("trades", batch())], None), now_us=0) is None
    frames = [session.read(columns(n), now_us=0) for n in (6, 7)]
    assert [frame and frame.identity for frame in frames] == [SlotFrame(SLOT, Fsn(6)), SlotFrame(SLOT, Fsn(7))]


def test_a_frame_behind_the_last_number_there_is_is_refused() -> None:
    session = reader(SlotOrigin(SLOT, FSN_MAX))
    last = session.read(columns(1), now_us=0)
    assert last is not None
    assert last.identity == SlotFrame(SLOT, Fsn(FSN_MAX))
    with pytest.raises(WireError, match="above 2\\^63-1") as caught:
        session.read(columns(2), now_us=0)
    assert caught.value.category is Category.PARSE_ERROR


def test_guids_are_told_apart_by_who_sends_them() -> None:
    session = FrameReader(LIMITS, guid=lambda value: Guid(value[::-1]))
    first = session.read(arrow(1, guid=SLOT), now_us=0)
    plain = session.read_plain(arrow(2, guid=SLOT))
    assert first is not None
    assert plain is not None
    assert first.identity == plain.identity == Guid(SLOT[::-1])


def test_empty_message_after_data_counts_as_a_frame() -> None:
    session = reader(SlotOrigin(SLOT, 40))
    session.read(columns(1), now_us=0)
    assert session.read(columns(), now_us=0) is None
    frame = session.read(columns(2), now_us=0)
    assert frame is not None
    assert frame.identity == SlotFrame(SLOT, Fsn(42))


def test_deferred_group_becomes_one_frame_with_the_last_identity() -> None:
    session = reader(SlotOrigin(SLOT, 10))
    assert session.read(columns(1, 2, deferred=True), now_us=0) is None
    assert session.deferring
    assert session.read(columns(3, channel="quotes", deferred=True), now_us=0) is None
    frame = session.read(columns(4), now_us=0)
    assert not session.deferring
    assert frame is not None
    assert frame.identity == SlotFrame(SLOT, Fsn(12))
    assert {entry.channel: entry.batch.column("n").to_pylist() for entry in frame.entries} == {
        "trades": [1, 2, 4],
        "quotes": [3],
    }


def test_empty_message_ends_a_deferred_group() -> None:
    session = reader()
    session.read(columns(1, deferred=True), now_us=0)
    frame = session.read(columns(), now_us=0)
    assert frame is not None
    assert numbers_of(frame.entries) == [[1]]
    assert session.read(columns(2), now_us=0) is not None


@pytest.mark.parametrize("origin", [None, SlotOrigin(SLOT, 0)], ids=["without identity", "of a slot"])
@pytest.mark.parametrize("deferred", [True, False], ids=["inside", "at its end"])
def test_group_beyond_its_rows_is_refused_as_a_whole_with_the_bound(origin: SlotOrigin | None, deferred: bool) -> None:
    session = reader(origin)
    assert session.read(columns(*range(8), deferred=True), now_us=0) is None
    with pytest.raises(WireError, match=r"11 rows.*at most 10 rows") as caught:
        session.read(columns(8, 9, 10, deferred=deferred), now_us=0)
    assert caught.value.category is Category.WRITE_ERROR


@pytest.mark.parametrize("deferred", [True, False], ids=["inside", "at its end"])
def test_group_beyond_its_bytes_is_refused_as_a_whole(deferred: bool) -> None:
    session = FrameReader(SessionLimits(FrameLimits(), deferred_bytes_max=5000))
    for number in range(0, 300, 50):
        assert session.read(columns(*range(number, number + 50), deferred=True), now_us=0) is None
    with pytest.raises(WireError, match="and 5000 bytes are committed as one"):
        session.read(columns(*range(50), deferred=deferred), now_us=0)


@pytest.mark.parametrize("deferred", [True, False], ids=["inside", "at its end"])
def test_group_of_too_many_entries_is_refused_as_a_whole(deferred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.wire.ingest.LARGE_ENTRIES_MAX", 3)
    session = reader()
    for number in range(3):
        session.read(columns(1, channel=f"c{number}", deferred=True), now_us=0)
        session.read(columns(1, channel="c0", deferred=True), now_us=0)
    with pytest.raises(WireError, match="more than 3 entries, one for each channel and schema") as caught:
        session.read(columns(1, channel="c3", deferred=deferred), now_us=0)
    assert caught.value.category is Category.WRITE_ERROR


def test_group_up_to_its_bounds_is_one_frame_however_large() -> None:
    rows = 300_000
    session = FrameReader(SessionLimits(FrameLimits(), deferred_bytes_max=64 << 20), origin=SlotOrigin(SLOT, 0))
    for number in range(3):
        assert session.read(columns(*range(number * rows, (number + 1) * rows), deferred=True), now_us=0) is None
    frame = session.read(columns(), now_us=0)
    assert frame is not None
    assert frame.identity == SlotFrame(SLOT, Fsn(3))
    assert frame.bytes_max == 64 << 20
    assert frame.size_bytes >= 16 * 3 * rows
    assert [n for part in numbers_of(frame.entries) for n in part] == list(range(3 * rows))
    assert session.kept_bytes == 0


def test_arrow_frame_inside_a_deferred_group_is_refused() -> None:
    session = reader()
    session.read(columns(1, deferred=True), now_us=0)
    with pytest.raises(WireError, match="deferred group"):
        session.read(arrow(2), now_us=0)


@pytest.mark.parametrize("message", [b"", b"QWP", b"HFA2" + bytes(40), b"GET / HTTP/1.1\r\n", bytes(64)])
def test_message_of_neither_kind_is_a_parse_error(message: bytes) -> None:
    with pytest.raises(WireError) as caught:
        reader().read(message, now_us=0)
    assert caught.value.category is Category.PARSE_ERROR


def test_joining_keeps_rows_in_order_and_schemas_apart() -> None:
    wide = pa.record_batch({"n": pa.array([3], pa.int64()), "more": ["x"]})
    entries = [Entry("a", batch(1)), Entry("b", batch(9)), Entry("a", batch(2)), Entry("a", wide), Entry("a", batch(4))]
    found = joined(entries, rows_max=100)
    assert [(entry.channel, entry.batch.column("n").to_pylist()) for entry in found] == [
        ("a", [1, 2]),
        ("a", [3]),
        ("a", [4]),
        ("b", [9]),
    ]


def test_joining_stops_at_the_rows_and_bytes_of_an_entry() -> None:
    entries = [Entry("a", batch(n, n)) for n in range(5)]
    assert [entry.batch.num_rows for entry in joined(entries, rows_max=5)] == [4, 4, 2]
    assert [entry.batch.num_rows for entry in joined(entries, rows_max=100, bytes_max=48)] == [6, 4]


def compressed(rows: int) -> bytes:
    entry = Entry("trades", pa.record_batch({"n": pa.array(np.zeros(rows, np.int64))}))
    return b"".join(hfa.FrameEncoder(compression="zstd").encode([entry]))


def gorilla(rows: int) -> bytes:
    times = pa.array(np.arange(rows) * 1000, pa.timestamp("us", "UTC"))
    return qwp.encode([Entry("trades", pa.record_batch({"timestamp": times}))], None, gorilla=True)


def wide(tables: int, columns: int) -> bytes:
    one = pa.record_batch({f"c{n}": pa.array([n], pa.int8()) for n in range(columns)})
    return qwp.encode([Entry(f"t{n}", one) for n in range(tables)], None)


def nothing_but_rows(rows: int) -> bytes:
    return message(table("trades", rows))


COSTLY = {
    "gorilla": gorilla(100_000),
    "compressed": compressed(1_000_000),
    "many tables": wide(100, 8),
    "many columns": wide(4, 120),
    "many empty symbols": message(table("t", 1, ("c", LONG, longs(1))), symbols=delta(0, *[""] * 20_000)),
    "rows without columns": nothing_but_rows(1_000_000),
    "bits of nulls": message(table("t", 200_000, ("c", 0x0D, b"\1" + b"\xff" * 25_000))),
    "many entries": b"".join(hfa.encode([Entry(f"t{n}", batch(1)) for n in range(100)])),
    "many batches": hfa_of_batches(100),
}


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("name", COSTLY)
def test_small_message_that_becomes_much_is_not_read_at_once(name: str) -> None:
    raw = COSTLY[name]
    assert len(raw) < 256 << 10
    session = FrameReader(SessionLimits(FrameLimits(), deferred_bytes_max=256 << 20), origin=SlotOrigin(SLOT, 7))
    with pytest.raises(NotAtOnce):
        session.read(raw, now_us=0, at_once=True)
    assert session.kept_bytes == 0
    frame = session.read(raw, now_us=0)
    assert frame is not None
    assert frame.identity in {None, SlotFrame(SLOT, Fsn(7))}, "it was counted once"


def test_end_of_a_large_group_is_not_read_at_once() -> None:
    session = FrameReader(SessionLimits(FrameLimits(), deferred_bytes_max=256 << 20))
    for number in range(20):
        session.read(columns(number, deferred=True), now_us=0)
    with pytest.raises(NotAtOnce):
        session.read(columns(), now_us=0, at_once=True)
    frame = session.read(columns(), now_us=0)
    assert frame is not None
    assert numbers_of(frame.entries) == [list(range(20))]


@pytest.mark.parametrize("raw", [arrow(1), columns(1), arrow(*range(30_000)), columns(*range(1000))])
def test_small_message_is_read_at_once(raw: bytes) -> None:
    assert reader().read(raw, now_us=0, at_once=True) == reader().read(raw, now_us=0)


def test_frame_like_one_before_is_plain_and_may_be_read_again() -> None:
    session = reader()
    assert session.read_plain(arrow(1)) is None
    session.read(arrow(1), now_us=0)
    plain = [session.read_plain(arrow(2, slot_id=SLOT, fsn=3)) for _ in range(2)]
    assert plain[0] == plain[1]
    assert plain[0] is not None
    assert plain[0].identity == SlotFrame(SLOT, Fsn(3))
    frame = session.read(arrow(2, slot_id=SLOT, fsn=3), now_us=0)
    assert frame is not None
    assert frame.identity == plain[0].identity


def test_nothing_is_plain_where_messages_are_counted_or_deferred() -> None:
    counted = reader(SlotOrigin(SLOT, 40))
    counted.read(arrow(1), now_us=0)
    assert counted.read_plain(arrow(1)) is None
    session = reader()
    session.read(arrow(1), now_us=0)
    session.read(columns(1, deferred=True), now_us=0)
    assert session.read_plain(arrow(1)) is None
    assert session.read(columns(2), now_us=0) is not None
    assert session.read_plain(arrow(1)) is not None


# -- answering --------------------------------------------------------------------------------------------------------


def taken(answers: Answers) -> list[replies.Ok | replies.DurableAck | replies.Refusal]:
    return [replies.decode(reply) for reply in answers.take()]


def tickets(answers: Answers, count: int) -> list[Ticket]:
    return [answers.expect() for _ in range(count)]


def test_every_message_gets_the_next_number_from_zero() -> None:
    assert [ticket.wire_seq for ticket in tickets(Answers(), 3)] == [0, 1, 2]


def test_ok_covers_everything_before_it_with_the_last_seq_of_each_channel() -> None:
    answers = Answers()
    first, second, third = tickets(answers, 3)
    answers.accept(first, receipt(("a", 5), ("b", 1)))
    answers.accept(second)
    answers.accept(third, receipt(("a", 9)))
    assert taken(answers) == [Ok(2, (("a", 9), ("b", 1)))]
    assert taken(answers) == []
    assert answers.acknowledged == 2


def test_nothing_is_answered_before_what_came_first() -> None:
    answers = Answers()
    first, second = tickets(answers, 2)
    answers.accept(second, receipt(("a", 2)))
    assert taken(answers) == []
    answers.accept(first, receipt(("a", 1)))
    assert taken(answers) == [Ok(1, (("a", 2),))]


def test_repeat_is_answered_with_original_positions_and_gone_ones_are_left_out() -> None:
    answers = Answers()
    answers.accept(answers.expect(), receipt(("a", 3), ("gone", 0)))
    assert taken(answers) == [Ok(0, (("a", 3),))]


def test_deferred_messages_are_answered_with_the_end_of_their_group() -> None:
    answers = Answers()
    first, second, end, after = tickets(answers, 4)
    answers.withhold(first)
    answers.withhold(second)
    assert taken(answers) == []
    answers.accept(after)
    assert taken(answers) == []
    answers.accept(end, receipt(("a", 7)))
    assert taken(answers) == [Ok(3, (("a", 7),))]


def test_refusal_goes_out_behind_the_ok_for_what_came_before() -> None:
    answers = Answers()
    first, second, third = tickets(answers, 3)
    answers.refuse(second, Category.SCHEMA_MISMATCH, "column 'n'")
    assert taken(answers) == []
    answers.accept(third, receipt(("a", 9)))
    answers.accept(first, receipt(("a", 1)))
    assert taken(answers) == [Ok(0, (("a", 1),)), Refusal(0x03, Category.SCHEMA_MISMATCH, 1, "column 'n'")]
    assert taken(answers) == []


def test_nothing_is_answered_after_a_refusal() -> None:
    answers = Answers()
    answers.refuse(answers.expect(), Category.PARSE_ERROR, "bad")
    taken(answers)
    later = answers.expect()
    assert later.wire_seq == 1
    answers.accept(later, receipt(("a", 1)))
    assert taken(answers) == []
    assert answers.waiting == 0
    assert answers.refused


def test_earlier_refusal_takes_the_place_of_a_later_one() -> None:
    answers = Answers()
    first, second, third = tickets(answers, 3)
    answers.refuse(third, Category.PARSE_ERROR, "later")
    answers.refuse(second, Category.WRITE_ERROR, "earlier")
    answers.accept(first)
    assert taken(answers) == [Ok(0), Refusal(0x09, Category.WRITE_ERROR, 1, "earlier")]


def test_later_refusal_does_not_take_the_place_of_an_earlier_one() -> None:
    answers = Answers()
    first, second = tickets(answers, 2)
    answers.refuse(first, Category.WRITE_ERROR, "earlier")
    answers.refuse(second, Category.PARSE_ERROR, "later")
    assert taken(answers) == [Refusal(0x09, Category.WRITE_ERROR, 0, "earlier")]


def test_refused_group_is_not_answered_with_ok_for_its_first_messages() -> None:
    answers = Answers()
    before, first, end = tickets(answers, 3)
    answers.accept(before)
    answers.withhold(first)
    answers.refuse(end, Category.WRITE_ERROR, "full")
    assert taken(answers) == [Ok(0), Refusal(0x09, Category.WRITE_ERROR, 2, "full")]


def test_messages_of_one_ticket_are_answered_with_the_last_of_them() -> None:
    answers = Answers()
    ticket, after = answers.expect(3), answers.expect()
    assert (ticket.wire_seq, after.wire_seq) == (2, 3)
    answers.accept(ticket, receipt(("a", 1)), receipt(("a", 4), ("b", 2)), receipt(("a", 3)))
    assert taken(answers) == [Ok(2, (("a", 4), ("b", 2)))]


def test_refusal_inside_a_ticket_has_the_number_of_its_message() -> None:
    answers = Answers()
    before, ticket, later = answers.expect(), answers.expect(4), answers.expect()
    answers.accept(later, receipt(("a", 99)))
    next_one = answers.accept_first(ticket, [receipt(("a", 2)), receipt(("a", 3))], messages=4)
    answers.refuse(next_one, Category.WRITE_ERROR, "full")
    assert taken(answers) == []
    answers.accept(before, receipt(("a", 1)))
    assert taken(answers) == [Ok(2, (("a", 3),)), Refusal(0x09, Category.WRITE_ERROR, 3, "full")]
    assert taken(answers) == []


def test_ticket_of_which_nothing_is_accepted_is_refused_by_its_first_message() -> None:
    answers = Answers()
    ticket, later = answers.expect(4), answers.expect(2)
    answers.refuse(answers.accept_first(ticket, [], messages=4), Category.WRITE_ERROR, "full")
    answers.refuse(answers.accept_first(later, [], messages=2), Category.WRITE_ERROR, "full too")
    assert taken(answers) == [Refusal(0x09, Category.WRITE_ERROR, 0, "full")]


def test_durable_answers_follow_the_ok_of_their_channels() -> None:
    answers = Answers(durable=True)
    first, second = tickets(answers, 2)
    answers.durable("a", 5)
    answers.durable("foreign", 8)
    assert taken(answers) == []
    answers.accept(first, receipt(("a", 5)))
    assert taken(answers) == [Ok(0, (("a", 5),)), replies.DurableAck((("a", 5),))]
    answers.accept(second, receipt(("a", 7)))
    assert taken(answers) == [Ok(1, (("a", 7),))]
    answers.durable("a", 7)
    answers.durable("a", 6)
    assert taken(answers) == [replies.DurableAck((("a", 7),))]
    assert taken(answers) == []


def test_durable_answers_are_not_sent_to_those_who_did_not_ask() -> None:
    answers = Answers()
    answers.accept(answers.expect(), receipt(("a", 5)))
    answers.durable("a", 5)
    assert taken(answers) == [Ok(0, (("a", 5),))]
