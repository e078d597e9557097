"""A sync session: the handshake, submissions, pages, the hand-over to live, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import Backpressure
from holdfast.wire.sync import Terms
from tests.unit.sync.world import (
    World,
    camel,
    fill,
    project_client,
    project_event,
    seed,
    seed_client,
    seed_event,
    sync,
)
from tests.unit.wire.test_sync_json import STRANGE

# -- handshake ---------------------------------------------------------------------------------------------------------


def test_connected_says_all_that_a_client_needs() -> None:
    world = World()
    fill(world, 3)
    wire = world.connect()
    (answer,) = world.ask(wire, seed("connect", token="t", client_id="A", last_committed_id=0))
    assert answer["type"] == "connected"
    assert {"type", "msg_id", "timestamp", "protocol_version", "payload"} == set(answer)
    payload = answer["payload"]
    assert (payload["client_id"], payload["server_last_committed_id"], payload["global_last_committed_id"]) == (
        "A",
        3,
        3,
    )
    assert payload["log_epoch"] == "epoch-1"
    assert payload["server_time"] == world.now_ms


@pytest.mark.parametrize("field", ["msg_id", "timestamp", "protocol_version", "payload", "type"])
def test_seed_messages_need_all_five_fields(field: str) -> None:
    world = World()
    wire = seed_client(world)
    message = sync(["P1"])
    del message[field]
    (answer,) = world.ask(wire, message)
    assert (answer["type"], answer["payload"]["code"]) == ("error", "bad_request")
    assert not wire.closed


def test_old_clients_may_leave_two_fields_away() -> None:
    world = World()
    wire = world.connect()
    bare = {"type": "connect", "protocol_version": "1.0", "payload": {"token": "t", "client_id": "A"}}
    assert [one["type"] for one in world.ask(wire, bare)] == ["connected"]
    assert wire.session.dialect.family == "1s"


def test_only_connect_and_heartbeat_come_first() -> None:
    world = World()
    wire = world.connect()
    assert world.ask(wire, seed("heartbeat"))[0]["type"] == "heartbeat_ack"
    assert world.ask(wire, sync(["P1"]))[0]["payload"]["code"] == "bad_request"
    assert not wire.closed


def test_another_version_is_refused_and_ends_the_connection() -> None:
    world = World()
    wire = world.connect()
    (answer,) = world.ask(wire, {**seed("connect", token="t", client_id="A"), "protocol_version": "9"})
    assert answer["payload"]["code"] == "protocol_version_unsupported"
    assert answer["payload"]["details"]["supported_versions"] == ["1.0"] == answer["payload"]["supported_versions"]
    assert wire.closed
    other = world.connect()
    (answer,) = world.ask(other, {**camel("connect", token="t", clientId="A"), "protocolVersion": "9"})
    assert answer["payload"]["code"] == "protocolVersion_unsupported"


@pytest.mark.parametrize(
    ("message", "family"),
    [
        (seed("connect", token="t", client_id="A", last_committed_id=0), "seed"),
        (seed("connect", token="t", client_id="A"), "1s"),
        (camel("connect", token="t", clientId="A"), "1c"),
        (camel("connect", token="t", clientId="A", projectId="p"), "2x"),
    ],
)
def test_dialects_are_told_apart_by_field_names(message: dict[str, Any], family: str) -> None:
    world = World()
    wire = world.connect()
    (answer,) = world.ask(wire, message)
    assert answer["type"] == "connected"
    assert wire.session.dialect.family == family
    assert answer.get("msgId", answer.get("msg_id")) == "m-connect"


def test_second_connection_of_a_client_ends_the_first() -> None:
    world = World()
    first, second = seed_client(world, "A"), seed_client(world, "A")
    assert first.closed
    assert first.take()[-1]["payload"]["code"] == "auth_failed"
    assert not second.closed
    world.hang_up(first)
    third = seed_client(world, "A")
    assert second.closed
    assert not third.closed


def test_connections_of_one_camel_client_live_side_by_side() -> None:
    world = World()
    first, second = project_client(world, "A"), project_client(world, "A")
    assert not first.closed
    assert not second.closed


def test_token_that_expires_ends_the_connection() -> None:
    world = World()
    world.access.identity = {"expires_at_ms": world.now_ms + 1000}
    wire = seed_client(world)
    world.hub.tick(world.now_ms + 999)
    assert not wire.closed
    world.hub.tick(world.now_ms + 1000)
    assert wire.closed
    assert wire.take()[-1]["payload"]["code"] == "auth_failed"


def test_message_after_expiry_is_not_taken() -> None:
    world = World()
    world.access.identity = {"expires_at_ms": world.now_ms + 1000}
    wire = seed_client(world)
    world.now_ms += 2000
    (answer,) = world.ask(wire, seed("submit_event", **seed_event("e1")))
    assert answer["payload"]["code"] == "auth_failed"
    assert world.log.events == []


def test_client_id_of_another_is_refused_after_connect() -> None:
    world = World()
    wire = seed_client(world, "A")
    (answer,) = world.ask(wire, seed("submit_event", client_id="B", **seed_event("e1")))
    assert answer["payload"]["code"] == "auth_failed"
    assert wire.closed
    assert world.log.events == []


# -- strange messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", STRANGE.values(), ids=STRANGE.keys())
@pytest.mark.parametrize("connect", [seed_client, project_client], ids=["seed", "projects"])
def test_strange_json_is_a_bad_request_and_the_connection_lives(connect: Any, data: bytes) -> None:
    world = World(terms=Terms(message_bytes_max=1 << 20))
    wire = connect(world)
    (answer,) = world.ask(wire, data)
    assert (answer["type"], answer["payload"]["code"]) == ("error", "bad_request")
    assert not wire.closed
    event = seed_event("after") if connect is seed_client else project_event("after")
    kind = seed if connect is seed_client else camel
    (result,) = world.ask(wire, kind("submit_events", events=[event]))
    assert result["payload"]["results"][0]["status"] == "committed"


@pytest.mark.parametrize("value", [1, "x", None, True, [], [1]])
def test_messages_that_are_no_objects_are_bad_requests(value: object) -> None:
    world = World()
    assert world.ask(seed_client(world), json.dumps(value).encode())[0]["payload"]["code"] == "bad_request"


def test_message_beyond_the_bound_ends_the_connection() -> None:
    world = World(terms=Terms(message_bytes_max=2000))
    wire = seed_client(world)
    (answer,) = world.ask(wire, seed("submit_event", **seed_event("e1", text="x" * 2000)))
    assert (answer["payload"]["code"], answer["payload"]["details"]) == ("bad_request", {"max_message_bytes": 2000})
    assert wire.closed


def test_numbers_come_back_as_they_were_sent() -> None:
    world = World()
    writer, reader = seed_client(world, "A"), seed_client(world, "B")
    world.ask(reader, sync(["P1"]))
    payload = b'{"a":1.0,"b":1e2,"c":12345678901234567890123,"d":0.10,"e":"\\u00e9"}'
    message = json.dumps(seed("submit_event", id="e1", partitions=["P1"], event={"type": "n", "payload": "HERE"}))
    world.ask(writer, message.encode().replace(b'"HERE"', payload))
    assert payload in writer.texts[-1]
    assert payload in reader.texts[-1]
    world.ask(reader, sync(["P1"]))
    assert payload in reader.texts[-1]


# -- submitting --------------------------------------------------------------------------------------------------------


def test_one_event_is_answered_to_its_origin_and_told_to_others() -> None:
    world = World()
    origin, peer, stranger = seed_client(world, "A"), seed_client(world, "B"), seed_client(world, "C")
    for wire, partition in ((origin, "P1"), (peer, "P1"), (stranger, "P9")):
        world.ask(wire, sync([partition]))
    (committed,) = world.ask(origin, seed("submit_event", **seed_event("e1", "P2", "P1", n=1)))
    assert committed["type"] == "event_committed"
    assert committed["payload"] == {
        "id": "e1",
        "client_id": "A",
        "partitions": ["P1", "P2"],
        "committed_id": 1,
        "event": {"type": "note", "payload": {"n": 1}},
        "status_updated_at": world.now_ms,
    }
    (told,) = peer.take()
    assert (told["type"], told["payload"]) == ("event_broadcast", committed["payload"])
    assert stranger.take() == []


def test_nothing_is_sent_before_the_commit() -> None:
    world = World()
    origin, peer = seed_client(world, "A"), seed_client(world, "B")
    world.ask(peer, sync(["P1"]))
    world.say(origin, seed("submit_event", **seed_event("e1")))
    assert world.begin_commit()
    assert (origin.take(), peer.take()) == ([], [])
    world.end_commit()
    assert [wire.take()[0]["type"] for wire in (origin, peer)] == ["event_committed", "event_broadcast"]


def test_refused_event_is_told_to_its_origin_only() -> None:
    world = World()
    origin, peer = seed_client(world, "A"), seed_client(world, "B")
    world.ask(peer, sync(["P1"]))
    bad = {"id": "e1", "partitions": ["P1"], "event": {"type": "note", "payload": "text"}}
    (answer,) = world.ask(origin, seed("submit_event", **bad))
    assert answer["type"] == "event_rejected"
    assert answer["payload"]["reason"] == "validation_failed"
    assert answer["payload"]["errors"] == [{"field": "event.payload", "message": "event.payload is an object"}]
    assert peer.take() == []
    assert world.log.events == []


def test_seed_batch_goes_on_behind_a_refusal() -> None:
    world = World()
    wire = seed_client(world)
    events = [seed_event("e1"), {**seed_event("e2"), "partitions": []}, seed_event("e3")]
    (answer,) = world.ask(wire, seed("submit_events", events=events))
    results = answer["payload"]["results"]
    assert [(one["id"], one["status"], one.get("committed_id")) for one in results] == [
        ("e1", "committed", 1),
        ("e2", "rejected", None),
        ("e3", "committed", 2),
    ]


def test_camel_batch_stops_at_a_refusal() -> None:
    world = World()
    wire = project_client(world)
    events = [project_event("e1"), project_event("e2", type=""), project_event("e3")]
    (answer,) = world.ask(wire, camel("submit_events", events=events))
    results = answer["payload"]["results"]
    assert [(one["id"], one["status"]) for one in results] == [
        ("e1", "committed"),
        ("e2", "rejected"),
        ("e3", "not_processed"),
    ]
    assert (results[2]["reason"], results[2]["blockedById"]) == ("prior_item_failed", "e2")
    assert answer["msgId"] == "m-submit_events"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schemaVersion": 0}, "validation_failed"),
        ({"schemaVersion": True}, "validation_failed"),
        ({"payload": "x"}, "validation_failed"),
        ({"meta": {"clientId": "A"}}, "validation_failed"),
        ({"meta": {"clientId": "B", "clientTs": 1}}, "forbidden"),
        ({"userId": ""}, "validation_failed"),
        ({"projectId": "other"}, "forbidden"),
        ({"partition": ""}, "bad_request"),
        ({"partition": "x" * 129}, "bad_request"),
    ],
)
def test_camel_items_are_refused_one_by_one(changes: dict[str, Any], reason: str) -> None:
    world = World()
    (answer,) = world.ask(project_client(world), camel("submit_events", events=[project_event("e1", **changes)]))
    (result,) = answer["payload"]["results"]
    assert (result["status"], result["reason"]) == ("rejected", reason)


@pytest.mark.parametrize("events", [None, [], [1], [{}], [{"id": ""}], [{"id": "x" * 257}]])
def test_batches_without_ids_are_refused_as_a_whole(events: object) -> None:
    world = World()
    assert world.ask(seed_client(world), seed("submit_events", events=events))[0]["payload"]["code"] == "bad_request"
    assert (
        world.ask(project_client(world), camel("submit_events", events=events))[0]["payload"]["code"] == "bad_request"
    )


def test_seed_batch_has_at_most_a_hundred_items() -> None:
    world = World()
    events = [seed_event(f"e{number}") for number in range(101)]
    assert world.ask(seed_client(world), seed("submit_events", events=events))[0]["payload"]["code"] == "bad_request"
    assert world.log.events == []


@pytest.mark.parametrize(
    "partitions", [["x" * 129], [f"p{number}" for number in range(65)], ["project:p"], [1], "P1", [""]]
)
def test_partitions_outside_their_bounds_are_refused(partitions: object) -> None:
    world = World()
    event = {**seed_event("e1"), "partitions": partitions}
    assert world.ask(seed_client(world), seed("submit_event", **event))[0]["type"] == "event_rejected"


def test_partition_access_is_asked_for_each_item() -> None:
    world = World()
    world.access.allowed = lambda _client, verb, scopes: verb == "read" or "secret" not in scopes
    wire = seed_client(world)
    (answer,) = world.ask(wire, seed("submit_events", events=[seed_event("e1", "P1", "secret"), seed_event("e2")]))
    assert [one["status"] for one in answer["payload"]["results"]] == ["rejected", "committed"]
    assert answer["payload"]["results"][0]["reason"] == "forbidden"


def test_events_may_name_no_other_user_than_the_token() -> None:
    world = World()
    world.access.identity = {"user_id": "u1"}
    wire = project_client(world)
    (answer,) = world.ask(
        wire, camel("submit_events", events=[project_event("e1", userId="u1"), project_event("e2", userId="u2")])
    )
    assert [one["status"] for one in answer["payload"]["results"]] == ["committed", "rejected"]


def test_overload_tells_a_seed_client_when_to_come_back() -> None:
    world = World()
    wire = seed_client(world)
    world.log.refuses = Backpressure(bound="memory_limit", used_bytes=1, cap_bytes=1, waited_s=0)
    (answer,) = world.ask(wire, seed("submit_event", **seed_event("e1")))
    assert answer["payload"]["code"] == "rate_limited"
    assert answer["payload"]["details"]["retry_after_ms"] > 0
    assert not wire.closed
    world.log.refuses = None
    assert world.ask(wire, seed("submit_event", **seed_event("e1")))[0]["type"] == "event_committed"


def test_overload_ends_a_camel_connection_with_the_error_it_survives() -> None:
    world = World()
    wire = project_client(world)
    world.log.refuses = Backpressure(bound="memory_limit", used_bytes=1, cap_bytes=1, waited_s=0)
    (answer,) = world.ask(wire, camel("submit_events", events=[project_event("e1")]))
    assert answer["payload"]["code"] == "server_error"
    assert wire.closed


def test_drafts_in_flight_fill_a_session_until_they_are_answered() -> None:
    world = World(terms=Terms(drafts_max=2))
    wire = seed_client(world)
    world.say(wire, seed("submit_event", **seed_event("e1")))
    assert not wire.session.is_full
    world.say(wire, seed("submit_event", **seed_event("e2")))
    assert wire.session.is_full
    world.settle()
    assert not wire.session.is_full
    assert [one["payload"]["committed_id"] for one in wire.take()] == [1, 2]


# -- idempotency -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recent_bytes", [1, 1 << 20], ids=["from the log", "from memory"])
def test_same_content_gets_the_result_that_exists(recent_bytes: int) -> None:
    world = World(recent_bytes=recent_bytes)
    wire, peer = seed_client(world, "A"), seed_client(world, "B")
    (first,) = world.ask(wire, seed("submit_event", **seed_event("e1", "P1", "P2", a=1, b=2)))
    world.ask(wire, seed("submit_event", **seed_event("e2")))
    world.ask(peer, sync(["P1"]))
    world.now_ms += 5000
    again = {"id": "e1", "partitions": ["P2", "P1", "P1"], "event": {"type": "note", "payload": {"b": 2.0, "a": 1}}}
    (second,) = world.ask(wire, seed("submit_event", **again))
    assert (second["type"], second["payload"]) == ("event_committed", first["payload"])
    assert len(world.log.events) == 2
    assert peer.take() == []


@pytest.mark.parametrize("recent_bytes", [1, 1 << 20], ids=["from the log", "from memory"])
def test_other_content_of_an_id_is_refused(recent_bytes: int) -> None:
    world = World(recent_bytes=recent_bytes)
    wire = seed_client(world)
    world.ask(wire, seed("submit_event", **seed_event("e1", a=1)))
    world.ask(wire, seed("submit_event", **seed_event("e2", a=1)))
    (answer,) = world.ask(wire, seed("submit_event", **seed_event("e1", a=2)))
    assert (answer["type"], answer["payload"]["reason"]) == ("event_rejected", "validation_failed")
    assert answer["payload"]["errors"][0]["message"] == "id already committed with different payload"


def test_repeats_inside_a_batch_share_one_commit() -> None:
    world = World()
    wire = project_client(world)
    events = [project_event("e1"), project_event("e1"), project_event("e1", payload={"n": "other"})]
    (answer,) = world.ask(wire, camel("submit_events", events=events))
    results = answer["payload"]["results"]
    assert [one["status"] for one in results] == ["committed", "committed", "rejected"]
    assert results[0]["committedId"] == results[1]["committedId"]
    assert len(world.log.events) == 1


def test_who_sends_an_event_again_does_not_matter() -> None:
    world = World()
    first, second = project_client(world, "A"), project_client(world, "B")
    world.ask(first, camel("submit_events", events=[project_event("e1", client="A")]))
    (answer,) = world.ask(second, camel("submit_events", events=[project_event("e1", client="B")]))
    assert answer["payload"]["results"][0]["committedId"] == 1


@pytest.mark.parametrize("changes", [{"meta": {"clientId": "A", "clientTs": 2}}, {"schemaVersion": 2}, {"userId": "u"}])
def test_camel_events_differ_by_all_that_they_carry(changes: dict[str, Any]) -> None:
    world = World()
    wire = project_client(world)
    world.ask(wire, camel("submit_events", events=[project_event("e1")]))
    (answer,) = world.ask(wire, camel("submit_events", events=[project_event("e1", **changes)]))
    assert answer["payload"]["results"][0]["status"] == "rejected"


# -- life --------------------------------------------------------------------------------------------------------------


def test_heartbeats_are_only_expected_of_those_who_send_them() -> None:
    world = World(terms=Terms(heartbeat_timeout_ms=1000))
    silent, beating = seed_client(world, "A"), seed_client(world, "B")
    world.say(beating, seed("heartbeat"))
    world.hub.tick(world.now_ms + 1001)
    assert not silent.closed
    assert beating.closed


def test_connection_without_connect_ends() -> None:
    world = World(terms=Terms(handshake_timeout_ms=1000))
    wire = world.connect()
    world.hub.tick(world.now_ms + 1001)
    assert wire.closed


def test_disconnect_ends_the_subscription_at_once() -> None:
    world = World()
    wire = seed_client(world)
    world.ask(wire, sync(["P1"]))
    world.ask(wire, seed("disconnect", reason="client_shutdown"))
    assert wire.closed
    fill(world, 1)
    assert wire.take() == []


def test_new_model_version_is_told_to_those_who_know_the_word() -> None:
    world = World(terms=Terms(model_version=3))
    wire, other = seed_client(world), project_client(world, "B")
    world.hub.tell_version(3, 4, world.now_ms)
    (told,) = wire.take()
    assert (told["type"], told["payload"]) == ("version_changed", {"old_model_version": 3, "new_model_version": 4})
    assert other.take() == []
    (page,) = world.ask(wire, sync(["P1"]))
    assert page["payload"]["model_version"] == 4


@pytest.mark.parametrize("kind", ["heartbeat", "submit_event", "disconnect", "connect", "nonsense"])
def test_camel_clients_know_no_seed_messages(kind: str) -> None:
    world = World()
    wire = project_client(world)
    (answer,) = world.ask(wire, camel(kind, **project_event("e1")))
    assert answer["payload"]["code"] == "bad_request"
    assert not wire.closed
