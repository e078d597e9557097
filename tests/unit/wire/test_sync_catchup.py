"""Catching up in a sync session: pages under one watermark, and the hand-over to live without a gap or a repeat."""

from __future__ import annotations

import pytest

from holdfast.errors import Backpressure
from holdfast.wire.sync import Mode, Terms
from tests.unit.sync.world import World, camel, fill, project_client, project_event, seed, seed_client, seed_event, sync


def test_pages_have_one_watermark_and_end_with_it() -> None:
    world = World()
    fill(world, 120)
    wire = seed_client(world)
    since, pages = 0, []
    while True:
        page, *_ = world.ask(wire, sync(["P1"], since))
        pages.append(page["payload"])
        fill(world, 1, start=1000 + len(pages)) if len(pages) < 3 else None
        since = page["payload"]["next_since_committed_id"]
        if not page["payload"]["has_more"]:
            break
        wire.take()
    assert [len(page["events"]) for page in pages] == [50, 50, 20]
    assert {page["sync_to_committed_id"] for page in pages} == {120}
    assert [event["committed_id"] for page in pages for event in page["events"]] == list(range(1, 121))


@pytest.mark.parametrize("recent_bytes", [1, 1 << 20], ids=["from the log", "from memory"])
def test_what_is_committed_while_paging_follows_the_last_page(recent_bytes: int) -> None:
    world = World(recent_bytes=recent_bytes)
    fill(world, 60)
    wire = seed_client(world)
    (first,) = world.ask(wire, sync(["P1"]))
    assert first["payload"]["has_more"]
    fill(world, 3, start=60)
    assert wire.take() == []
    second, *tail = world.ask(wire, sync(["P1"], 50))
    assert not second["payload"]["has_more"]
    assert [(one["type"], one["payload"]["committed_id"]) for one in tail] == [
        ("event_broadcast", 61),
        ("event_broadcast", 62),
        ("event_broadcast", 63),
    ]
    fill(world, 1, start=63)
    assert [one["payload"]["committed_id"] for one in wire.take()] == [64]


@pytest.mark.parametrize(("asked", "given"), [(1, 50), (50, 50), (70, 70), (5000, 120), (-3, 50)])
def test_limit_is_brought_into_its_bounds(asked: int, given: int) -> None:
    world = World()
    fill(world, 120)
    message = seed("sync", partitions=["P1"], since_committed_id=0, limit=asked)
    (page,) = world.ask(seed_client(world), message)
    assert len(page["payload"]["events"]) == given


def test_camel_limit_may_be_one() -> None:
    world = World()
    wire = project_client(world)
    world.ask(wire, camel("submit_events", events=[project_event("e1"), project_event("e2")]))
    (page,) = world.ask(wire, camel("sync", projectId="p", sinceCommittedId=0, limit=1))
    assert (len(page["payload"]["events"]), page["payload"]["hasMore"]) == (1, True)


def test_cursor_in_the_future_gets_an_empty_page_and_the_truth() -> None:
    world = World()
    fill(world, 3)
    (page,) = world.ask(seed_client(world), sync(["P1"], 1000))
    payload = page["payload"]
    assert (payload["events"], payload["has_more"], payload["sync_to_committed_id"]) == ([], False, 3)
    assert payload["next_since_committed_id"] == 1000


def test_pruned_cursor_is_an_error_with_a_code_of_its_own() -> None:
    world = World()
    fill(world, 10)
    world.log.floor = 5
    wire = seed_client(world)
    (answer,) = world.ask(wire, sync(["P1"], 2))
    assert answer["payload"]["code"] == "cursor_pruned"
    assert answer["payload"]["details"]["pruned_to_committed_id"] == 5
    (page,) = world.ask(wire, sync(["P1"], 5))
    assert len(page["payload"]["events"]) == 5


def test_pruned_cursor_does_not_stop_a_camel_client() -> None:
    world = World()
    wire = project_client(world)
    world.ask(wire, camel("submit_events", events=[project_event(f"e{number}") for number in range(5)]))
    world.log.floor = 3
    (page,) = world.ask(wire, camel("sync", projectId="p", sinceCommittedId=0, limit=500))
    assert page["type"] == "sync_response"
    assert (page["payload"]["code"], page["payload"]["prunedToCommittedId"]) == ("cursor_pruned", 3)


def test_concurrent_sync_of_a_seed_client_is_refused() -> None:
    world = World()
    fill(world, 3)
    wire = seed_client(world)
    world.say(wire, sync(["P1"]))
    world.say(wire, sync(["P1"]))
    assert [one["payload"].get("code") for one in wire.take()] == ["bad_request"]
    world.settle()
    assert len(wire.take()[0]["payload"]["events"]) == 3


def test_concurrent_syncs_of_a_camel_client_are_answered_in_turn() -> None:
    world = World()
    wire = project_client(world)
    world.ask(wire, camel("submit_events", events=[project_event("e1")]))
    for _ in range(3):
        world.say(wire, camel("sync", projectId="p", sinceCommittedId=0, limit=500))
    world.settle()
    assert [len(one["payload"]["events"]) for one in wire.take()] == [1, 1, 1]


def test_old_client_with_snake_case_names_gets_no_error_that_would_stop_it() -> None:
    world = World()
    fill(world, 10)
    world.log.floor = 5
    wire = world.connect()
    world.ask(wire, {"type": "connect", "protocol_version": "1.0", "payload": {"token": "t", "client_id": "O"}})
    for _ in range(2):
        world.say(wire, sync(["P1"], 2))
    world.settle()
    pages = wire.take()
    assert [page["type"] for page in pages] == ["sync_response"] * 2
    assert {(page["payload"]["code"], page["payload"]["pruned_to_committed_id"]) for page in pages} == {
        ("cursor_pruned", 5)
    }
    world.log.refuses = Backpressure(bound="memory_limit", used_bytes=1, cap_bytes=1, waited_s=0)
    (answer,) = world.ask(wire, seed("submit_events", events=[seed_event("o1")]))
    assert answer["payload"]["code"] == "server_error"
    assert wire.closed


def test_subscription_is_replaced_as_a_whole_and_kept_without_a_word() -> None:
    world = World()
    wire = seed_client(world)
    (page,) = world.ask(wire, sync(["P1"], subscription_partitions=["P1", "P2", "P2"]))
    assert page["payload"]["effective_subscriptions"] == ["P1", "P2"]
    (page,) = world.ask(wire, sync(["P3"]))
    assert page["payload"]["effective_subscriptions"] == ["P1", "P2"]
    fill(world, 1, "P2", start=1)
    fill(world, 1, "P3", start=2)
    assert [one["payload"]["id"] for one in wire.take()] == ["e1"]
    (page,) = world.ask(wire, sync(["P3"], subscription_partitions=[]))
    assert page["payload"]["effective_subscriptions"] == []
    fill(world, 1, "P2", start=3)
    assert wire.take() == []


def test_sync_of_a_forbidden_partition_returns_nothing() -> None:
    world = World()
    fill(world, 3, "P1", "secret")
    world.access.allowed = lambda _client, _verb, scopes: "secret" not in scopes
    wire = seed_client(world)
    (answer,) = world.ask(wire, sync(["P1", "secret"]))
    assert answer["payload"]["code"] == "forbidden"
    (answer,) = world.ask(wire, sync(["P1"], subscription_partitions=["secret"]))
    assert answer["payload"]["code"] == "forbidden"
    assert not wire.closed


def test_forbidden_project_ends_the_connection() -> None:
    world = World()
    world.access.allowed = lambda _client, _verb, scopes: scopes != ("project:secret",)
    wire = world.connect()
    (answer,) = world.ask(wire, camel("connect", token="t", clientId="A", projectId="secret"))
    assert answer["payload"]["code"] == "forbidden"
    assert wire.closed


def test_abandoned_cycle_ends_and_broadcasts_go_on() -> None:
    world = World(terms=Terms(cycle_timeout_ms=1000))
    fill(world, 60)
    wire = seed_client(world)
    world.ask(wire, sync(["P1"]))
    fill(world, 2, start=60)
    world.now_ms += 1001
    world.hub.tick(world.now_ms)
    world.settle()
    assert [one["payload"]["committed_id"] for one in wire.take()] == [61, 62]
    fill(world, 1, start=62)
    assert [one["payload"]["committed_id"] for one in wire.take()] == [63]


def test_cycle_that_starts_over_has_a_new_watermark() -> None:
    world = World()
    fill(world, 60)
    wire = seed_client(world)
    world.ask(wire, sync(["P1"]))
    fill(world, 5, start=60)
    (page,) = world.ask(wire, sync(["P1"], 0))
    assert page["payload"]["sync_to_committed_id"] == 65


@pytest.mark.parametrize("recent_bytes", [1, 1 << 20], ids=["from the log", "from memory"])
def test_peer_that_reads_again_gets_what_it_missed_in_order(recent_bytes: int) -> None:
    world = World(recent_bytes=recent_bytes)
    wire = seed_client(world)
    world.ask(wire, sync(["P1"]))
    world.hub.blocked(wire.session)
    fill(world, 600)
    assert wire.take() == []
    world.hub.unblocked(wire.session)
    world.settle()
    assert [one["payload"]["committed_id"] for one in wire.take()] == list(range(1, 601))
    assert wire.session.mode is Mode.LIVE


def test_messages_behind_a_handshake_are_kept_in_order() -> None:
    world = World()
    wire = world.connect()
    world.say(wire, camel("connect", token="t", clientId="A", projectId="p"))
    world.say(wire, camel("sync", projectId="p", sinceCommittedId=0, limit=500))
    world.say(wire, camel("submit_events", events=[project_event("e1")]))
    world.settle()
    assert [one["type"] for one in wire.take()] == ["connected", "sync_response", "submit_events_result"]


def test_much_that_was_missed_comes_in_parts_that_a_peer_can_stop() -> None:
    world = World(recent_bytes=1 << 30)
    wire = seed_client(world)
    world.ask(wire, sync(["P1"]))
    world.hub.blocked(wire.session)
    fill(world, 1200)
    world.hub.unblocked(wire.session)
    world.answer_read()
    assert len(wire.take()) == 500
    world.hub.blocked(wire.session)
    world.settle()
    assert wire.take() == []
    world.hub.unblocked(wire.session)
    world.settle()
    assert [one["payload"]["committed_id"] for one in wire.take()] == list(range(501, 1201))
    assert wire.session.mode is Mode.LIVE
