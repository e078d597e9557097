"""OTLP at the doors of a server: what is refused uses up none of the channels that a caller may write to."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.dataflow.receivers.guards import Sending, by_gatekeeper
from holdfast.dataflow.receivers.intake import Intake
from holdfast.dataflow.receivers.otlp import OtlpReceiver
from holdfast.dataflow.receivers.settings import OtlpSettings
from holdfast.dataflow.sinks import StoreSink
from holdfast.errors import StoreFailed
from holdfast.server.access import Gatekeeper
from holdfast.wire.otlp.answers import Answer, Refusal
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.otlp_samples import logs_request, traces_request
from tests.unit.server.access.gate import Gate

CHANNELS = {signal: f"otlp.{signal.value}" for signal in Signal}
LOGS, TRACES = logs_request().SerializeToString(), traces_request().SerializeToString()
SETTINGS = OtlpSettings(http_listening_addr="127.0.0.1:0", request_bytes_max=64 << 10)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


class Rig:
    """A caller of one channel, before the store of a server."""

    def __init__(self, store: Store) -> None:
        gate = Gate({"limits": {"*": {"channels": 1}}})
        self.headers = {"authorization": f"Bearer {gate.token('a')}"}
        self.gatekeeper: Gatekeeper = gate.open()
        self.guard = by_gatekeeper(self.gatekeeper, CHANNELS)
        self.sink = StoreSink(store, wait_s=1, stopping=threading.Event())

    def counted(self) -> set[str]:
        return set(self.gatekeeper.bindings.channels_of("a"))

    async def send(self, intake: Intake, signal: Signal, body: bytes) -> Answer:
        judged = await self.guard(self.headers, signal)
        return (
            judged if isinstance(judged, Answer) else await intake.submit(signal, body, protocol="grpc", sending=judged)
        )

    def run(self, work: Callable[[Intake], Awaitable[None]]) -> None:
        async def run() -> None:
            intake = Intake("otlp", SETTINGS, self.sink)
            try:
                await work(intake)
            finally:
                await intake.close()

        asyncio.run(run())


@pytest.mark.guarantee("G12")
def test_requests_that_are_not_stored_use_up_no_channel(store: Store) -> None:
    rig = Rig(store)

    async def work(intake: Intake) -> None:
        for body in (b"nonsense", b"", bytes(65 << 10)):
            await rig.send(intake, Signal.LOGS, body)
            assert rig.counted() == set()
        assert (await rig.send(intake, Signal.TRACES, TRACES)).refusal is None
        assert rig.counted() == {"otlp.traces"}
        assert (await rig.send(intake, Signal.LOGS, LOGS)).refusal is Refusal.FORBIDDEN
        assert (await rig.send(intake, Signal.TRACES, TRACES)).refusal is None

    rig.run(work)
    assert store.channels() == ["otlp.traces"]


@pytest.mark.guarantee("G12")
def test_request_whose_outcome_is_unknown_counts(store: Store) -> None:
    rig = Rig(store)
    store._tail.fail(StoreFailed(file=Path("wal"), reason="sync failed"))

    async def work(intake: Intake) -> None:
        assert (await rig.send(intake, Signal.LOGS, LOGS)).refusal is Refusal.LATER

    rig.run(work)
    assert rig.counted() == {"otlp.logs"}


@pytest.mark.guarantee("G12")
def test_body_that_is_not_taken_uses_up_no_channel(store: Store) -> None:
    rig = Rig(store)

    def post(port: int, body: bytes) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", Signal.LOGS.path, body, {"content-type": "application/x-protobuf", **rig.headers})
        status = connection.getresponse().status
        connection.close()
        return status

    async def run() -> None:
        receiver = OtlpReceiver("otlp", SETTINGS, rig.sink, guard=rig.guard)
        async with asyncio.TaskGroup() as tasks:
            await receiver.start(tasks)
            assert await asyncio.to_thread(post, receiver.ports["http"], bytes(65 << 10)) == 413
            assert rig.counted() == set()
            assert await asyncio.to_thread(post, receiver.ports["http"], LOGS) == 200
            assert rig.counted() == {"otlp.logs"}
            await receiver.stop()

    asyncio.run(run())


def test_guard_gives_a_claim_that_counts_until_it_is_settled(store: Store) -> None:
    rig = Rig(store)
    judged = asyncio.run(_judged(rig))
    assert rig.counted() == {"otlp.logs"}
    judged.claim.refuse()
    assert rig.counted() == set()


async def _judged(rig: Rig) -> Sending:
    judged = await rig.guard(rig.headers, Signal.LOGS)
    assert isinstance(judged, Sending)
    return judged
