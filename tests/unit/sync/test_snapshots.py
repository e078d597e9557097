"""States beside the log: they speed up a start and a first sync, and say what was pruned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.config import StoreConfig
from holdfast.config.sync import SyncConfig
from holdfast.sync.chores import TreeHistory
from holdfast.sync.eventlog import EventLog
from holdfast.sync.snapshots import Snapshots
from holdfast.wire.sync import Snapshot
from tests.unit.sync.served import SyncServer
from tests.unit.sync.test_validation import push
from tests.unit.sync.world import seed, seed_event, sync

TREE = {"sync.validation": "tree", "sync.snapshot_every": 10}


def pushed(talker: Any, count: int, *partitions: str, start: int = 0) -> None:
    for number in range(start, start + count):
        event = seed_event(
            f"{partitions}-{number}", *partitions, kind="treePush", **push(f"n{number}", position="last")
        )
        assert talker.ask(seed("submit_event", **event))["type"] == "event_committed"


def until_snapshot(server: SyncServer, committed_id: int, partition: str = "P1") -> None:
    history = server.desk._history
    assert history is not None
    snapshots = history._snapshots

    def taken() -> bool:
        found = snapshots.latest((partition, partition), upto=10**9)
        return found is not None and found.committed_id >= committed_id

    server.until(taken)


def test_newest_snapshot_of_a_partition_survives_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        snapshots = Snapshots(store, "sync.snapshots")
        assert snapshots.latest(("P1", "P1"), upto=99) is None
        for number, state in ((5, b'{"a":1}'), (9, b'{"a":2}')):
            snapshots.take(("P1", "P1"), Snapshot("P1", number, state), 1000)
        snapshots.take(("P2", "P2"), Snapshot("P2", 7, b"{}"), 1000)
    with Store.open(tmp_path) as store:
        snapshots = Snapshots(store, "sync.snapshots")
        assert snapshots.latest(("P1", "P1"), upto=99) == Snapshot("P1", 9, b'{"a":2}')
        assert snapshots.latest(("P1", "P1"), upto=8) is None


def test_documents_are_made_again_from_a_snapshot_and_what_followed(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data", TREE) as server, server.seed_client() as talker:
        pushed(talker, 25, "P1")
        until_snapshot(server, 20)
    config = SyncConfig.from_mapping(dict(TREE))
    with Store.open(tmp_path / "data", config.keeping(StoreConfig())) as store:
        snapshots = Snapshots(store, config.snapshots_channel)
        history = TreeHistory(config, EventLog(store, config.channel, snapshots), snapshots)
        document = history.validator.document(("P1", "P1"))
        assert list(document["explorer"]["items"]) == [f"n{number}" for number in range(25)]
        (key_and_kept,) = history.validator.due(1)
        assert key_and_kept[1].events <= 5, "only what followed the snapshot was read"


def test_validation_goes_on_after_a_restart(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data", TREE) as server, server.seed_client() as talker:
        pushed(talker, 12, "P1")
    with SyncServer(tmp_path / "data", TREE) as server, server.seed_client() as talker:
        event = seed_event("again", "P1", kind="treePush", **push("n3"))
        answer = talker.ask(seed("submit_event", **event))
        assert answer["type"] == "event_rejected"
        assert answer["payload"]["errors"] == [{"field": "event.payload.value.id", "message": "duplicate id"}]


def test_first_sync_may_begin_with_a_snapshot(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data", TREE) as server, server.seed_client() as talker:
        pushed(talker, 25, "P1")
        until_snapshot(server, 20)
        plain = talker.ask(sync(["P1"]))["payload"]
        assert len(plain["events"]) == 25
        assert "snapshots" not in plain
        quick = talker.ask(sync(["P1"], accept_snapshots=True))["payload"]
        (snapshot,) = quick["snapshots"]
        assert snapshot["partition"] == "P1"
        assert len(snapshot["state"]["explorer"]["items"]) + len(quick["events"]) == 25
        assert all(event["committed_id"] > snapshot["committed_id"] for event in quick["events"])
        assert quick["next_since_committed_id"] >= 25


def test_pruned_cursor_gets_a_code_and_the_snapshot(tmp_path: Path) -> None:
    settings = {**TREE, "sync.prune_age": "1s"}
    store = {"segment.max_open_duration": "100ms"}
    with SyncServer(tmp_path / "data", settings, store=store) as server, server.seed_client() as talker:
        pushed(talker, 20, "P1")
        pushed(talker, 1, "P1", "P2", start=20)
        pushed(talker, 9, "P1", start=21)
        until_snapshot(server, 30)
        server.until(lambda: server.desk._log._reader.first_needed("sync", frozenset({"P1"})) > 30)
        answer = talker.ask(sync(["P1"]))
        assert (answer["type"], answer["payload"]["code"]) == ("error", "cursor_pruned")
        details = answer["payload"]["details"]
        assert details["pruned_to_committed_id"] >= 30
        assert talker.ask(sync(["P1"], details["pruned_to_committed_id"]))["type"] == "sync_response"
        assert len(details["snapshots"][0]["state"]["explorer"]["items"]) == 30
        page = talker.ask(sync(["P1"], accept_snapshots=True))["payload"]
        assert page["code"] == "cursor_pruned"
        assert len(page["snapshots"][0]["state"]["explorer"]["items"]) == 30
        other = talker.ask(sync(["P2"]))["payload"]
        assert [event["event"]["payload"]["value"]["id"] for event in other["events"]] == ["n20"]


@pytest.mark.guarantee("G6")
def test_event_goes_only_when_all_its_partitions_advanced(tmp_path: Path) -> None:
    config = SyncConfig()
    with SyncServer(tmp_path / "data") as server, server.seed_client() as talker:
        for number, names in enumerate([("P1",), ("P1", "P2"), ("P1",)]):
            talker.ask(seed("submit_event", **seed_event(f"e{number}", *names)))
            server.store.flush()
        store = server.store
        store.advance_partition(config.channel, "P1", 4)
        server.until(lambda: len(store.listing.segments(config.channel, from_seq=1, limit=9)) == 1)
        page = talker.ask(sync(["P2"]))["payload"]
        assert [event["id"] for event in page["events"]] == ["e1"]
        store.advance_partition(config.channel, "P2", 3)
        server.until(lambda: not store.listing.segments(config.channel, from_seq=1, limit=9))
