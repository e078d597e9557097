"""The sender's API for asyncio: the same promises, and the event loop goes on whatever a call waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import Category, Closed, FrameRefused, NotConnected, SchemaMismatch, SlotFull
from holdfast.sender.asyncsender import AsyncSender
from tests.e2e.served import free_port
from tests.unit.sender.loopback import Loopback
from tests.unit.server.harness import RunningServer

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("data")) as running:
        yield running


def connect(port: int, **keys: Any) -> AsyncSender:
    return AsyncSender.from_keywords(addr=f"127.0.0.1:{port}", **{"auto_flush": False, **keys})


def test_events_of_many_tasks_arrive_once_each(server: RunningServer) -> None:
    async def produce(sender: AsyncSender, first: int) -> None:
        for n in range(first, first + 100):
            await sender.send("tasks", {"n": n})

    async def run() -> None:
        async with connect(server.port, auto_flush=True, auto_flush_rows=17) as sender:
            async with asyncio.TaskGroup() as group:
                for place in range(5):
                    group.create_task(produce(sender, 1000 * place))
            assert await sender.drain(PATIENCE_S)
            assert sender.acked_fsn == sender.published_fsn
            assert sender.pending_rows == 0

    asyncio.run(run())
    rows = [int(str(n)) for n in server.rows("tasks")]
    assert sorted(rows) == sorted(n for place in range(5) for n in range(1000 * place, 1000 * place + 100))


def test_tables_and_long_lists_keep_the_order_of_their_calls(server: RunningServer) -> None:
    async def run() -> None:
        async with AsyncSender.from_conf(f"ws::addr=127.0.0.1:{server.port};", auto_flush=False) as sender:
            await sender.send("ordered", {"n": 0})
            await sender.send("ordered", pa.table({"n": [1, 2]}))
            await sender.send("ordered", [{"n": n} for n in range(3, 300)])
            fsn = await sender.flush()
            assert await sender.await_acked(fsn, PATIENCE_S)
            assert sender.statistics().is_connected

    asyncio.run(run())
    assert server.rows("ordered") == list(range(300))


def test_loop_goes_on_while_a_flush_waits_for_room() -> None:
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        asyncio.get_running_loop().call_soon(tick)

    async def fill(sender: AsyncSender) -> int:
        while True:
            await sender.send("t", {"pad": "x" * 500})
            before = ticks
            try:
                await sender.flush()
            except SlotFull:
                return ticks - before

    async def run() -> int:
        keys = {"sf_max_segment_bytes": 4096, "sf_max_total_bytes": 8192, "sf_append_deadline_millis": 200}
        with Loopback(lambda _peer: None) as silent:
            async with connect(silent.port, close_flush_timeout_millis=0, **keys) as sender:
                tick()
                ticked = await fill(sender)
                sender.take_pending("t")
                return ticked

    assert asyncio.run(run()) > 100


def test_waiting_for_an_answer_ends_with_its_timeout_or_its_refusal() -> None:
    async def run() -> None:
        def script(peer: Any) -> None:
            if peer.count == 2:
                peer.ok(0)
                peer.refuse(Category.SCHEMA_MISMATCH)

        with Loopback(script) as server:
            async with connect(server.port, close_flush_timeout_millis=0) as sender:
                await sender.send("t", {"n": 1})
                first = await sender.flush()
                assert not await sender.await_acked(first, 0.01)
                await sender.send("t", {"n": 2})
                second = await sender.flush()
                assert await sender.await_acked(first, PATIENCE_S)
                with pytest.raises(FrameRefused):
                    await sender.await_acked(second, PATIENCE_S)
                assert await sender.drain(PATIENCE_S)

    asyncio.run(run())


def test_refused_calls_and_closed_senders_say_so(tmp_path: Path, server: RunningServer) -> None:
    async def run() -> None:
        unopened = connect(server.port)
        with pytest.raises(Closed, match="not opened"):
            await unopened.send("t", {"n": 1})
        await unopened.close()
        with pytest.raises(NotConnected):
            await connect(free_port()).open()
        sender = await connect(server.port).open()
        await sender.send("t", {"n": 1})
        with pytest.raises(SchemaMismatch):
            await sender.send("t", {"n": "x"})
        await sender.close()
        await sender.close()
        for call in (sender.flush(), sender.send("t", {"n": 1}), sender.open(), sender.drain()):
            with pytest.raises(Closed):
                await call

    asyncio.run(run())


def test_settings_come_from_the_environment_for_asyncio_too(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with AsyncSender.from_env() as sender:
            await sender.send("async-environment", {"n": 1})

    monkeypatch.setenv("HOLDFAST_CONF", f"ws::addr=127.0.0.1:{server.port};")
    asyncio.run(run())
    assert server.rows("async-environment") == [1]
