"""The producer of the ingest benchmark, in a process of its own: a `Load` as JSON in, `Figures` as JSON out.

Each connection keeps `window` frames in flight for some seconds. A frame's latency is from handing it to the socket to
the OK that covers it.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections import deque

import msgspec
import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from bench.workload import CHANNEL, events
from holdfast.model.frame import Entry
from holdfast.wire import hfa, replies

ROW_BYTES = 128
HEADER_ROOM = 14
"""Bytes in front of a message into which picows writes the header, so that nothing is copied."""


class Producer(WSListener):
    """One connection."""

    def __init__(self, frame: bytes, window: int) -> None:
        self._frame = bytearray(HEADER_ROOM) + frame
        self._slot_id = uuid.uuid4().bytes
        self._window = window
        self._sent_at: deque[float] = deque()
        self._room = asyncio.Event()
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

    async def send(self, transport: WSTransport, until: float) -> None:
        """Frames until the time is up, then wait for the last answer."""
        sent = 0
        while time.perf_counter() < until:
            while sent - self.answered >= self._window:
                await self._wait()
            message = bytearray(self._frame)
            hfa.stamp(memoryview(message)[HEADER_ROOM:], self._slot_id, sent)
            self._sent_at.append(time.perf_counter())
            transport.send_reuse_external_bytearray(WSMsgType.BINARY, message, HEADER_ROOM)
            sent += 1
            if sent % 16 == 0:
                await asyncio.sleep(0)
        while self.answered < sent:
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


class Figures(msgspec.Struct, frozen=True):
    """What all connections together reached."""

    frames: int
    seconds: float
    frame_bytes: int
    p50_ms: float
    p99_ms: float


async def produce(load: Load) -> Figures:
    """Connect, send, measure."""
    entry = Entry(CHANNEL, events(max(1, load.frame_bytes // ROW_BYTES)))
    frame = b"".join(hfa.encode([entry], slot_id=bytes(range(1, 17)), fsn=0))
    producers: list[Producer] = []

    def listener() -> Producer:
        producers.append(Producer(frame, load.window))
        return producers[-1]

    transports = [(await ws_connect(listener, load.url))[0] for _ in range(load.connections)]
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for transport, producer in zip(transports, producers, strict=True):
            tasks.create_task(producer.send(transport, started + load.seconds))
    took = time.perf_counter() - started
    latencies = sorted(latency for producer in producers for latency in producer.latencies_s)
    for transport in transports:
        transport.disconnect()
    middle, high = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    return Figures(len(latencies), took, len(frame), middle * 1e3, high * 1e3)


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(produce(msgspec.json.decode(sys.argv[1], type=Load)))).decode())
