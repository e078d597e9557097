"""Subscribers over HTTP: registered by name, confirmed by ranges, only by those who may consume."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.server.admin.running import JSON, Answer, Running, batch

S = "/api/v1/subscribers/s"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path) as running:
        for _ in range(2):
            running.store.commit("t", batch(10))
            running.store.flush()
        yield running


def send(server: Running, path: str, body: object, headers: Mapping[str, str] = JSON) -> Answer:
    return server.ask("POST", path, json.dumps(body).encode(), headers)


def ack(server: Running, *spans: tuple[str, int, int], headers: Mapping[str, str] = JSON) -> Answer:
    acks = [{"channel": channel, "first_seq": first, "last_seq": last} for channel, first, last in spans]
    return send(server, f"{S}/acks", {"acks": acks}, headers)


def mark(answer: Answer) -> Any:
    return answer.data["channels"][0]["mark"]


def test_registering_again_answers_with_the_marks_of_now(server: Running) -> None:
    assert mark(send(server, S, {"channels": ["t"]})) == 0
    assert mark(ack(server, ("t", 1, 7))) == 7
    assert mark(send(server, S, {"channels": ["t"], "start": "new"})) == 7


@pytest.mark.parametrize("body", [b'{"\xff": 1}', b'{"channels": ["\xff"]}', b'{"channels": ' + b"[" * 5_000])
def test_body_that_cannot_be_read_is_a_bad_request(server: Running, body: bytes) -> None:
    answer = server.ask("POST", S, body, JSON)
    assert (answer.status, answer.error["code"]) == (400, "bad_request")


@pytest.mark.parametrize(("start", "expected"), [("first", 0), ("new", 20), ("last", 19), (6, 5)])
def test_start_position_becomes_the_first_mark(server: Running, start: object, expected: int) -> None:
    assert mark(send(server, S, {"channels": ["t"], "start": start})) == expected


def test_start_at_a_time_with_its_zone_is_understood(server: Running) -> None:
    assert mark(send(server, S, {"channels": ["t"], "start": "2001-01-01T00:00:00+00:00"})) == 0
    assert send(server, S, {"channels": ["t", "u"], "start": "2001-01-01T00:00:00"}).status == 400


@pytest.mark.guarantee("G7")
def test_acks_behind_a_hole_do_not_move_the_mark(server: Running) -> None:
    send(server, S, {"channels": ["t"]})
    assert mark(ack(server, ("t", 5, 10))) == 0
    answer = ack(server, ("t", 1, 2))
    assert (mark(answer), answer.data["channels"][0]["gaps"]) == (2, [[3, 4]])
    assert mark(ack(server, ("t", 1, 10))) == 10


def test_acks_are_there_after_a_restart(tmp_path: Path) -> None:
    for expected in (0, 5):
        with Running(tmp_path) as running:
            running.store.commit("t", batch(10))
            assert mark(send(running, S, {"channels": ["t"]})) == expected
            ack(running, ("t", 1, 5))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"channels": "t"},
        {"channels": ["t"], "begin": 1},
        {"channels": ["t"], "start": "yesterday"},
        {"channels": ["t"], "start": 1.5},
        {"channels": []},
    ],
)
def test_a_registration_that_does_not_fit_is_refused(server: Running, body: object) -> None:
    assert send(server, S, body).status == 400
    assert server.get("/api/v1/subscribers").data == []


def test_acks_that_do_not_fit_are_refused(server: Running) -> None:
    assert ack(server, ("t", 1, 1)).status == 404
    send(server, S, {"channels": ["t"]})
    for spans in ([], [("t", 1, 21)], [("t", 3, 2)], [("t", 0, 2)], [("t", 1, 1)] * 1001):
        assert ack(server, *spans).status == 400
    assert ack(server, ("other", 1, 1)).status == 404
    assert send(server, S, {"channels": ["t"]}, {"Content-Type": "text/plain"}).status == 415


@pytest.mark.guarantee("G12")
def test_only_who_may_consume_a_channel_registers_and_confirms(tmp_path: Path) -> None:
    rules = [{"principal": "root", "allow": "*"}, {"principal": "mine", "allow": "consume", "channels": "a.*"}]
    with Running(tmp_path, {"access": rules}) as running:
        for channel in ("a.x", "b"):
            running.store.commit(channel, batch(3))
        root, mine = ({**JSON, **running.token(name)} for name in ("root", "mine"))
        for channels in (["b"], ["*"], ["a.x", "b"]):
            assert send(running, S, {"channels": channels}, mine).status == 403
        assert running.get("/api/v1/subscribers", root).data == []
        assert send(running, S, {"channels": ["a.*"]}, mine).status == 200
        assert send(running, S, {"channels": ["*"]}, root).status == 200
        assert ack(running, ("b", 1, 1), headers=mine).status == 403
        assert ack(running, ("a.x", 1, 1), headers=mine).status == 200
        assert send(running, f"{S}/reset", {"to": "first"}, mine).status == 403
        assert send(running, f"{S}/reset", {"to": "first", "channel": "a.x"}, mine).status == 200
        assert b"subscriber registered" in b"".join(running.audit_lines)


@pytest.mark.guarantee("G12")
def test_a_refusal_names_no_channel_that_the_caller_did_not_name(tmp_path: Path) -> None:
    rules = [{"principal": "root", "allow": "*"}, {"principal": "mine", "allow": "consume", "channels": "a.x"}]
    with Running(tmp_path, {"access": rules}) as running:
        for channel in ("a.x", "a.secret"):
            running.store.commit(channel, batch(3))
        root, mine = ({**JSON, **running.token(name)} for name in ("root", "mine"))
        assert send(running, S, {"channels": ["a.x", "a.secret"]}, root).status == 200
        hidden = "/api/v1/subscribers/hidden"
        assert send(running, hidden, {"channels": ["a.secret"]}, root).status == 200
        refusals = [
            send(running, S, {"channels": ["a.x"]}, mine),
            send(running, f"{S}/reset", {"to": "first"}, mine),
            running.ask("DELETE", S, None, mine),
            send(running, "/api/v1/subscribers/new", {"channels": ["a.*"]}, mine),
        ]
        assert [answer.status for answer in refusals] == [403] * 4
        assert all(b"secret" not in answer.body for answer in refusals)
        acks = {"acks": [{"channel": "a.x", "first_seq": 1, "last_seq": 1}]}
        unseen, unknown = (send(running, f"{path}/acks", acks, mine) for path in (hidden, "/api/v1/subscribers/none"))
        assert (unseen.status, unknown.status) == (404, 404)
        assert unseen.body.replace(b"hidden", b"none") == unknown.body


def test_a_channel_tells_its_arrow_schema(server: Running) -> None:
    found = server.get("/api/v1/channels/t").data
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["arrow_schema"])))
    assert (schema, found["skipped"]) == (server.store.schema("t"), [])


def test_a_reset_is_planned_then_done_and_written_to_the_audit_log(server: Running) -> None:
    send(server, S, {"channels": ["t"]})
    ack(server, ("t", 1, 15))
    planned = send(server, f"{S}/reset", {"to": 6, "plan": True}).data
    (move,) = planned["channels"]
    assert (move["mark_before"], move["mark"], move["again"], move["owed"]) == (15, 5, 10, 15)
    assert mark(send(server, S, {"channels": ["t"]})) == 15
    done = send(server, f"{S}/reset", {"to": 6, "channel": "t"}).data
    assert (planned["applied"], done["applied"]) == (False, True)
    assert done["channels"] == planned["channels"]
    assert mark(send(server, S, {"channels": ["t"]})) == 5
    (line,) = [line for line in map(json.loads, server.audit_lines) if line.get("change") == "subscriber reset to 6"]
    assert (line["subscriber"], line["channels"]) == ("s", "t")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"{S}/reset", {"to": "somewhere"}, 400),
        (f"{S}/reset", {"to": "first", "channel": "not-followed"}, 404),
        (f"{S}/reset", {}, 400),
        ("/api/v1/subscribers/nobody/reset", {"to": "first"}, 404),
    ],
)
def test_a_reset_that_means_nothing_is_refused(server: Running, path: str, body: object, status: int) -> None:
    send(server, S, {"channels": ["t"]})
    assert send(server, path, body).status == status


def test_subscriber_is_shown_with_what_it_lost(server: Running) -> None:
    send(server, S, {"channels": ["t"]})
    ack(server, ("t", 1, 7))
    assert server.ask("GET", S).data["losses"] == []
    server.store.remove_channel("t")
    (loss,) = server.ask("GET", S).data["losses"]
    assert (loss["channel"], loss["subscriber"], loss["reason"], loss["events"]) == ("t", "s", "removed", 13)
