"""The session of a consumer, message by message, without a connection."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.consumer.core import (
    Answered,
    ConsumerCore,
    Effect,
    Ended,
    Halt,
    Hand,
    Hangup,
    Notice,
    Ready,
    Restored,
    Send,
)
from holdfast.consumer.options import options_of
from holdfast.errors import Forbidden, InvalidConfig, NotConfirmed, SubscriptionRefused
from holdfast.wire import consume


def core_of(**options: Any) -> ConsumerCore:
    return ConsumerCore(options_of({"channel": "trades", **options}), client="test")


def requests(effects: list[Effect]) -> list[consume.Request]:
    return [consume.decode_request(effect.message) for effect in effects if isinstance(effect, Send)]


def open_up(core: ConsumerCore, *, next_seq: int = 1, mark: int = 0) -> list[Effect]:
    """Connect and subscribe; what the server's answer leads to."""
    subscribe = requests(core.opened())[-1]
    assert isinstance(subscribe, consume.Subscribe)
    return hear(core, consume.Subscribed(request=subscribe.request, sub=1, next_seq=next_seq, mark=mark))


def hear(core: ConsumerCore, reply: consume.Reply) -> list[Effect]:
    return core.received(consume.encode(reply))


def deliver(core: ConsumerCore, first: int, last: int) -> list[Effect]:
    body = consume.encode_body(pa.record_batch({"n": list(range(first, last + 1))}))
    return core.received(consume.encode_deliver(consume.Deliver(sub=1, ranges=((first, last),)), body))


def test_first_connection_greets_then_subscribes_as_asked_for() -> None:
    core = core_of(durable="billing", ack_wait=2.5, backoff=(1.0, 5.0), partitions=("a",))
    hello, subscribe = requests(core.opened())
    assert isinstance(hello, consume.Hello)
    assert isinstance(subscribe, consume.Subscribe)
    assert (subscribe.durable, subscribe.ack_wait_ms, subscribe.backoff_ms) == ("billing", 2500, (1000, 5000))
    assert subscribe.partitions == ("a",)
    assert not subscribe.replace


def test_subscription_stands_when_the_server_says_so() -> None:
    core = core_of()
    assert open_up(core, mark=7) == [Ready(7)]
    assert (core.state, core.mark) == ("open", 7)


def test_deliveries_are_handed_on_in_order() -> None:
    core = core_of()
    open_up(core)
    (hand,) = deliver(core, 1, 3)
    assert isinstance(hand, Hand)
    assert hand.delivery.batch().to_pydict() == {"n": [1, 2, 3]}


def test_subscription_is_opened_again_with_the_values_last_configured() -> None:
    core = core_of(durable="d", max_inflight=10)
    open_up(core)
    core.configure(core.number(), {"max_inflight": 99})
    core.lost("cut")
    subscribe = requests(core.opened())[-1]
    assert isinstance(subscribe, consume.Subscribe)
    assert subscribe.max_inflight == 99
    assert subscribe.replace, "the server may not know yet that the old connection is gone"


def test_change_that_was_pending_when_the_connection_went_is_confirmed_by_the_next_one() -> None:
    core = core_of()
    open_up(core)
    number = core.number()
    (change,) = requests(core.configure(number, {"priority": 3}))
    assert isinstance(change, consume.Configure)
    assert core.lost("cut") == []
    assert open_up(core) == [Restored(0), Answered(number, None, None)]


def test_change_without_a_connection_waits_for_one() -> None:
    core = core_of()
    number = core.number()
    assert core.configure(number, {"max_inflight": 5}) == []
    assert open_up(core) == [Ready(0), Answered(number, None, None)]


def test_answer_that_waits_fails_when_the_connection_goes() -> None:
    core = core_of()
    open_up(core)
    deliver(core, 1, 2)
    number = core.number()
    core.answer(consume.Ack(sub=1, ranges=((1, 2),), request=number))
    (answered,) = core.lost("cut")
    assert isinstance(answered, Answered)
    assert answered.request == number
    assert isinstance(answered.error, NotConfirmed)


def test_answer_without_a_connection_is_not_kept() -> None:
    core = core_of()
    open_up(core)
    core.lost("cut")
    (answered,) = core.answer(consume.Ack(sub=1, ranges=((1, 1),), request=core.number()))
    assert isinstance(answered, Answered)
    assert isinstance(answered.error, NotConfirmed)
    assert [type(request) for request in requests(core.opened())] == [consume.Hello, consume.Subscribe]


@pytest.mark.parametrize(("acked", "start"), [(((1, 2),), 3), ((), 1), (((1, 4),), 5), (((2, 4),), 1)])
def test_ephemeral_subscription_goes_on_at_the_lowest_message_without_an_answer(
    acked: tuple[tuple[int, int], ...], start: int
) -> None:
    core = core_of(start="first")
    open_up(core)
    deliver(core, 1, 4)
    if acked:
        core.answer(consume.Ack(sub=1, ranges=acked))
    core.lost("cut")
    subscribe = requests(core.opened())[-1]
    assert isinstance(subscribe, consume.Subscribe)
    assert subscribe.start == start


def test_durable_leaves_its_place_to_the_server() -> None:
    core = core_of(durable="d", start="first")
    open_up(core)
    deliver(core, 1, 4)
    core.lost("cut")
    subscribe = requests(core.opened())[-1]
    assert isinstance(subscribe, consume.Subscribe)
    assert subscribe.start == "first"


def test_close_waits_for_the_server_and_takes_nothing_more() -> None:
    core = core_of()
    open_up(core)
    number = core.number()
    (close,) = requests(core.close(number, remove=False))
    assert isinstance(close, consume.Close)
    assert deliver(core, 1, 1) == []
    answered, ended = hear(core, consume.Closed(request=number, sub=1))
    assert isinstance(answered, Answered)
    assert answered.error is None
    assert ended == Ended()
    assert core.state == "closed"


def test_close_without_a_connection_is_local_and_final() -> None:
    core = core_of()
    open_up(core)
    core.lost("cut")
    number = core.number()
    assert core.close(number, remove=False) == [Ended(), Answered(number, None, None)]
    assert core.state == "closed"


def test_close_that_was_sent_when_the_connection_went_is_final() -> None:
    core = core_of()
    open_up(core)
    number = core.number()
    core.close(number, remove=False)
    assert core.lost("cut") == [Answered(number, None, None), Ended()]


def test_removal_needs_a_connection() -> None:
    core = core_of(durable="d")
    (answered,) = core.close(core.number(), remove=True)
    assert isinstance(answered, Answered)
    assert isinstance(answered.error, NotConfirmed)
    assert core.state == "offline"


def test_refusal_that_may_pass_is_tried_again_and_any_other_ends_the_consumer() -> None:
    core = core_of()
    subscribe = requests(core.opened())[-1]
    assert isinstance(subscribe, consume.Subscribe)
    busy = consume.Refused(request=subscribe.request, sub=1, code="in_use", reason="taken", retry=True)
    assert hear(core, busy) == [Hangup("taken")]
    full = consume.Refused(request=subscribe.request, sub=1, code="limit_reached", reason="max_subs is 1")
    (halt,) = hear(core, full)
    assert isinstance(halt, Halt)
    assert isinstance(halt.error, SubscriptionRefused)
    assert halt.error.code == "limit_reached"


def test_refused_subscription_of_a_caller_without_the_right_is_forbidden() -> None:
    core = core_of()
    subscribe = requests(core.opened())[-1]
    assert isinstance(subscribe, consume.Subscribe)
    (halt,) = hear(core, consume.Refused(request=subscribe.request, sub=1, code="forbidden", reason="no"))
    assert isinstance(halt, Halt)
    assert isinstance(halt.error, Forbidden)
    assert str(halt.error) == "no"


def test_refused_change_is_the_callers_error_and_the_subscription_goes_on() -> None:
    core = core_of()
    open_up(core)
    number = core.number()
    core.configure(number, {"max_inflight": 5})
    refused = consume.Refused(request=number, sub=1, code="bad_request", reason="too few")
    (answered,) = hear(core, refused)
    assert isinstance(answered, Answered)
    assert isinstance(answered.error, SubscriptionRefused)
    assert core.state == "open"


def test_subscription_that_the_server_ends_ends_the_consumer() -> None:
    core = core_of(durable="d")
    open_up(core)
    notice, halt = hear(core, consume.Event(event="ended", sub=1, code="in_use", reason="another one took it"))
    assert isinstance(notice, Notice)
    assert isinstance(halt, Halt)
    assert "another one took it" in str(halt.error)


def test_subscription_that_is_put_elsewhere_is_opened_again_after_a_new_connection() -> None:
    core = core_of(durable="d")
    open_up(core)
    notice, hangup = hear(core, consume.Event(event="ended", sub=1, code="unavailable", reason="put elsewhere"))
    assert isinstance(notice, Notice)
    assert hangup == Hangup("put elsewhere")
    core.lost("put elsewhere")
    open_up(core)
    assert core.state == "open"


def test_notices_of_the_server_are_told() -> None:
    core = core_of()
    open_up(core)
    assert hear(core, consume.Event(event="gap", sub=1, ranges=((1, 9),), reason="age")) == [
        Notice("gap", ((1, 9),), "age")
    ]


def test_bytes_that_are_no_message_end_the_connection() -> None:
    core = core_of()
    open_up(core)
    (hangup,) = core.received(b"nonsense")
    assert isinstance(hangup, Hangup)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"channel": "trades", "start": "sometime"}, "start"),
        ({"channel": "trades", "max_inflight": "many"}, "max_inflight"),
        ({"channel": "trades", "backof": (1.0,)}, "backof"),
        ({}, "channel"),
    ],
)
def test_option_that_is_wrong_is_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidConfig, match=key):
        options_of(options)


def test_what_cannot_be_changed_while_open_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="filter"):
        core_of().configure(1, {"filter": "n > 1"})
