"""Sync over real sockets: one sync for many, backpressure, peers that do not read, access, the end of a server."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.config.server import ServerConfig
from holdfast.config.sync import SyncConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.server.access.tokens import TokenFile
from holdfast.server.admin.metrics import figures_of, render
from tests.unit.server.harness import CONTINUATION, LOOP_THREAD, PING, TEXT, arrow_frame
from tests.unit.sync.served import SyncServer, Talker
from tests.unit.sync.world import camel, project_event, seed, seed_event, sync


def test_committed_event_is_durable_answered_and_told(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server:
        with server.seed_client("A") as origin, server.seed_client("B") as peer:
            assert peer.ask(sync(["P1"]))["type"] == "sync_response"
            answer = origin.ask(seed("submit_event", **seed_event("e1", n=1)))
            assert (answer["type"], answer["payload"]["committed_id"]) == ("event_committed", 1)
            assert peer.hear()["payload"] == answer["payload"]
        assert server.rows("sync", "id") == ["e1"]


def test_many_clients_share_one_sync_of_the_disk(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server:
        talkers = [server.seed_client(f"c{number}") for number in range(16)]
        talkers[0].ask(seed("submit_event", **seed_event("first")))
        before = server.store.statistics().syncs
        for number, talker in enumerate(talkers):
            for event in range(4):
                talker.say(seed("submit_event", **seed_event(f"e{number}-{event}")))
        for talker in talkers:
            for _ in range(4):
                assert talker.hear()["type"] == "event_committed"
        assert server.store.statistics().syncs - before < 48
        for talker in talkers:
            talker.close()


def test_numbers_survive_the_store_and_a_restart(tmp_path: Path) -> None:
    payload = b'{"a":1.0,"b":1e2,"c":12345678901234567890123,"d":"\\u00e9"}'
    message = json.dumps(seed("submit_event", id="e1", partitions=["P1"], event={"type": "n", "payload": "HERE"}))
    with SyncServer(tmp_path / "data") as server, server.seed_client() as talker:
        assert talker.ask(message.encode().replace(b'"HERE"', payload))["type"] == "event_committed"
    with SyncServer(tmp_path / "data") as server, server.seed_client() as talker:
        talker.say(sync(["P1"]))
        _, text = talker.client.receive()
        assert payload in text


def test_idempotency_survives_a_restart(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server, server.project_client() as talker:
        first = talker.ask(camel("submit_events", events=[project_event("e1")]))["payload"]["results"][0]
    with SyncServer(tmp_path / "data") as server, server.project_client("B") as talker:
        again = talker.ask(camel("submit_events", events=[project_event("e1", client="B")]))["payload"]["results"][0]
        assert again == first
        other = camel("submit_events", events=[project_event("e1", client="B", payload={"n": 0})])
        assert talker.ask(other)["payload"]["results"][0]["status"] == "rejected"


def test_epoch_stays_over_restarts_and_differs_between_logs(tmp_path: Path) -> None:
    epochs = []
    for name in ("one", "one", "two"):
        with SyncServer(tmp_path / name) as server, server.talk() as talker:
            answer = talker.ask(seed("connect", token="t", client_id="A", last_committed_id=0))
            epochs.append(answer["payload"]["log_epoch"])
    assert epochs[0] == epochs[1] != epochs[2]


def test_project_says_where_it_ends(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server:
        with server.project_client(project="p") as talker:
            talker.ask(camel("submit_events", events=[project_event("e1"), project_event("e2")]))
        with server.project_client(project="q") as talker:
            talker.ask(camel("submit_events", events=[project_event("e3", project="q")]))
        with server.talk() as talker:
            answer = talker.ask(camel("connect", token="t", clientId="A", projectId="p"))
            assert answer["payload"]["projectLastCommittedId"] == 2


def test_peer_that_does_not_read_costs_bounded_memory_and_is_cut_off(tmp_path: Path) -> None:
    settings = {"sync.send_buffer": "64KiB", "sync.stall_timeout": "100ms"}
    with SyncServer(tmp_path / "data", settings) as server, server.seed_client("A") as origin:
        stalled = server.seed_client("B")
        stalled.client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.ask(sync(["P1"]))
        handler = server.ask(
            lambda: next(found for found in server.desk._handlers.values() if found.session.identity.client_id == "B")
        )
        transport = handler.connection.transport.underlying_transport
        highest = 0
        for number in range(200):
            event = seed_event(f"e{number}", text="x" * 50_000)
            assert origin.ask(seed("submit_event", **event))["type"] == "event_committed"
            highest = max(highest, server.ask(transport.get_write_buffer_size))
        server.until(lambda: handler.session.number not in server.desk._handlers)
        assert highest < 1 << 20
        stalled.close()


def test_slow_peer_gets_everything_in_order(tmp_path: Path) -> None:
    settings = {"sync.send_buffer": "64KiB", "sync.recent_size": "1MiB"}
    with SyncServer(tmp_path / "data", settings) as server:
        origin, slow = server.seed_client("A"), server.seed_client("B")
        with origin, slow:
            slow.ask(sync(["P1"]))
            for number in range(100):
                origin.ask(seed("submit_event", **seed_event(f"e{number}", text="x" * 50_000)))
            got = [slow.hear()["payload"]["committed_id"] for _ in range(100)]
            assert got == list(range(1, 101))


def test_client_above_its_rate_is_read_slowly_and_refused_nothing(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data", {"sync.messages_per_second": 200}) as server, server.seed_client() as talker:
        for number in range(250):
            talker.say(seed("submit_event", **seed_event(f"e{number}")))
        answers = [talker.hear()["type"] for _ in range(250)]
        assert set(answers) == {"event_committed"}


def test_drafts_beyond_the_bound_wait_in_the_socket(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data", {"sync.max_drafts": 10}) as server, server.seed_client() as talker:
        for number in range(300):
            talker.say(seed("submit_event", **seed_event(f"e{number}")))
        assert [talker.hear()["payload"]["committed_id"] for _ in range(300)] == list(range(1, 301))


def test_binary_messages_and_large_ones_end_the_connection(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data", {"sync.max_message_size": "4KiB"}) as server:
        with server.seed_client("A") as talker:
            talker.client.send(b"{}")
            assert talker.hear()["code"] == 1003
        with server.seed_client("B") as talker:
            talker.say(seed("submit_event", **seed_event("e1", text="x" * 5000)))
            assert talker.hear()["payload"]["code"] == "bad_request"
            assert talker.hear()["type"] == "closed"


def test_clients_are_told_the_bound_that_the_port_has(tmp_path: Path) -> None:
    """Larger frames do not get through the door, whatever sync would take."""
    with SyncServer(tmp_path / "data", settings={"ingest.max_batch_size": "64KiB"}) as server, server.talk() as talker:
        answer = talker.ask(seed("connect", token="t", client_id="A", last_committed_id=0))
        assert answer["payload"]["limits"]["max_message_bytes"] == 64 << 10


def test_message_of_several_frames_is_put_together(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data", {"sync.max_message_size": "4KiB"}) as server:
        with server.seed_client("A") as talker:
            data = json.dumps(seed("submit_event", **seed_event("e1", n=1))).encode()
            talker.client.send(data[:9], opcode=TEXT, fin=False)
            talker.client.send(b"", opcode=PING)
            talker.client.send(data[9:30], opcode=CONTINUATION, fin=False)
            talker.client.send(data[30:], opcode=CONTINUATION)
            assert talker.hear()["type"] == "event_committed"
            assert talker.ask(seed("heartbeat"))["type"] == "heartbeat_ack"
            talker.client.send(b"{", opcode=TEXT, fin=False)
            talker.say(seed("heartbeat"))
            assert talker.hear()["code"] == 1002
        with server.seed_client("B") as talker:
            talker.client.send(b" " * 4000, opcode=TEXT, fin=False)
            talker.client.send(b" " * 4000, opcode=CONTINUATION, fin=False)
            assert talker.hear()["code"] == 1009
        server.until(lambda: not server.server.state.connections)
        assert server.server.door.unfinished.total_bytes == 0


def test_loop_never_commits_or_reads_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SyncServer(tmp_path / "data", {"sync.recent_size": "1MiB"}) as server:
        used: set[tuple[str, str]] = set()
        for name in ("append", "find", "read"):
            real = getattr(server.desk._log, name)

            def noted(*args: Any, _name: str = name, _real: Any = real, **kw: Any) -> Any:
                used.add((_name, threading.current_thread().name))
                return _real(*args, **kw)

            monkeypatch.setattr(server.desk._log, name, noted)
        with server.seed_client() as talker:
            talker.ask(seed("submit_event", **seed_event("e1")))
            talker.ask(sync(["P1"]))
        assert {name for name, _ in used} == {"append", "find", "read"}
        assert LOOP_THREAD not in {thread for _, thread in used}


def test_server_that_stops_answers_first_and_says_so(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server:
        talker = server.project_client()
        talker.say(camel("submit_events", events=[project_event(f"e{number}") for number in range(50)]))
        assert len(talker.hear()["payload"]["results"]) == 50
        server.stop()
        last = talker.hear()
        assert (last["type"], last["payload"]["code"]) == ("error", "server_error")
        assert talker.hear()["type"] == "closed"
        talker.close()
    with Store.open(tmp_path / "data") as store:
        assert sum(batch.num_rows for batch in store.read("sync")) == 50


def connect(talker: Talker, token: str, client_id: str = "A") -> dict[str, Any]:
    return talker.ask(camel("connect", token=token, clientId=client_id, projectId="p"))


def test_tokens_of_the_server_are_shown_in_connect(tmp_path: Path) -> None:
    data = tmp_path / "data"
    tokens = TokenFile(LocalFilesystem(), ServerConfig(data=str(data)).tokens_path)
    _, secret = tokens.create("alice", now_ns=1)
    with SyncServer(data) as server:
        for token, client_id in (("wrong", "alice"), ("", "alice"), (secret, "bob"), (secret, "alicette")):
            with server.talk() as talker:
                answer = connect(talker, token, client_id)
                assert answer["payload"]["code"] == "auth_failed"
                assert not token or token not in answer["payload"]["message"]
                assert talker.hear()["type"] == "closed"
        with server.talk() as talker, server.talk() as phone:
            assert connect(talker, secret, "alice")["type"] == "connected"
            assert connect(phone, secret, "alice:phone")["type"] == "connected"
            tokens.revoke("alice", now_ns=2)
            assert talker.hear()["type"] == "closed"
        header = f"Bearer {tokens.create('carol', now_ns=3)[1]}"
        server.until(lambda: any(token.name == "carol" for token in server.gatekeeper._tokens))
        with server.talk(Authorization=header) as talker:
            assert connect(talker, "", "carol")["type"] == "connected"


def test_clients_that_are_turned_away_are_counted_and_audited(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a shared secret of more than thirty-two characters")
    settings = {"sync.auth": "jwt", "sync.jwt_key_file": str(key)}
    with SyncServer(tmp_path / "data", settings) as server, server.talk() as talker:
        before = server.gatekeeper.statistics()
        assert connect(talker, "forged.token.here")["payload"]["code"] == "auth_failed"
        after = server.gatekeeper.statistics()
        assert after.failures == before.failures + 1
        assert after.audit_lines > before.audit_lines


def test_producers_cannot_write_into_the_log(tmp_path: Path) -> None:
    """A row of other columns in an empty log would keep all events out of it for ever."""
    with SyncServer(tmp_path / "data") as server:
        for channel in ("sync", "sync.snapshots"):
            with server.client() as producer:
                producer.send(arrow_frame(1, channel=channel))
                assert channel in producer.refusal().message
        with server.seed_client() as talker:
            assert talker.ask(seed("submit_event", **seed_event("e1")))["type"] == "event_committed"


def test_nothing_is_asked_where_the_server_asks_for_nothing(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server, server.talk() as talker:
        assert connect(talker, "whatever")["type"] == "connected"


def test_rules_of_the_server_say_who_may_sync(tmp_path: Path) -> None:
    settings = {"access": [{"principal": "anonymous", "allow": ["consume"]}]}
    with SyncServer(tmp_path / "data", settings=settings) as server, server.talk() as talker:
        assert connect(talker, "")["payload"]["code"] == "auth_failed"


def test_settings_that_are_read_again_count_for_connections_of_now(tmp_path: Path) -> None:
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "note.json").write_text("{}")
    settings: dict[str, object] = {"sync.validation": "model", "sync.schemas": str(schemas)}
    with SyncServer(tmp_path / "data", settings) as server, server.seed_client() as talker:
        event = {**seed_event("e1"), "event": {"type": "event", "payload": {"schema": "note", "data": {"n": 1}}}}
        assert talker.ask(seed("submit_event", **event))["type"] == "event_committed"
        (schemas / "note.json").write_text('{"required": ["title"]}')
        rule = {"clients": "A", "partitions": "P1", "may": ["write"]}
        again = {**settings, "sync.model_version": 2, "sync.access": [rule], "sync.max_drafts": 7}
        assert server.ask(lambda: server.desk.reload(SyncConfig.from_mapping(again))) == ["sync.max_drafts"]
        told = talker.hear()
        assert (told["type"], told["payload"]["new_model_version"]) == ("version_changed", 2)
        assert talker.ask(seed("submit_event", **{**event, "id": "e2"}))["type"] == "event_rejected"
        assert talker.ask(sync(["P1"]))["payload"]["code"] == "forbidden"


def test_follower_that_loses_its_right_hears_nothing_more(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server, server.seed_client("A") as origin, server.seed_client("B") as peer:
        origin.ask(sync(["P2"]))
        peer.ask(sync(["P1"]))
        rule = {"clients": "A", "partitions": "*", "may": ["read", "write"]}
        server.ask(lambda: server.desk.reload(SyncConfig.from_mapping({"sync.access": [rule]})))
        assert origin.ask(seed("submit_event", **seed_event("e1")))["type"] == "event_committed"
        told = peer.hear()
        assert (told["type"], told["payload"]["code"]) == ("error", "server_error")
        assert peer.hear()["type"] == "closed"
        with server.seed_client("B") as again:
            assert again.ask(sync(["P1"]))["payload"]["code"] == "forbidden"


def test_principal_that_loses_its_right_to_sync_is_sent_away(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server, server.seed_client("A") as talker:
        talker.ask(sync(["P1"]))
        rules = ServerConfig.from_mapping({"access": [{"principal": "anonymous", "allow": ["consume"]}]}).access
        server.ask(lambda: server.gatekeeper.reload(replace(server.config, access=rules)))
        server.ask(lambda: server.desk.reload(server.sync_config))
        assert talker.hear()["payload"]["code"] == "server_error"


def test_metrics_show_what_sync_does(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as server, server.seed_client("A") as origin, server.seed_client("B") as peer:
        peer.ask(sync(["P1"]))
        origin.ask(seed("submit_event", **seed_event("e1", n=1)))
        peer.hear()
        origin.ask(seed("submit_event", **seed_event("e1", n=1)))
        origin.ask(seed("submit_event", **seed_event("e1", n=2)))
        text = render(server.store, server.ask(lambda: figures_of(server.server.state))).decode()
        lines = dict(line.split() for line in text.splitlines() if line.startswith("holdfast_sync_"))
        assert lines["holdfast_sync_sessions"] == "2.0"
        assert lines["holdfast_sync_committed_total"] == "1.0"
        assert lines["holdfast_sync_repeats_total"] == "2.0"
        assert lines["holdfast_sync_refused_total"] == "1.0"
        assert lines["holdfast_sync_broadcasts_total"] == "1.0"
