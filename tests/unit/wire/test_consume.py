"""The messages of consumers: their bytes, and readers that take nothing else."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import WireError
from holdfast.wire import consume

SUBSCRIBE = bytes.fromhex(
    "0102000030000000de0004a77265717565737401a373756202a76368616e6e656ca6747261646573a764757261626c65a762696c6c696e67"
)
ACK = bytes.fromhex("010500001a00000083a373756202a672616e6765739192010aa77265717565737407000000000000")
DELIVER = bytes.fromhex("018400001400000082a373756202a672616e6765739292010292050500000000")

REQUESTS: list[consume.Request] = [
    consume.Hello(client="billing-1"),
    consume.Subscribe(request=1, sub=2, channel="trades", durable="billing"),
    consume.Subscribe(request=1, sub=2, channel="t", start=5, backoff_ms=(1, 2), columns=("a",), credit=0),
    consume.Configure(request=3, sub=2, max_inflight=0),
    consume.Credit(sub=2, upto=10),
    consume.Ack(sub=2, ranges=((1, 10),), request=7),
    consume.Ack(sub=2, upto=10),
    consume.Nack(sub=2, ranges=((1, 1), (3, 4)), delay_ms=0),
    consume.Reject(sub=2, ranges=((1, 1),), reason="ungültig"),
    consume.Extend(sub=2),
    consume.Close(request=4, sub=2),
    consume.Unsubscribe(request=5, sub=2),
]
REPLIES: list[consume.Reply] = [
    consume.Welcome(server="0.1.0", session=1, subs_max=1000),
    consume.Subscribed(request=1, sub=2, next_seq=11, mark=10, resumed=True),
    consume.Configured(
        request=3,
        sub=2,
        ack_wait_ms=30_000,
        max_inflight=0,
        max_inflight_bytes=1,
        batch_rows=1,
        priority=0,
        max_deliver=0,
        backoff_ms=(),
    ),
    consume.Settled(request=7, sub=2, settled=9, stale=1),
    consume.Closed(request=4, sub=2),
    consume.Refused(request=1, sub=2, code="in_use", reason="taken", retry=True),
    consume.Event(event="gap", sub=2, ranges=((1, 5),), reason="retention took them"),
]


def test_messages_are_written_as_their_golden_bytes() -> None:
    assert consume.encode(REQUESTS[1]) == SUBSCRIBE
    assert consume.encode(REQUESTS[5]) == ACK
    assert consume.encode(consume.Deliver(sub=2, ranges=((1, 2), (5, 5)))) == DELIVER


def test_golden_bytes_mean_the_same_for_ever() -> None:
    assert consume.decode_request(SUBSCRIBE) == REQUESTS[1]
    assert consume.decode_request(ACK) == REQUESTS[5]
    delivery = consume.decode_reply(DELIVER)
    assert isinstance(delivery, consume.Delivery)
    assert (delivery.head.ranges, delivery.head.attempt, delivery.head.rows) == (((1, 2), (5, 5)), 1, 3)


@pytest.mark.parametrize("message", REQUESTS, ids=lambda message: type(message).__name__)
def test_every_request_is_read_back_as_it_was_meant(message: consume.Request) -> None:
    raw = consume.encode(message)
    assert len(raw) % 8 == 0
    assert consume.decode_request(raw) == message


@pytest.mark.parametrize("message", REPLIES, ids=lambda message: type(message).__name__)
def test_every_reply_is_read_back_as_it_was_meant(message: consume.Reply) -> None:
    assert consume.decode_reply(consume.encode(message)) == message


def test_a_delivery_carries_its_rows_without_a_copy() -> None:
    batch = pa.record_batch({"n": [1, 2, 3], "s": ["a", None, "c"]})
    raw = consume.encode_deliver(consume.Deliver(sub=2, ranges=((1, 2), (5, 5)), attempt=2), consume.encode_body(batch))
    delivery = consume.decode_reply(raw)
    assert isinstance(delivery, consume.Delivery)
    assert delivery.batch().equals(batch)
    assert delivery.head.redelivered
    inside = memoryview(raw)
    start, end = pa.py_buffer(inside).address, pa.py_buffer(inside).address + len(raw)
    assert start <= delivery.batch().column("n").buffers()[1].address < end


def test_dictionary_columns_are_delivered_whole() -> None:
    batch = pa.record_batch({"d": pa.array(["x", "y", "x"]).dictionary_encode()})
    raw = consume.encode_deliver(consume.Deliver(sub=1, ranges=((1, 3),)), consume.encode_body(batch))
    delivery = consume.decode_reply(raw)
    assert isinstance(delivery, consume.Delivery)
    assert delivery.batch().equals(batch)


def test_a_body_of_another_length_than_its_ranges_is_refused() -> None:
    body = consume.encode_body(pa.record_batch({"n": [1, 2]}))
    delivery = consume.decode_reply(consume.encode_deliver(consume.Deliver(sub=1, ranges=((1, 3),)), body))
    assert isinstance(delivery, consume.Delivery)
    with pytest.raises(WireError, match="2 rows came for 3 seqs"):
        delivery.batch()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "at least 8 bytes"),
        (b"\x02\x01\0\0\0\0\0\0", "layout 2"),
        (b"\x01\x01\0\0\xff\0\0\0", "the head has 255 bytes"),
        (b"\x01\x7f\0\0\x01\0\0\0\x80\0\0\0\0\0\0\0", "kind 0x7f"),
        (b"\x01\x01\0\0\x01\0\0\0\x80\0\0\0\0\0\0\x01", "zeros up to a multiple of 8"),
        (b"\x01\x01\0\0\x01\0\0\0\x80", "zeros up to a multiple of 8"),
        (b"\x01\x01\0\0\x01\0\0\0\x80" + bytes(15), "8 bytes follow the head"),
        (b"\x01\x02\0\0\x01\0\0\0\x80" + bytes(7), "SUBSCRIBE: Object missing required field"),
        (b"\x01\x01\0\0\x01\0\0\0\xc1" + bytes(7), "HELLO"),
    ],
)
def test_bytes_that_are_no_message_name_what_is_wrong(raw: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        consume.decode_request(raw)


def test_the_server_refuses_fields_it_does_not_know() -> None:
    class Hello(consume.Message, frozen=True):
        KIND = 0x01
        clint: str

    with pytest.raises(WireError, match="clint"):
        consume.decode_request(consume.encode(Hello(clint="misspelt")))


def test_a_consumer_skips_what_a_newer_server_adds() -> None:
    class Closed(consume.Message, frozen=True):
        KIND = 0x86
        request: int
        sub: int
        colour: str

    class Future(consume.Message, frozen=True):
        KIND = 0xFE
        x: int

    known = consume.decode_reply(consume.encode(Closed(request=1, sub=2, colour="green")))
    assert known == consume.Closed(request=1, sub=2)
    assert consume.decode_reply(consume.encode(Future(x=1))) is None


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_wire_error(raw: bytes) -> None:
    for read in (consume.decode_request, consume.decode_reply):
        with suppress(WireError):
            read(raw)


@given(st.data())
def test_any_damaged_message_gives_a_message_or_a_wire_error(data: st.DataObject) -> None:
    raw = bytearray(consume.encode(data.draw(st.sampled_from(REQUESTS))))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        consume.decode_request(bytes(raw))
