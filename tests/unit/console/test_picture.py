"""What a caller sees of a running server, picture by picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.console.picture import company_of, shown, take
from holdfast.server.admin.metrics import figures_of
from holdfast.server.queries import QueryNews
from holdfast.server.state import ConnectionInfo
from holdfast.store.listing import ChannelSummary
from tests.unit.server.admin.running import Running, batch


class Watcher:
    """One who looks at a server again and again."""

    def __init__(self, server: Running, headers: Mapping[str, str] | None = None) -> None:
        self._server = server
        self._caller = server.gatekeeper.authenticate(headers or {}, None, peer="test")
        self._known: dict[str, ChannelSummary] = {}

    def look(self) -> dict[str, Any]:
        state = self._server.state
        now_ns = state.clock.wall_ns()
        picture = take(state.store, figures_of(state), company_of(state), at_ns=now_ns)
        found: dict[str, Any] = json.loads(msgspec.json.encode(shown(picture, self._caller, self._known)))
        return found


def test_first_look_shows_all_channels_and_later_ones_what_changed(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        watcher = Watcher(server)
        for name in ("a", "b"):
            server.store.commit(name, batch(3))
        assert [row[:3] for row in watcher.look()["channels"]["changed"]] == [["a", 3, 3], ["b", 3, 3]]
        assert watcher.look()["channels"] == {"changed": [], "gone": [], "total": 2}
        server.store.commit("b", batch(1))
        assert [row[:3] for row in watcher.look()["channels"]["changed"]] == [["b", 4, 4]]


def test_channel_that_was_removed_is_told_once(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        watcher = Watcher(server)
        server.store.commit("a", batch(3))
        server.store.flush()
        watcher.look()
        server.store.remove_channel("a")
        assert watcher.look()["channels"]["gone"] == ["a"]
        assert watcher.look()["channels"]["gone"] == []


def test_figures_of_the_whole_server_are_for_administrators(tmp_path: Path) -> None:
    rules = [{"principal": "reader", "allow": "consume", "channels": ["open.>"]}]
    with Running(tmp_path, {"access": rules}) as server:
        reader = server.token("reader")
        server.gatekeeper.reload(server.config)
        server.store.commit("open.a", batch(1))
        server.store.commit("secret", batch(1))
        found = Watcher(server, reader).look()
        assert [row[0] for row in found["channels"]["changed"]] == ["open.a"]
        assert set(found) == {"at", "server", "channels", "subscribers", "queries"}
        assert "secret" not in json.dumps(found)


def test_subscribers_furthest_behind_come_first(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        server.store.commit("a", batch(10))
        server.store.flush()
        with server.store.subscriber("early", ["a"]) as early:
            early.ack("a", 1, 9)
        server.store.subscriber("late", ["a"]).close()
        assert [item["name"] for item in Watcher(server).look()["subscribers"]] == ["late", "early"]


def test_connection_shows_what_waits_for_an_answer(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        info = ConnectionInfo(1, "127.0.0.1:5", "app", "ingest", 0, frames=9, wire_seq=8, acknowledged=5)
        server.state.connections_by_id[1] = info
        (found,) = Watcher(server).look()["connections"]
        assert (found["frames"], found["waiting"], found["principal"]) == (9, 3, "app")


def test_store_and_its_bounds_are_in_the_picture(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        server.store.commit("a", batch(10))
        found = Watcher(server).look()
        assert found["store"]["events"] == 10
        assert found["store"]["seal_postponed"] is None
        assert found["caps"]["wal_bytes"] >= found["store"]["wal_bytes"] > 0
        assert found["disk"]["total"] > found["disk"]["free"] > 0


def test_spark_queries_are_shown_to_those_who_see_their_channels(tmp_path: Path) -> None:
    rules = [
        {"principal": "reader", "allow": "consume", "channels": ["open.>"]},
        {"principal": "root", "allow": "*"},
    ]
    with Running(tmp_path, {"access": rules}) as server:
        for name, channel in (("lake", "open.a"), ("hidden", "secret")):
            server.state.queries.tell(QueryNews(name, "x", (channel,), 4, 30, 2.5, 6, 0.5, "", at_ns=7_000_000_000))
        lake = {
            "name": "lake",
            "batch": 4,
            "rows_per_s": 2.5,
            "rows": 30,
            "behind": 6,
            "batch_s": 0.5,
            "at": 7.0,
            "error": "",
        }
        assert Watcher(server, server.token("reader")).look()["queries"] == [lake]
        everything = Watcher(server, server.token("root")).look()["queries"]
        assert [item["name"] for item in everything] == ["hidden", "lake"]


def test_refusals_senders_and_waits_are_in_the_picture(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        state = server.state
        state.troubles.note("WRITE_ERROR", "the channel is full", peer="1.2.3.4:5", connection=7, channel="a")
        state.senders.arrive("ab" * 16, peer="1.2.3.4:5", principal="writer")
        state.latencies.note(0.0015)
        seen = Watcher(server).look()
        (error,) = seen["errors"]
        assert (error["category"], error["channel"], error["connection"]) == ("WRITE_ERROR", "a", 7)
        (sender,) = seen["senders"]
        assert (sender["slot_id"], sender["connected"], sender["outages"]) == ("ab" * 16, True, 0)
        assert sum(seen["latency"]["counts"]) == 1
