"""The producer of the ingest benchmark, in a process of its own: a `Load` as JSON in, `Figures` as JSON out.

Each connection keeps `window` frames in flight for some seconds. A frame's latency is from handing it to the socket to
the OK that covers it. The first frame of each connection, with which the server gets to know it, is sent and answered
before the time begins. With `layouts` the strings of a frame are not as long as those of the frame before it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
import uuid
from collections import deque
from collections.abc import Sequence
from itertools import cycle

import msgspec
import pyarrow as pa
import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.served import Served
from bench.workload import CHANNEL, events
from holdfast.model.frame import Entry
from holdfast.wire import hfa, replies

ROW_BYTES = 128
HEADER_ROOM = 14
"""Bytes in front of a message into which picows writes the header, so that nothing is copied."""


class Producer(WSListener):
    """One connection."""

    def __init__(self, frames: Sequence[bytes], window: int) -> None:
        self._frames = cycle([bytearray(HEADER_ROOM) + frame for frame in frames])
        self._slot_id = uuid.uuid4().bytes
        self._window = window
        self._sent_at: deque[float] = deque()
        self._room = asyncio.Event()
        self._sent = 0
        self.answered = 0
        self.latencies_s: list[float] = []

    def pause_writing(self) -> None:
        """The socket is full; the window bounds what waits."""

    def resume_writing(self) -> None:
        """It is not any more."""

    def on_ws_frame(self, _transport: WSTransport, frame: WSFrame) -> None:
        """An answer."""
        if frame.msg_type == WSMsgType.BINARY:
            reply = replies.decode(frame.get_payload_as_memoryview())
            if not isinstance(reply, replies.Ok):
                raise SystemExit(f"refused: {reply}")
            now = time.perf_counter()
            while self.answered <= reply.wire_seq:
                self.latencies_s.append(now - self._sent_at.popleft())
                self.answered += 1
            self._room.set()

    async def greet(self, transport: WSTransport) -> None:
        """The first frame, until it is answered; it is not counted."""
        self._send_one(transport)
        await self._settle()
        self.latencies_s.clear()

    async def send(self, transport: WSTransport, until: float) -> None:
        """Frames until the time is up, then wait for the last answer."""
        while time.perf_counter() < until:
            while self._sent - self.answered >= self._window:
                await self._wait()
            self._send_one(transport)
            if self._sent % 16 == 0:
                await asyncio.sleep(0)
        await self._settle()

    def _send_one(self, transport: WSTransport) -> None:
        message = bytearray(next(self._frames))
        hfa.stamp(memoryview(message)[HEADER_ROOM:], self._slot_id, self._sent)
        self._sent_at.append(time.perf_counter())
        transport.send_reuse_external_bytearray(WSMsgType.BINARY, message, HEADER_ROOM)
        self._sent += 1

    async def _settle(self) -> None:
        while self.answered < self._sent:
            await self._wait()

    async def _wait(self) -> None:
        self._room.clear()
        await self._room.wait()


class Load(msgspec.Struct, frozen=True):
    """What to send where."""

    url: str
    frame_bytes: int
    window: int
    """Frames in flight on each connection."""
    connections: int
    seconds: float
    server_pid: int
    layouts: int = 1
    """Frames that take turns; with more than one the lengths of strings differ from frame to frame."""


class Figures(msgspec.Struct, frozen=True):
    """What all connections together reached."""

    frames: int
    seconds: float
    frame_bytes: int
    """The mean, as sent."""
    p50_ms: float
    p99_ms: float
    server_cpu_s: float
    """What the server took meanwhile."""
    server_rss_mb: float
    """What it held at the end, with all connections."""


def _other_lengths(batch: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    """The same events with strings from half to one and a half times as long: the same bytes in the mean."""
    chance = random.Random(seed)
    for name in ("source", "body"):
        place, texts = batch.schema.get_field_index(name), batch.column(name).to_pylist()
        longer = [(text * 2)[: chance.randint(len(text) // 2, len(text) * 3 // 2)] for text in texts]
        batch = batch.set_column(place, batch.schema.field(name), pa.array(longer))
    return batch


async def produce(load: Load) -> Figures:
    """Connect, send, measure."""
    batch = events(max(1, load.frame_bytes // ROW_BYTES))
    batches = [batch] if load.layouts == 1 else [_other_lengths(batch, number) for number in range(load.layouts)]
    frames = [b"".join(hfa.encode([Entry(CHANNEL, one)], slot_id=bytes(range(1, 17)), fsn=0)) for one in batches]
    producers: list[Producer] = []

    def listener() -> Producer:
        producers.append(Producer(frames, load.window))
        return producers[-1]

    transports = [(await ws_connect(listener, load.url))[0] for _ in range(load.connections)]
    async with asyncio.TaskGroup() as tasks:
        for transport, producer in zip(transports, producers, strict=True):
            tasks.create_task(producer.greet(transport))
    server = Served(load.url, load.server_pid)
    started, before_s = time.perf_counter(), server.cpu_s()
    async with asyncio.TaskGroup() as tasks:
        for transport, producer in zip(transports, producers, strict=True):
            tasks.create_task(producer.send(transport, started + load.seconds))
    took, cpu_s = time.perf_counter() - started, server.cpu_s() - before_s
    rss_mb = server.rss_mb()
    latencies = sorted(latency for producer in producers for latency in producer.latencies_s)
    for transport in transports:
        transport.disconnect()
    middle, high = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    frame_bytes = sum(map(len, frames)) // len(frames)
    return Figures(len(latencies), took, frame_bytes, middle * 1e3, high * 1e3, cpu_s, rss_mb)


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(produce(msgspec.json.decode(sys.argv[1], type=Load)))).decode())
