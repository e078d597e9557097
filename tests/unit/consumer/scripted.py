"""A server on a real socket that opens subscriptions and delivers what the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.wire import consume
from tests.unit.sender.loopback import Loopback, Peer

_Kind = TypeVar("_Kind", bound=consume.Request)
FAST: dict[str, Any] = {"reconnect_initial_backoff_millis": 1, "reconnect_max_backoff_millis": 10}


def requests(peer: Peer) -> list[consume.Request]:
    """What the consumer sent on a connection."""
    return [consume.decode_request(message) for message in peer.messages]


def sent(peer: Peer, kind: type[_Kind]) -> list[_Kind]:
    """Of one kind."""
    return [request for request in requests(peer) if isinstance(request, kind)]


def deliver(peer: Peer, first: int, last: int, *, attempt: int = 1) -> None:
    """Messages whose column n is their seq."""
    batch = pa.record_batch({"n": pa.array(range(first, last + 1), pa.int64())})
    head = consume.Deliver(sub=1, ranges=((first, last),), attempt=attempt)
    peer.raw(consume.encode_deliver(head, consume.encode_body(batch)))


def say(peer: Peer, reply: consume.Reply) -> None:
    peer.raw(consume.encode(reply))


def serving(opened: Callable[[Peer], None], *, settle: bool = True) -> Loopback:
    """Welcomes, subscribes, then calls `opened`; answers every request that wants one."""

    def script(peer: Peer) -> None:
        request = requests(peer)[-1]
        if isinstance(request, consume.Hello):
            say(peer, consume.Welcome(server="test", session=1, subs_max=1))
        elif isinstance(request, consume.Subscribe):
            say(peer, consume.Subscribed(request=request.request, sub=1, next_seq=1))
            opened(peer)
        elif isinstance(request, consume.Close | consume.Unsubscribe):
            removed = isinstance(request, consume.Unsubscribe)
            say(peer, consume.Closed(request=request.request, sub=1, removed=removed))
        elif isinstance(request, consume.Configure):
            say(peer, configured(request))
        elif settle and getattr(request, "request", None) is not None:
            count = sum(last - first + 1 for first, last in request.ranges)  # type: ignore[attr-defined]
            say(peer, consume.Settled(request=request.request, sub=1, settled=count))  # type: ignore[attr-defined]

    return Loopback(script)


def configured(request: consume.Configure) -> consume.Configured:
    """The answer with what was asked for."""
    return consume.Configured(
        request=request.request,
        sub=1,
        ack_wait_ms=request.ack_wait_ms or 0,
        max_inflight=request.max_inflight or 0,
        max_inflight_bytes=request.max_inflight_bytes or 0,
        batch_rows=request.batch_rows or 0,
        priority=request.priority or 0,
        max_deliver=request.max_deliver or 0,
        backoff_ms=request.backoff_ms or (),
    )
