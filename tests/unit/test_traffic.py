"""What moves on a connection: what comes, what waits for the line and leaves; and what is no sign of life."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable

import pytest
import uvloop

from holdfast.traffic import Traffic, traffic_of

PATIENCE_S = 30.0
LARGE_BYTES = 16 << 20
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel is not asked")


async def until(condition: Callable[[], bool]) -> None:
    held = asyncio.Event()

    def look() -> None:
        if condition():
            held.set()
        else:
            asyncio.get_running_loop().call_later(0.001, look)

    look()
    await asyncio.wait_for(held.wait(), PATIENCE_S)


async def connected() -> tuple[asyncio.Transport, socket.socket]:
    near, far = socket.create_server(("127.0.0.1", 0)), None
    with near:
        far = socket.create_connection(near.getsockname())
        plain, _ = near.accept()
    far.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=plain)
    return transport, far


async def busy() -> None:
    transport, far = await connected()
    with far:
        transport.write(bytes(LARGE_BYTES))
        await until(lambda: traffic_of(transport).is_waiting)
        before = traffic_of(transport)
        await until(lambda: bool(far.recv(1 << 20)) and traffic_of(transport).has_left_since(before))
        transport.abort()


async def free() -> None:
    transport, far = await connected()
    with far:
        before = traffic_of(transport)
        transport.write(b"ping")
        await until(lambda: traffic_of(transport).taken_bytes > before.taken_bytes)
        assert not traffic_of(transport).has_moved_since(before)
        transport.abort()


async def hearing() -> None:
    transport, far = await connected()
    with far:
        before = traffic_of(transport)
        far.send(b"a part of something")
        await until(lambda: traffic_of(transport).has_moved_since(before))
        transport.abort()


async def over() -> None:
    transport, far = await connected()
    far.close()
    before = traffic_of(transport)
    transport.abort()
    await until(lambda: transport.get_extra_info("socket") is None or transport.get_extra_info("socket").fileno() < 0)
    assert not traffic_of(transport).has_moved_since(before)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("case", [busy, free, hearing, over])
def test_only_what_had_to_wait_or_came_counts_as_moving(case: Callable[[], object], loop: Callable[[], object]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(case())  # type: ignore[arg-type]


def test_where_the_kernel_is_not_asked_our_own_buffer_counts() -> None:
    assert Traffic(0, -10, True).has_moved_since(Traffic(0, -20, True))
    assert not Traffic(0, -20, True).has_moved_since(Traffic(0, -20, True))
    assert not Traffic(0, 0, False).has_moved_since(Traffic(0, -20, False))
