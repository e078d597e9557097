"""The I/O thread against a server on a real socket that answers as the test says."""

from __future__ import annotations

import base64
import gc
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    Category,
    Forbidden,
    FrameRefused,
    Incompatible,
    NotConnected,
    SenderHalted,
    SlotFull,
    Unauthenticated,
)
from holdfast.sender.happenings import ConnectionEvent, EventKind, SenderError
from holdfast.sender.policies import Policy
from holdfast.sender.sender import Sender
from holdfast.wire import hfa, qwp
from holdfast.wire.limits import FrameLimits
from tests.e2e.served import free_port
from tests.unit.sender.loopback import PATIENCE_S, Answer, Loopback, Peer, accept_all

FAST: dict[str, Any] = {"reconnect_initial_backoff_millis": 1, "reconnect_max_backoff_millis": 10}


def connect(server: Loopback | int, **keys: Any) -> Sender:
    """A sender without auto-flush, quick to reconnect."""
    port = server if isinstance(server, int) else server.port
    return Sender(addr=f"127.0.0.1:{port}", **{"auto_flush": False, **FAST, **keys})


def numbers(messages: list[bytes]) -> list[int]:
    """The column n of Arrow frames."""
    frames = [hfa.decode(message, FrameLimits()) for message in messages]
    return [value for frame in frames for entry in frame.entries for value in entry.batch.column("n").to_pylist()]


def fsns(messages: list[bytes]) -> list[int]:
    return [hfa.decode(message, FrameLimits()).fsn for message in messages]


def publish(sender: Sender, *values: int) -> int:
    fsn = -1
    for value in values:
        sender.send("t", {"n": value})
        fsn = sender.flush()
    return fsn


class Heard:
    """A handler that remembers, and can be waited for."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._changed = threading.Condition()

    def __call__(self, item: Any) -> None:
        with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    def until(self, count: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.items) >= count, PATIENCE_S), self.items
            return list(self.items)

    def until_kind(self, kind: EventKind) -> ConnectionEvent:
        with self._changed:
            assert self._changed.wait_for(lambda: kind in [item.kind for item in self.items], PATIENCE_S), self.items
            found = next(item for item in self.items if item.kind is kind)
            assert isinstance(found, ConnectionEvent)
            return found


# --- sending --------------------------------------------------------------------------------------------------------


def test_frames_arrive_in_order_with_their_identity() -> None:
    with Loopback(accept_all) as server, connect(server) as sender:
        last = publish(sender, *range(50))
        assert sender.await_acked(last, PATIENCE_S)
        assert numbers(server.peers[0].messages) == list(range(50))
        assert fsns(server.peers[0].messages) == list(range(50))
        assert len({hfa.decode(m, FrameLimits()).slot_id for m in server.peers[0].messages}) == 1


def test_unanswered_frames_are_sent_again_on_the_next_connection() -> None:
    def script(peer: Peer) -> None:
        if peer.number == 0:
            if peer.count == 3:
                peer.ok(0)
                peer.close(1001)
        else:
            peer.ok()

    with Loopback(script) as server, connect(server) as sender:
        last = publish(sender, *range(5))
        assert sender.await_acked(last, PATIENCE_S)
        assert fsns(server.peers[1].messages) == [1, 2, 3, 4]
        statistics = sender.statistics()
        assert statistics.total_frames_replayed >= 2
        assert statistics.total_reconnects_succeeded == 1


def test_answer_in_fragments_is_put_together() -> None:
    def script(peer: Peer) -> None:
        answer = b"\0" + (peer.count - 1).to_bytes(8, "little") + b"\0\0"
        peer.fragments(answer[:3], answer[3:7], answer[7:])

    with Loopback(script) as server, connect(server) as sender:
        assert sender.await_acked(publish(sender, 1), PATIENCE_S)


def test_answer_beyond_what_was_sent_acknowledges_only_that() -> None:
    with Loopback(lambda peer: peer.ok(999)) as server, connect(server) as sender:
        last = publish(sender, 1)
        assert sender.await_acked(last, PATIENCE_S)
        assert sender.acked_fsn == last == sender.published_fsn


def test_malformed_answer_costs_the_connection_and_nothing_else() -> None:
    def script(peer: Peer) -> None:
        if peer.number == 0:
            peer.raw(b"\0\1\2")
        else:
            peer.ok()

    with Loopback(script) as server, connect(server) as sender:
        assert sender.await_acked(publish(sender, 1, 2), PATIENCE_S)
        assert len(server.peers) == 2


def test_large_backlog_passes_a_server_that_reads_slowly() -> None:
    with Loopback(accept_all) as server, connect(server, sf_max_total_bytes="64m") as sender:
        for _ in range(60):
            sender.send("t", {"n": 1, "pad": "x" * 300_000})
            sender.flush()
        assert sender.drain(PATIENCE_S)
        assert server.peers[0].count == 60


# --- the upgrade ----------------------------------------------------------------------------------------------------


def test_upgrade_request_has_the_headers_of_the_wire() -> None:
    with Loopback(accept_all) as server, connect(server, client_id="app", username="u", password="p:w") as sender:
        publish(sender, 1)
        headers = server.peers[0].headers
        assert headers["X-QWP-Max-Version"] == "1"
        assert headers["X-QWP-Client-Id"] == "app"
        assert headers["Authorization"] == "Basic " + base64.b64encode(b"u:p:w").decode()
        assert "X-Holdfast-Slot-Id" not in headers
        assert "Origin" not in headers


def test_token_is_sent_as_a_bearer() -> None:
    with Loopback(accept_all) as server, connect(server, token="secret"):
        assert server.peers[0].headers["Authorization"] == "Bearer secret"


def test_qwp_frames_are_announced_with_slot_and_first_fsn(tmp_path: Path) -> None:
    keys = {"codec": "qwp", "sf_dir": str(tmp_path / "sf")}
    with Loopback(accept_all) as server:
        with connect(server, **keys) as sender:
            assert sender.await_acked(publish(sender, 1, 2, 3), PATIENCE_S)
        first = server.peers[0].headers
        with connect(server, **keys) as sender:
            assert sender.await_acked(publish(sender, 4), PATIENCE_S)
        second = server.peers[1].headers
        assert (first["X-Holdfast-First-Fsn"], second["X-Holdfast-First-Fsn"]) == ("0", "3")
        assert first["X-Holdfast-Slot-Id"] != second["X-Holdfast-Slot-Id"]
        found = qwp.decode(server.peers[0].messages[1], qwp.SymbolDictionary(), FrameLimits(), now_us=0)
        assert found.entries[0].batch.column("n").to_pylist() == [2]


def test_qwp_frames_of_an_earlier_opening_keep_their_own_identity(tmp_path: Path) -> None:
    keys = {"codec": "qwp", "sf_dir": str(tmp_path / "sf"), "close_flush_timeout_millis": 0}
    with Loopback(lambda peer: None) as silent, connect(silent, **keys) as sender:
        publish(sender, 1, 2)
        silent.until(lambda: silent.peers[0].count == 2)
        before = silent.peers[0].headers["X-Holdfast-Slot-Id"]
    with Loopback(accept_all) as server, connect(server, **keys) as sender:
        assert sender.await_acked(publish(sender, 3), PATIENCE_S)
        announced = [(p.headers["X-Holdfast-Slot-Id"], p.headers["X-Holdfast-First-Fsn"]) for p in server.peers]
        assert announced[0] == (before, "0")
        assert announced[-1][1] == "2"
        assert announced[-1][0] != before
        assert [peer.count for peer in server.peers if peer.count] == [2, 1]


def refusing(status: int, *headers: tuple[str, str]) -> Any:
    def upgrade(_headers: Mapping[str, str], _number: int) -> Answer:
        return status, headers

    return upgrade


@pytest.mark.parametrize(("status", "error"), [(401, Unauthenticated), (403, Forbidden)])
@pytest.mark.parametrize("retry", ["off", "on"])
def test_refused_credentials_fail_the_start_at_once(status: int, error: type[Exception], retry: str) -> None:
    with Loopback(accept_all, upgrade=refusing(status)) as server:
        with pytest.raises(error):
            connect(server, initial_connect_retry=retry)
        assert server.requests == 1


def test_refused_credentials_are_told_by_the_next_call_when_the_start_was_async() -> None:
    heard = Heard()
    with Loopback(accept_all, upgrade=refusing(401)) as server:
        sender = connect(server, initial_connect_retry="async", connection_listener=heard)
        heard.until_kind(EventKind.AUTH_FAILED)
        with pytest.raises(Unauthenticated):
            publish(sender, 1)
        sender.close()  # told already


def test_start_without_retry_names_every_address_and_its_failure() -> None:
    ports = [free_port(), free_port()]
    with pytest.raises(NotConnected) as caught:
        Sender(addr=f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    assert len(caught.value.failures) == 2
    assert str(ports[0]) in caught.value.failures[0]


def test_start_that_waits_gives_up_after_its_duration() -> None:
    with pytest.raises(NotConnected):
        connect(free_port(), initial_connect_retry="on", reconnect_max_duration_millis=50)


def test_start_that_waits_survives_a_server_that_comes_late() -> None:
    def upgrade(_headers: Mapping[str, str], number: int) -> Answer:
        return (503, ()) if number < 3 else (101, ())

    with Loopback(accept_all, upgrade=upgrade) as server, connect(server, initial_connect_retry="on") as sender:
        assert sender.await_acked(publish(sender, 1), PATIENCE_S)
        assert server.requests == 4


@pytest.mark.parametrize("status", [404, 426, 503, 421])
def test_other_answers_are_tried_again_while_running(status: int) -> None:
    def upgrade(_headers: Mapping[str, str], number: int) -> Answer:
        return (status, ()) if number < 2 else (101, ())

    with Loopback(accept_all, upgrade=upgrade) as server, connect(server, initial_connect_retry="async") as sender:
        assert sender.await_acked(publish(sender, 1), PATIENCE_S)


def test_replica_is_left_for_the_next_server_of_the_list() -> None:
    replica = Loopback(accept_all, upgrade=refusing(421, ("X-QuestDB-Role", "REPLICA")))
    with replica, Loopback(accept_all) as primary:
        with Sender(addr=f"127.0.0.1:{replica.port},127.0.0.1:{primary.port}", **FAST) as sender:
            sender.send("t", {"n": 1})
            assert sender.drain(PATIENCE_S)
        assert (replica.requests, primary.requests) == (1, 1)


def test_server_of_another_version_is_not_used() -> None:
    def upgrade(_headers: Mapping[str, str], _number: int) -> Answer:
        return 101, [("X-QWP-Version", "2")]

    with Loopback(accept_all, upgrade=upgrade) as server, pytest.raises(NotConnected, match="X-QWP-Version"):
        connect(server)


def test_redirects_are_not_followed() -> None:
    with Loopback(accept_all) as target:

        def upgrade(_headers: Mapping[str, str], _number: int) -> Answer:
            return 503, [("Location", f"ws://127.0.0.1:{target.port}/")]

        with Loopback(accept_all, upgrade=upgrade) as server, pytest.raises(NotConnected):
            connect(server)
        assert target.requests == 0


def test_server_that_never_answers_the_upgrade_is_given_up() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with pytest.raises(NotConnected, match="within"):
            connect(listening.getsockname()[1], auth_timeout_ms=50)


def test_sender_closes_cleanly_while_a_server_owes_the_upgrade() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        sender = connect(listening.getsockname()[1], initial_connect_retry="async", close_flush_timeout_millis=0)
        with listening.accept()[0]:
            sender.close()
        gc.collect()  # an open socket would be a warning, which is an error here


# --- failing over ---------------------------------------------------------------------------------------------------


def test_another_server_takes_over_and_the_listener_is_told() -> None:
    heard = Heard()
    with Loopback(lambda peer: peer.drop()) as first, Loopback(accept_all) as second:
        addresses = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        with Sender(addr=addresses, connection_listener=heard, auto_flush=False, **FAST) as sender:
            assert sender.await_acked(publish(sender, 1, 2), PATIENCE_S)
            event = heard.until_kind(EventKind.FAILED_OVER)
            assert (event.previous_address, event.address) == tuple(addresses.split(","))
            heard.until_kind(EventKind.STATE_RESTORED)
            assert next(item.kind for item in heard.items) is EventKind.CONNECTED


def test_full_ring_blames_the_outage_with_attempts() -> None:
    keys = {"sf_max_segment_bytes": 4096, "sf_max_total_bytes": 8192, "sf_append_deadline_millis": 50}
    port = free_port()
    sender = connect(port, initial_connect_retry="async", close_flush_timeout_millis=0, **keys)
    with pytest.raises(SlotFull) as caught:
        publish(sender, *range(1000))
    assert caught.value.is_outage
    assert "reconnecting since" in str(caught.value)
    assert len(sender.take_pending("t")) == 1
    sender.close()


def test_full_ring_blames_a_server_that_is_slow() -> None:
    keys = {"sf_max_segment_bytes": 4096, "sf_max_total_bytes": 8192, "sf_append_deadline_millis": 50}
    with Loopback(lambda peer: None) as server:
        sender = connect(server, close_flush_timeout_millis=0, **keys)
        with pytest.raises(SlotFull, match="slower than the producer") as caught:
            publish(sender, *range(1000))
        assert not caught.value.is_outage
        assert sender.statistics().total_backpressure_stalls == 1
        assert len(sender.take_pending("t")) == 1
        sender.close()


# --- refusals -------------------------------------------------------------------------------------------------------


def refuse_first(category: Category, times: int = 1) -> Any:
    """Refuse the frame with n = 1 so often; accept the rest."""
    left = [times]

    def script(peer: Peer) -> None:
        if getattr(peer, "refused", False):
            return
        if numbers(peer.messages[-1:]) == [1] and left[0]:
            left[0] -= 1
            peer.refused = True  # type: ignore[attr-defined]
            if peer.count > 1:
                peer.ok(peer.count - 2)
            peer.refuse(category)
        else:
            peer.ok()

    return script


@pytest.mark.parametrize("category", [Category.SCHEMA_MISMATCH, Category.WRITE_ERROR])
def test_dropped_frame_is_kept_as_a_dead_letter_and_the_rest_arrives(tmp_path: Path, category: Category) -> None:
    heard = Heard()
    with Loopback(refuse_first(category)) as server:
        with connect(server, sf_dir=str(tmp_path / "sf"), error_handler=heard) as sender:
            last = publish(sender, 0, 1, 2, 3)
            assert sender.await_acked(last, PATIENCE_S)
            with pytest.raises(FrameRefused) as caught:
                sender.await_acked(1, PATIENCE_S)
        (error,) = heard.until(1)
        assert isinstance(error, SenderError)
        assert (error.category, error.policy, error.first_fsn, error.last_fsn) == (category, Policy.DROP, 1, 1)
        assert error.kept_in is not None
        assert (error.kept_in / "rejection.json").exists()
        assert caught.value.kept_in == error.kept_in
        seen = [number for peer in server.peers for number in numbers(peer.messages)]
        assert seen[-2:] == [2, 3]


def test_future_of_a_dropped_frame_ends_with_the_refusal() -> None:
    with Loopback(refuse_first(Category.SCHEMA_MISMATCH)) as server, connect(server) as sender:
        futures = [sender.when_acked(publish(sender, value)) for value in range(3)]
        assert futures[0].result(PATIENCE_S) == 0
        with pytest.raises(FrameRefused):
            futures[1].result(PATIENCE_S)
        assert futures[2].result(PATIENCE_S) == 2


@pytest.mark.parametrize("category", [Category.PARSE_ERROR, Category.INTERNAL_ERROR, Category.SECURITY_ERROR])
def test_halting_refusal_is_told_by_the_next_call_and_keeps_the_frames(tmp_path: Path, category: Category) -> None:
    heard = Heard()
    with Loopback(refuse_first(category, times=99)) as server:
        sender = connect(server, sf_dir=str(tmp_path / "sf"), error_handler=heard)
        future = sender.when_acked(publish(sender, 0, 1))
        with pytest.raises(SenderHalted):
            future.result(PATIENCE_S)
        with pytest.raises(SenderHalted, match=category.name):
            publish(sender, 2)
        assert sender.statistics().last_terminal_error
        sender.close()
        assert len(server.peers) == 1
        assert heard.until(1)[0].policy is Policy.HALT
    with Loopback(accept_all) as server, connect(server, sf_dir=str(tmp_path / "sf")) as sender:
        assert sender.drain(PATIENCE_S)
        assert numbers(server.peers[0].messages)[-1] == 1


def test_close_raises_a_halt_that_nobody_was_told_of() -> None:
    with Loopback(refuse_first(Category.PARSE_ERROR)) as server:
        sender = connect(server)
        publish(sender, 1)
        server.until(lambda: bool(server.peers[0].messages))
        with pytest.raises(SenderHalted):
            sender.close()
        sender.close()


def test_retriable_policy_sends_again_until_it_is_taken() -> None:
    with Loopback(refuse_first(Category.WRITE_ERROR, times=2)) as server:
        with connect(server, on_write_error="retriable") as sender:
            assert sender.await_acked(publish(sender, 0, 1, 2), PATIENCE_S)
        assert len(server.peers) == 3


def test_policy_for_all_categories_is_overridden_by_one() -> None:
    loopback = Loopback(refuse_first(Category.SCHEMA_MISMATCH))
    with loopback as server, connect(server, on_server_error="halt", on_schema_error="drop") as sender:
        assert sender.await_acked(publish(sender, 0, 1, 2), PATIENCE_S)


def test_frame_that_always_ends_the_connection_halts_in_the_end() -> None:
    with Loopback(lambda peer: peer.close(1011)) as server:
        sender = connect(server, max_frame_rejections=3, poison_min_escalation_window_millis=0)
        publish(sender, 1)
        with pytest.raises(SenderHalted, match="3 connections"):
            sender.await_acked(0, PATIENCE_S)
        sender.close()
        assert len(server.peers) == 3


@pytest.mark.parametrize("code", [1002, 1003, 1008, 1009])
def test_close_code_that_blames_us_halts_at_once(code: int) -> None:
    with Loopback(lambda peer: peer.close(code, "why")) as server:
        sender = connect(server)
        publish(sender, 1)
        with pytest.raises(SenderHalted, match=rf"ws-close\[{code}\]: why"):
            sender.await_acked(0, PATIENCE_S)
        sender.close()
        assert len(server.peers) == 1


def test_text_message_from_a_server_halts() -> None:
    with Loopback(lambda peer: peer.text("hello")) as server:
        sender = connect(server)
        publish(sender, 1)
        with pytest.raises(SenderHalted, match="TEXT"):
            sender.await_acked(0, PATIENCE_S)
        sender.close()


def test_frame_above_the_servers_limit_is_not_sent() -> None:
    def upgrade(_headers: Mapping[str, str], number: int) -> Answer:
        return 101, [("X-QWP-Max-Batch-Size", "2000")]

    keys = {"max_frame_rejections": 2, "poison_min_escalation_window_millis": 0}
    with Loopback(accept_all, upgrade=upgrade) as server:
        sender = connect(server, initial_connect_retry="async", **keys)
        sender._link.batch_bytes_max = None  # as if the frame was made before anybody knew the limit
        sender._ring.append(b"H" * 3000)
        with pytest.raises(SenderHalted, match="the server takes 2000"):
            sender.await_acked(0, PATIENCE_S)
        sender.close()
        assert all(peer.count == 0 for peer in server.peers)


def test_batches_are_split_to_what_the_server_takes() -> None:
    def upgrade(_headers: Mapping[str, str], number: int) -> Answer:
        return 101, [("X-QWP-Max-Batch-Size", "4000")]

    with Loopback(accept_all, upgrade=upgrade) as server, connect(server) as sender:
        sender.send("t", [{"n": n, "pad": "x" * 100} for n in range(500)])
        assert sender.drain(PATIENCE_S)
        messages = server.peers[0].messages
        assert max(map(len, messages)) <= 4000
        assert numbers(messages) == list(range(500))


# --- durable acknowledgements ---------------------------------------------------------------------------------------


def durable(_headers: Mapping[str, str], _number: int) -> Answer:
    return 101, [("X-QWP-Durable-Ack", "Enabled")]


def test_durable_mode_asks_for_it_and_waits_for_the_confirmation() -> None:
    loopback = Loopback(lambda peer: peer.ok(t=peer.count), upgrade=durable)
    with loopback as server, connect(server, request_durable_ack="on") as sender:
        last = publish(sender, 0, 1)
        server.until(lambda: server.peers[0].pings > 0)
        assert server.peers[0].headers["X-QWP-Request-Durable-Ack"] == "true"
        assert sender.acked_fsn == -1
        assert not sender.await_acked(last, 0.01)
        server.do(lambda: server.peers[0].durable(t=2))
        assert sender.await_acked(last, PATIENCE_S)


def test_pings_go_on_while_confirmations_are_pending() -> None:
    def on_ping(peer: Peer) -> None:
        if peer.pings == 3:
            peer.durable(t=99)

    keys = {"request_durable_ack": "on", "durable_ack_keepalive_interval_millis": 5}
    loopback = Loopback(lambda peer: peer.ok(t=peer.count), on_ping=on_ping, upgrade=durable)
    with loopback as server, connect(server, **keys) as sender:
        assert sender.await_acked(publish(sender, 1), PATIENCE_S)
        assert server.peers[0].pings == 3


def test_server_without_durable_answers_is_refused_loudly() -> None:
    with Loopback(accept_all) as server, pytest.raises(Incompatible, match="request_durable_ack"):
        connect(server, request_durable_ack="on")
