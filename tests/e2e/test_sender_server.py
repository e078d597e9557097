"""A sender and the real server: what is refused, who is let in, and slots shared with the real QuestDB client."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.disk.local import LocalFilesystem
from holdfast.errors import FrameRefused, Incompatible, NotConnected, SenderHalted, Unauthenticated
from holdfast.sender.happenings import SenderError
from holdfast.sender.policies import Policy
from holdfast.sender.recovery import frames_of, survey
from holdfast.sender.sender import Sender
from holdfast.server.access.tokens import TokenFile
from tests.conformance.certificates import make_certificates
from tests.conformance.test_questdb_outages import Writer
from tests.e2e.served import free_port
from tests.unit.sender.test_link import Heard
from tests.unit.server.harness import RunningServer

PATIENCE_S = 30.0


def connect(server: RunningServer | int, **keys: Any) -> Sender:
    port = server if isinstance(server, int) else server.port
    return Sender(addr=f"127.0.0.1:{port}", **{"auto_flush": False, **keys})


# --- refusals of the real server ------------------------------------------------------------------------------------


def clash(sender: Sender) -> int:
    """Three frames, the second of which does not fit the channel; its FSN."""
    sender.send("t", pa.table({"n": [0]}))
    sender.flush()
    sender.send("t", pa.table({"n": ["text"]}))
    refused = sender.flush()
    sender.send("t", pa.table({"n": [2]}))
    sender.flush()
    return refused


def test_frame_that_does_not_fit_its_channel_becomes_a_dead_letter(tmp_path: Path) -> None:
    heard = Heard()
    with RunningServer(tmp_path / "data") as server:
        with connect(server, sf_dir=str(tmp_path / "sf"), error_handler=heard) as sender:
            refused = clash(sender)
            assert sender.drain(PATIENCE_S)
            with pytest.raises(FrameRefused, match="'n'"):
                sender.await_acked(refused)
        assert server.rows("t") == [0, 2]
    (error,) = heard.until(1)
    assert isinstance(error, SenderError)
    assert error.kept_in is not None
    filesystem = LocalFilesystem()
    kept = list(frames_of(filesystem, survey(filesystem, error.kept_in)))
    assert [fsn for fsn, _ in kept] == [refused]


def test_halt_policy_keeps_the_frame_and_everything_behind_it(tmp_path: Path) -> None:
    keys = {"sf_dir": str(tmp_path / "sf"), "on_schema_error": "halt"}
    sender = connect(free_port(), initial_connect_retry="async", close_flush_timeout_millis=0, **keys)
    refused = clash(sender)  # before there is a server, so that all three are in the slot
    sender.close()
    with RunningServer(tmp_path / "data") as server:
        sender = connect(server, **keys)
        with pytest.raises(SenderHalted, match="SCHEMA_MISMATCH") as caught:
            sender.await_acked(refused, PATIENCE_S)
        assert caught.value.first_fsn == refused
        sender.close()
        assert server.rows("t") == [0]
        with connect(server, **{**keys, "on_schema_error": "drop"}) as sender:
            assert sender.drain(PATIENCE_S)
        assert server.rows("t") == [0, 2]


def test_retriable_policy_tries_for_a_while_and_then_halts(tmp_path: Path) -> None:
    heard = Heard()
    keys = {"reconnect_initial_backoff_millis": 1, "poison_min_escalation_window_millis": 0, "max_frame_rejections": 3}
    with RunningServer(tmp_path / "data") as server:
        sender = connect(server, on_schema_error="retriable", error_handler=heard, **keys)
        for value in (0, "text"):
            sender.send("t", pa.table({"n": [value]}))
            sender.flush()
        with pytest.raises(SenderHalted, match="3 connections"):
            sender.await_acked(1, PATIENCE_S)
        sender.close()
        assert server.rows("t") == [0]
    assert [error.policy for error in heard.until(3)] == [Policy.RETRY] * 3


# --- who is let in --------------------------------------------------------------------------------------------------


def test_server_without_an_object_store_refuses_durable_answers(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, pytest.raises(Incompatible, match="request_durable_ack"):
        connect(server, request_durable_ack="on")


def test_replica_is_left_for_the_primary(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "one", {"server.role": "replica"}) as replica:
        with pytest.raises(NotConnected, match="REPLICA"):
            connect(replica)
        with RunningServer(tmp_path / "two") as primary:
            with Sender(addr=f"127.0.0.1:{replica.port},127.0.0.1:{primary.port}") as sender:
                sender.send("t", {"n": 1})
            assert primary.rows("t") == [1]


def test_token_opens_the_door_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        tokens = TokenFile(LocalFilesystem(), server.config.tokens_path)
        _, secret = tokens.create("app", now_ns=server.clock.wall_ns())
        server.ask(server.gatekeeper.poll)
        with connect(server, token=secret) as sender:
            sender.send("t", {"n": 1})
        assert server.rows("t") == [1]
        with pytest.raises(Unauthenticated) as caught:
            connect(server, token="wrong-secret")
        assert "wrong-secret" not in str(caught.value)


def test_wss_verifies_the_server_unless_told_not_to(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", name="localhost")
    settings = {"tls.cert": str(files.cert), "tls.key": str(files.key)}
    with RunningServer(tmp_path / "data", settings, tls=True) as server:
        conf = f"wss::addr=localhost:{server.port};"
        with Sender.from_conf(f"{conf}tls_roots={files.authority};") as sender:
            sender.send("t", {"n": 1})
        with Sender.from_conf(f"{conf}tls_verify=unsafe_off;") as sender:
            sender.send("t", {"n": 2})
        assert server.rows("t") == [1, 2]
        with pytest.raises(NotConnected, match=r"(?i)certificate"):
            Sender.from_conf(conf)


# --- outages --------------------------------------------------------------------------------------------------------


def test_server_that_restarts_gets_everything_once(tmp_path: Path) -> None:
    port = free_port()
    settings = {"server.listen": f"127.0.0.1:{port}"}
    keys = {"reconnect_initial_backoff_millis": 2, "reconnect_max_backoff_millis": 20}
    sender = connect(port, initial_connect_retry="async", **keys)
    enough, pause = threading.Event(), threading.Event()
    sent: list[int] = []

    def produce() -> None:
        """A frame after the other while servers come and go, and never more than some hundred that nobody has."""
        for n in count():
            while n - sender.acked_fsn > 500 and not enough.is_set():
                pause.wait(0.001)
            if enough.is_set():
                return
            sender.send("t", {"n": n})
            sender.flush()
            sent.append(n)

    thread = threading.Thread(target=produce)
    thread.start()
    for _ in range(3):
        with RunningServer(tmp_path / "data", settings) as server:
            assert sender.await_acked(sender.acked_fsn + 100, PATIENCE_S)
            server.stop()
    with RunningServer(tmp_path / "data", settings) as server:
        assert sender.await_acked(sender.acked_fsn + 100, PATIENCE_S)
        enough.set()
        thread.join(PATIENCE_S)
        assert sender.drain(PATIENCE_S)
        sender.close()
        assert server.rows("t") == sent
    assert len(sent) >= 400


# --- the real QuestDB client ----------------------------------------------------------------------------------------

pytest.importorskip("questdb")


def test_slot_of_the_questdb_client_is_drained_with_its_symbols(tmp_path: Path) -> None:
    numbers = range(300)
    slots = tmp_path / "slots"
    slots.mkdir()
    with Writer(f"127.0.0.1:{free_port()}", slots, "dead", numbers) as writer:
        writer.published()
        writer.kill()
    assert list((slots / "dead").glob("*.sfa"))
    with RunningServer(tmp_path / "data") as server:
        with connect(server, sf_dir=str(slots), sender_id="ours", drain_orphans="on") as sender:
            assert sender._orphans is not None
            for thread in sender._orphans._threads:
                thread.join(PATIENCE_S)
            assert sender.statistics().total_background_drainers_succeeded == 1
        assert server.rows("trades") == list(numbers)
        assert server.rows("trades", "pair") == [f"pair-{n % 5}" for n in numbers]
    assert not list((slots / "dead").glob("*.sfa"))


def test_slot_of_the_questdb_client_is_taken_over_by_the_same_name(tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    slots.mkdir()
    with Writer(f"127.0.0.1:{free_port()}", slots, "app", range(50)) as writer:
        writer.published()
        writer.kill()
    with RunningServer(tmp_path / "data") as server:
        with connect(server, sf_dir=str(slots), sender_id="app") as sender:
            sender.send("ours", {"n": 1})
            assert sender.drain(PATIENCE_S)
        assert server.rows("trades") == list(range(50))
        assert server.rows("trades", "pair") == [f"pair-{n % 5}" for n in range(50)]
        assert server.rows("ours") == [1]


def test_questdb_client_drains_a_slot_of_ours(tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    sender = connect(
        free_port(), codec="qwp", sf_dir=str(slots), sender_id="w", initial_connect_retry="async",
        close_flush_timeout_millis=0,
    )  # fmt: skip
    for n in range(100):
        sender.send("ours", pa.table({"n": [n]}), at=1_700_000_000_000_000_000 + n)
        sender.flush()
    sender.close()
    with RunningServer(tmp_path / "data") as server:
        with Writer(f"127.0.0.1:{server.port}", slots, "w", range(100, 110)) as writer:
            writer.published()
            writer.drain()
        assert server.rows("ours") == list(range(100))
        assert server.rows("trades") == list(range(100, 110))
    assert not list((slots / "w").glob("*.sfa"))
