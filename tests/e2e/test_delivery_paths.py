"""Consumers on the ways that are not the short one: behind the tail, from the tier, through TLS with a token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from holdfast import Consumer, Sender
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Forbidden, Unauthenticated
from holdfast.server.access.tokens import TokenFile
from tests.conformance.certificates import OPENSSL, make_certificates
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port
from tests.unit.delivery.harness import DeliveryServer

MIB = 1 << 20
ROW = bytes(16 << 10)
ROWS = 64
"""Rows of a frame: one MiB."""


def serve(tmp_path: Path, settings: str) -> ServedProcess:
    (tmp_path / "settings.yaml").write_text(settings)
    return ServedProcess(tmp_path / "data", "-c", str(tmp_path / "settings.yaml"), port=free_port())


def send(server: ServedProcess, frames: int, *, first: int = 0) -> int:
    """So many MiB, accepted; the number after the last row."""
    with Sender.from_conf(f"ws::addr=127.0.0.1:{server.port};auto_flush=off;") as sender:
        for frame in range(frames):
            start = first + frame * ROWS
            sender.send("trades", pa.record_batch({"n": range(start, start + ROWS), "b": [ROW] * ROWS}))
            sender.flush()
        assert sender.drain(PATIENCE_S)
    return first + frames * ROWS


def own_bytes(server: ServedProcess) -> int:
    """Memory of the server that is not a mapped file."""
    found = psutil.Process(server.process.pid).memory_info()
    return int(found.rss - found.shared)


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.arrow*") if path.is_file())


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    tries = int(PATIENCE_S / 0.05)
    assert any(condition() or pause.wait(0.05) for _ in range(tries)), "it never came true"


@pytest.mark.guarantee("G11")
def test_a_slow_consumer_falls_from_the_tail_to_segments_and_the_server_does_not_grow(tmp_path: Path) -> None:
    """It reads the live tail, stops for eighty MiB, and goes on: everything once, in order."""
    settings = "memory_limit: 16MiB\nwal:\n  max_size: 256MiB\nsegment:\n  target_size: 2MiB\n"
    with serve(tmp_path, settings) as server:
        sent = send(server, 80)  # the pools of a server that has worked are full before anything is compared
        conf = f"ws::addr=127.0.0.1:{server.port};"
        keys = {"channel": "trades", "durable": "slow", "max_inflight": 4 * ROWS, "columns": ["n"], "system": ["_seq"]}
        with Consumer.from_conf(conf, start="new", batch_rows=ROWS, **keys) as slow:
            sent = send(server, 2, first=sent)
            seen: list[tuple[int, int]] = []

            def take(rows: int) -> None:
                for delivery in slow.deliveries(PATIENCE_S):
                    seen.extend(zip(delivery.batch["_seq"].to_pylist(), delivery.batch["n"].to_pylist(), strict=True))
                    delivery.ack()
                    if len(seen) >= rows:
                        return

            take(2 * ROWS)
            before = own_bytes(server)
            sent = send(server, 80, first=sent)
            until(lambda: own_bytes(server) - before < 60 * MIB)  # once all is sealed; a consumer is 80 MiB behind
            take(82 * ROWS)
        assert seen == [(seq, seq - 1) for seq in range(80 * ROWS + 1, 162 * ROWS + 1)]


def test_events_that_are_only_in_the_tier_are_delivered_in_order(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    settings = (
        f"tier:\n  max_delay: 50ms\n  url: file://{tmp_path}/bucket\n"
        "retention:\n  mode: limits\n  local: 1MiB\n  tick: 100ms\nsegment:\n  target_size: 1MiB\n"
    )
    with serve(tmp_path, settings) as server:
        sent = send(server, 12)
        until(lambda: bytes_of(tmp_path / "bucket") > 10 * MIB and bytes_of(tmp_path / "data" / "channels") < 3 * MIB)
        keys = {"channel": "trades", "durable": "late", "columns": ["n"], "max_inflight": 10_000}
        with Consumer.from_conf(f"ws::addr=127.0.0.1:{server.port};", **keys) as late:
            seen: list[int] = []
            for delivery in late.deliveries(PATIENCE_S):
                assert not delivery.redelivered
                seen += delivery.batch["n"].to_pylist()
                delivery.ack()
                if len(seen) >= sent:
                    break
        assert seen == list(range(sent))


@pytest.mark.skipif(OPENSSL is None, reason="the openssl command is not there")
@pytest.mark.guarantee("G12")
def test_delivery_through_tls_with_a_token_and_only_with_it(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", name="localhost")
    settings = {
        "tls.cert": str(files.cert),
        "tls.key": str(files.key),
        "access": [{"principal": "app", "allow": "consume", "channels": "trades"}],
    }
    with DeliveryServer(tmp_path / "data", settings, tls=True) as server:
        tokens = TokenFile(LocalFilesystem(), server.config.tokens_path)
        _, secret = tokens.create("app", now_ns=server.clock.wall_ns())
        server.ask(server.gatekeeper.poll)
        server.commit(1, 2, 3)
        server.commit(4, channel="orders")
        conf = f"wss::addr=localhost:{server.port};tls_roots={files.authority};"
        with Consumer.from_conf(f"{conf}token={secret};", channel="trades", durable="d") as consumer:
            messages = consumer.fetch(3, PATIENCE_S)
            assert [message.data["n"] for message in messages] == [1, 2, 3]
            for message in messages:
                message.ack_sync()
        assert server.mark("d") == 3
        with pytest.raises(Forbidden, match="orders"):
            Consumer.from_conf(f"{conf}token={secret};", channel="orders")
        with pytest.raises(Unauthenticated):
            Consumer.from_conf(f"{conf}token=wrong;", channel="trades")
