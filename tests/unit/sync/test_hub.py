"""Where sessions meet: batches of whole submissions, bounds, followers, and what a picture shows."""

from __future__ import annotations

from holdfast.sync.hub import BATCH_ITEMS_MAX, Hub
from tests.unit.sync.world import World, camel, fill, project_client, project_event, seed, seed_client, seed_event, sync


def test_submissions_that_wait_share_one_commit() -> None:
    world = World()
    wires = [seed_client(world, f"c{number}") for number in range(5)]
    for number, wire in enumerate(wires):
        world.say(wire, seed("submit_event", **seed_event(f"e{number}")))
    assert world.begin_commit()
    assert len(world.taken or ()) == 5
    world.say(wires[0], seed("submit_event", **seed_event("late")))
    world.end_commit()
    assert [wire.take()[0]["payload"]["committed_id"] for wire in wires] == [1, 2, 3, 4, 5]
    world.settle()
    assert wires[0].take()[0]["payload"]["committed_id"] == 6


def test_batches_are_bounded_and_hold_whole_submissions() -> None:
    world = World()
    wire = seed_client(world)
    for number in range(12):
        events = [seed_event(f"e{number}-{place}") for place in range(100)]
        world.say(wire, seed("submit_events", events=events))
    taken = world.hub.take()
    assert sum(len(submit.items) for submit in taken) == BATCH_ITEMS_MAX
    assert world.hub.has_work


def test_queue_of_all_clients_is_bounded() -> None:
    world = World()
    wire = seed_client(world)
    number = 0
    while not world.hub.is_full:
        world.say(wire, seed("submit_event", **seed_event(f"e{number}", text="x" * 200_000)))
        number += 1
    assert 200 < number < 400
    world.settle()
    assert not world.hub.is_full
    assert world.hub.statistics().queued_bytes == 0


def test_event_of_several_partitions_is_told_once() -> None:
    world = World()
    wire = seed_client(world, "B")
    world.ask(wire, sync(["P1", "P2", "P3"]))
    fill(world, 1, "P1", "P2", "P3")
    assert len(wire.take()) == 1


def test_dialects_of_partitions_see_each_others_events() -> None:
    world = World()
    old, new = seed_client(world, "A"), world.connect()
    world.ask(new, camel("connect", token="t", clientId="B"))
    world.ask(new, camel("sync", partitions=["P1"], sinceCommittedId=0, limit=500))
    world.ask(old, sync(["P1"]))
    world.ask(old, seed("submit_event", **seed_event("e1", n=1)))
    (told,) = new.take()
    assert (told["payload"]["type"], told["payload"]["payload"], told["payload"]["meta"]) == (
        "note",
        {"n": 1},
        {"clientId": "A"},
    )
    item = {"id": "e2", "partitions": ["P1"], "type": "note", "payload": {"n": 2}, "meta": {"clientTs": 1}}
    (answer,) = world.ask(new, camel("submit_events", events=[item]))
    assert answer["payload"]["results"][0]["created"] == world.now_ms
    (told,) = old.take()
    assert told["payload"]["event"] == {"type": "note", "payload": {"n": 2}}


def test_projects_are_closed_to_clients_of_partitions() -> None:
    world = World()
    inside, outside = project_client(world, "A"), seed_client(world, "B")
    world.ask(outside, sync(["P1"]))
    world.ask(inside, camel("submit_events", events=[project_event("e1")]))
    assert outside.take() == []
    (page,) = world.ask(outside, sync(["P1"]))
    assert page["payload"]["events"] == []
    (answer,) = world.ask(outside, sync(["project:p"]))
    assert answer["payload"]["code"] == "bad_request"


def test_connection_that_is_gone_leaves_nothing_behind() -> None:
    world = World()
    wire = seed_client(world, "A")
    world.ask(wire, sync(["P1"]))
    world.say(wire, seed("submit_event", **seed_event("e1")))
    world.hang_up(wire)
    world.settle()
    hub: Hub = world.hub
    picture = hub.statistics()
    assert (picture.sessions, picture.live, picture.committed, picture.broadcasts) == (0, 0, 1, 0)
    assert (hub._followers, hub._clients, hub._indexed) == ({}, {}, {})
