"""The order of a consumer's messages, without a connection."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.errors import WireError
from holdfast.wire import consume
from holdfast.wire.consumesession import ConsumeSession, SubState

WELCOME = consume.Welcome(server="x", session=1, subs_max=2)


@dataclass
class Open:
    """A session that was welcomed, with one subscription if wanted."""

    session: ConsumeSession

    @classmethod
    def with_sub(cls, sub: int = 1) -> Open:
        here = cls.plain()
        here.say(consume.Subscribe(request=1, sub=sub, channel="trades"))
        here.session.opened(sub)
        return here

    @classmethod
    def plain(cls) -> Open:
        here = cls(ConsumeSession(WELCOME))
        assert here.say(consume.Hello()) == WELCOME
        return here

    def say(self, message: consume.Message) -> consume.Request | consume.Reply | None:
        return self.session.receive(consume.encode(message))

    def refusal(self, message: consume.Message) -> consume.Refused:
        reply = self.say(message)
        assert isinstance(reply, consume.Refused), reply
        return reply


def test_hello_comes_first_and_only_once() -> None:
    session = ConsumeSession(WELCOME)
    with pytest.raises(WireError, match="HELLO must come first"):
        session.receive(consume.encode(consume.Close(request=1, sub=1)))
    here = Open.plain()
    with pytest.raises(WireError, match="it comes once"):
        here.say(consume.Hello())


def test_ranges_of_an_answer_come_in_order_and_each_seq_once() -> None:
    found = Open.with_sub().say(consume.Ack(sub=1, ranges=((7, 9), (1, 3), (2, 4), (8, 8))))
    assert isinstance(found, consume.Ack)
    assert found.ranges == ((1, 4), (7, 9))


def test_a_number_is_free_again_after_its_subscription() -> None:
    here = Open.with_sub()
    assert here.refusal(consume.Subscribe(request=2, sub=1, channel="t")).code == "bad_request"
    assert isinstance(here.say(consume.Close(request=3, sub=1)), consume.Close)
    assert here.session.subs == {1: SubState.CLOSING}
    assert "being closed" in here.refusal(consume.Configure(request=4, sub=1)).reason
    here.session.freed(1)
    assert isinstance(here.say(consume.Subscribe(request=5, sub=1, channel="t")), consume.Subscribe)


def test_a_connection_has_a_bounded_number_of_subscriptions() -> None:
    here = Open.plain()
    for sub in (1, 2):
        assert isinstance(here.say(consume.Subscribe(request=sub, sub=sub, channel="t")), consume.Subscribe)
    assert here.refusal(consume.Subscribe(request=3, sub=3, channel="t")).code == "limit_reached"


def test_requests_for_a_subscription_that_opens_are_refused() -> None:
    here = Open.plain()
    here.say(consume.Subscribe(request=1, sub=1, channel="t"))
    assert here.refusal(consume.Close(request=2, sub=1)).code == "unknown_subscription"
    assert here.say(consume.Credit(sub=1, upto=1)) is None


def test_stale_answers_are_ignored_unless_they_ask() -> None:
    here = Open.plain()
    assert here.say(consume.Ack(sub=9, upto=3)) is None
    assert here.refusal(consume.Ack(sub=9, upto=3, request=1)).code == "unknown_subscription"


def test_a_removal_that_fails_leaves_the_subscription_open() -> None:
    here = Open.with_sub()
    here.say(consume.Unsubscribe(request=2, sub=1))
    here.session.kept(1)
    assert here.session.is_open(1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"channel": "../etc"}, "channel name"),
        ({"durable": "a b"}, "durable='a b'"),
        ({"group": "-x"}, "group='-x'"),
        ({"ack_wait_ms": 99}, "ack_wait_ms=99 is not allowed: 100 to"),
        ({"max_inflight": -1}, "max_inflight=-1"),
        ({"max_inflight_bytes": 0}, "max_inflight_bytes=0"),
        ({"batch_rows": 0}, "batch_rows=0"),
        ({"max_deliver": 1001}, "max_deliver=1001"),
        ({"backoff_ms": (0,)}, "backoff_ms"),
        ({"backoff_ms": (1,) * 65}, "backoff_ms"),
        ({"mode": "priority"}, "needs a group"),
        ({"priority": 1}, "counts only in mode priority"),
        ({"mode": "broadcast", "durable": "d"}, "at most once"),
        ({"replace": True}, "replace is for a durable"),
        ({"start": "middle"}, "start='middle'"),
        ({"start": -1}, "start=-1"),
        ({"start": 1, "start_time_ns": 1}, "exclude each other"),
        ({"start_time_ns": -1}, "start_time_ns=-1"),
        ({"credit": -1}, "credit=-1"),
        ({"filter": "n" * 1025}, "1025 characters"),
        ({"partitions": ("p",) * 65}, "65 partitions"),
        ({"system": ("_sequence",)}, "no system column"),
    ],
)
def test_a_subscription_with_a_value_out_of_bounds_is_refused(fields: dict[str, object], reason: str) -> None:
    here = Open.plain()
    values: dict[str, object] = {"channel": "trades", **fields}
    refused = here.refusal(consume.Subscribe(request=1, sub=1, **values))  # type: ignore[arg-type]
    assert refused.code == "bad_request"
    assert reason in refused.reason
    assert here.session.subs == {}


@pytest.mark.parametrize(
    "message",
    [
        consume.Ack(sub=1, ranges=((2, 1),)),
        consume.Ack(sub=1, ranges=((0, 1),)),
        consume.Nack(sub=1, ranges=((1, 1),) * (consume.RANGES_MAX + 1)),
        consume.Nack(sub=1, ranges=((1, 1),), delay_ms=-1),
        consume.Reject(sub=1, ranges=((1, 1),), reason="x" * 1001),
        consume.Credit(sub=1, upto=-1),
        consume.Ack(sub=0),
        consume.Ack(sub=2**32),
        consume.Close(request=0, sub=1),
    ],
    ids=str,
)
def test_answers_that_no_consumer_may_send_end_the_connection(message: consume.Message) -> None:
    with pytest.raises(WireError):
        Open.with_sub().say(message)


def test_a_configuration_out_of_bounds_is_refused_and_changes_nothing() -> None:
    here = Open.with_sub()
    assert here.refusal(consume.Configure(request=2, sub=1, batch_rows=0)).code == "bad_request"
    assert here.session.is_open(1)
