"""What the admin server shows of a store: envelope, pages, who may see what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.clock import NS_PER_S
from holdfast.errors import StoreFailed
from holdfast.model.frame import SlotFrame
from holdfast.server.admin import build
from holdfast.server.admin.openapi import OPENAPI
from holdfast.server.queries import QueryNews
from holdfast.server.state import ConnectionInfo
from tests.tidy.tree import ROOT
from tests.unit.server.admin.running import JSON, Answer, Running, batch

SLOT = bytes(range(16))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path) as running:
        yield running


def pages(server: Running, path: str, **headers: str) -> list[list[Any]]:
    """All pages of a list."""
    found, following = [], path
    while following:
        answer = server.get(following, headers)
        found.append(answer.data)
        following = answer.json["next"]
    return found


# -- pages ------------------------------------------------------------------------------------------------------------


def test_channels_come_by_name_in_pages(server: Running) -> None:
    names = [f"c{number:02}" for number in range(7)]
    for name in reversed(names):
        server.store.commit(name, batch(2))
    found = pages(server, "/api/v1/channels?limit=3")
    assert [len(page) for page in found] == [3, 3, 1]
    assert [item["name"] for page in found for item in page] == names
    assert pages(server, "/api/v1/channels?limit=7") == [[item for page in found for item in page]]


def test_a_channel_shows_columns_limits_and_positions(server: Running) -> None:
    server.store.commit("t", batch(5))
    server.store.flush()
    server.store.commit("t", batch(2))
    found = server.get("/api/v1/channels/t").data
    assert (found["first_seq"], found["last_seq"], found["published_seq"], found["events"]) == (1, 7, 5, 7)
    assert found["columns"] == [{"name": "n", "type": "int64", "nullable": True}]
    assert found["limits"]["retention_mode"] == "acked"


def test_segments_come_in_the_order_of_their_events(server: Running) -> None:
    for name in ("a", "b"):
        for _ in range(5):
            server.store.commit(name, batch(10))
            server.store.flush()
    found = pages(server, "/api/v1/channels/a/segments?limit=2")
    assert [[item["first_seq"] for item in page] for page in found] == [[1, 11], [21, 31], [41]]
    assert [item["first_seq"] for item in server.get("/api/v1/channels/a/segments?from_seq=25").data] == [21, 31, 41]
    both = [(item["channel"], item["first_seq"]) for page in pages(server, "/api/v1/segments?limit=3") for item in page]
    assert both == [(name, seq) for name in ("a", "b") for seq in (1, 11, 21, 31, 41)]
    one = server.get(f"/api/v1/channels/a/segments/{found[0][1]['segment']}").data
    assert one == found[0][1]


def test_subscribers_show_how_far_they_are(server: Running) -> None:
    server.store.commit("t", batch(10))
    server.store.flush()
    for name in ("one", "two", "three"):
        server.store.subscriber(name, ["t"]).close()
    found = pages(server, "/api/v1/subscribers?limit=2")
    assert [[item["name"] for item in page] for page in found] == [["one", "three"], ["two"]]
    (lag,) = found[0][0]["channels"]
    assert (lag["channel"], lag["mark"], lag["events"], lag["gaps"], lag["gaps_total"]) == ("t", 0, 10, [], 0)


def test_connections_come_oldest_first(server: Running) -> None:
    for number in range(5):
        info = ConnectionInfo(number, f"192.0.2.1:{number}", "a", "ingest", opened_at_ns=number)
        server.state.connections_by_id[number] = info
    found = pages(server, "/api/v1/connections?limit=2")
    assert [[item["id"] for item in page] for page in found] == [[0, 1], [2, 3], [4]]


def test_slots_show_their_owner_and_what_was_accepted(server: Running) -> None:
    for fsn in (0, 1, 2, 5):
        server.store.commit("t", batch(1), identity=SlotFrame(SLOT, fsn))  # type: ignore[arg-type]
    server.store.flush()
    server.gatekeeper.bind(SLOT, "app-1")
    server.gatekeeper.bind(b"\xff" * 16, "app-2")
    found = pages(server, "/api/v1/slots?limit=1")
    assert [len(page) for page in found] == [1, 1]
    first, second = found[0][0], found[1][0]
    assert (first["slot_id"], first["principal"], first["last_fsn"]) == (SLOT.hex(), "app-1", 5)
    assert first["ranges"] == [[0, 2], [5, 5]]
    assert (second["principal"], second["last_fsn"]) == ("app-2", None)


def test_an_owner_can_be_released(server: Running) -> None:
    server.gatekeeper.bind(SLOT, "app-1")
    assert server.ask("DELETE", f"/api/v1/slots/{SLOT.hex()}/owner").data["released_from"] == "app-1"
    assert server.ask("DELETE", f"/api/v1/slots/{SLOT.hex()}/owner").status == 404
    assert server.ask("DELETE", "/api/v1/slots/xyz/owner").status == 400
    assert b"admin.changed" in server.audit_lines[-1]
    assert server.gatekeeper.bind(SLOT, "app-2") == "app-2"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "limit=-1", "limit=1e3", "after=%25", "after=" + "A" * 600, "page=2"]
)
def test_a_bad_parameter_is_refused_by_name(server: Running, query: str) -> None:
    for path in ("channels", "segments", "subscribers", "connections", "slots"):
        answer = server.get(f"/api/v1/{path}?{query}")
        assert (answer.status, answer.error["code"]) == (400, "bad_parameter")
        assert answer.error["where"]["parameter"] == query.partition("=")[0]


def test_what_is_not_there_is_told_in_the_envelope(server: Running) -> None:
    server.store.commit("t", batch(1))
    for path, code in (
        ("/api/v1/channels/none", "unknown_channel"),
        ("/api/v1/channels/none/segments", "unknown_channel"),
        ("/api/v1/channels/t/segments/999", "not_found"),
        ("/api/v1/channels/t/segments/999/data", "not_found"),
        ("/api/v1/nothing", "not_found"),
        ("/", "not_found"),
    ):
        answer = server.get(path)
        assert (answer.status, answer.error["code"]) == (404, code), path
    assert server.get("/api/v1/channels/t/segments/x").status == 400
    assert server.ask("DELETE", "/api/v1/channels").error["code"] == "method_not_allowed"


def test_a_bug_says_nothing_of_its_cause(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Running(tmp_path) as server:
        server.state.connections_by_id[0] = "secret-value"  # type: ignore[assignment]
        answer = server.get("/api/v1/connections")
    assert (answer.status, answer.error["code"]) == (500, "internal")
    assert b"secret-value" not in answer.body
    assert "AttributeError" in caplog.text


# -- who may see what -------------------------------------------------------------------------------------------------

RULES = [
    {"principal": "root", "allow": "*"},
    {"principal": "reader", "allow": "consume", "channels": "a.*"},
    {"principal": "writer", "allow": "publish", "channels": "a.*"},
    {"principal": "keeper", "allow": "admin", "channels": "b"},
]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, {"access": RULES}) as running:
        for channel in ("a.x", "a.y", "b"):
            running.store.commit(channel, batch(3))
        running.store.flush()
        running.store.subscriber("all", ["*"]).close()
        running.store.subscriber("only-b", ["b"]).close()
        yield running


@pytest.mark.guarantee("G12")
def test_nothing_is_shown_without_a_credential(guarded: Running) -> None:
    guarded.token("root")
    for path, operations in OPENAPI["paths"].items():
        if path in ("/healthz", "/readyz"):
            continue
        place = path.format(channel="a.x", segment="1", slot=SLOT.hex(), subscriber="s", query="q")
        for method in operations:
            for headers in ({}, {"Authorization": "Bearer hf_wrong"}, {"Authorization": "Negotiate x"}):
                answer = guarded.ask(method.upper(), place, b"{}" if method == "post" else None, headers)
                assert (answer.status, answer.error["code"]) == (401, "unauthenticated"), (method, place)
                assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.guarantee("G12")
def test_everyone_sees_their_own_channels_only(guarded: Running) -> None:
    def seen(headers: dict[str, str]) -> tuple[list[str], list[str], list[tuple[str, list[str]]]]:
        channels = [item["name"] for item in guarded.get("/api/v1/channels", headers).data]
        segments = [item["channel"] for item in guarded.get("/api/v1/segments", headers).data]
        subscribers = [
            (item["name"], [lag["channel"] for lag in item["channels"]])
            for item in guarded.get("/api/v1/subscribers", headers).data
        ]
        return channels, segments, subscribers

    everything, mine = ["a.x", "a.y", "b"], ["a.x", "a.y"]
    assert seen(guarded.token("root")) == (everything, everything, [("all", everything), ("only-b", ["b"])])
    assert seen(guarded.token("reader")) == (mine, mine, [("all", mine)])
    assert seen(guarded.token("keeper")) == (["b"], ["b"], [("all", ["b"]), ("only-b", ["b"])])
    assert seen(guarded.token("writer")) == ([], [], [])
    assert seen(guarded.token("stranger")) == ([], [], [])


@pytest.mark.guarantee("G12")
def test_a_channel_of_others_answers_like_one_that_is_not_there(guarded: Running) -> None:
    reader = guarded.token("reader")
    number = guarded.get("/api/v1/channels/b/segments", guarded.token("root")).data[0]["segment"]
    for rest in ("", "/segments", f"/segments/{number}", f"/segments/{number}/data"):
        hidden, missing = (guarded.get(f"/api/v1/channels/{name}{rest}", reader) for name in ("b", "none"))
        assert (hidden.status, hidden.error["code"]) == (404, "unknown_channel")
        assert hidden.body.replace(b"'b'", b"'none'").replace(b'"b"', b'"none"') == missing.body
    assert guarded.get(f"/api/v1/channels/a.x/segments/{number}/data", reader).status == 404


@pytest.mark.guarantee("G12")
def test_only_administrators_see_the_server(guarded: Running) -> None:
    root = guarded.token("root")
    for path in ("/metrics", "/api/v1/connections", "/api/v1/slots"):
        assert guarded.get(path, root).status == 200
        for name in ("reader", "writer", "keeper", "stranger"):
            answer = guarded.get(path, guarded.token(name))
            assert (answer.status, answer.error["code"]) == (403, "forbidden")
    assert guarded.ask("DELETE", f"/api/v1/slots/{SLOT.hex()}/owner", headers=guarded.token("reader")).status == 403


@pytest.mark.guarantee("G12")
def test_only_publishers_write_and_only_to_their_channels(guarded: Running) -> None:
    kind, before = {"Content-Type": "application/json"}, guarded.store.statistics().events
    body = b'[{"n": 1}]'
    for name, channel, status in (
        ("reader", "a.x", 403),
        ("writer", "b", 403),
        ("keeper", "b", 403),
        ("stranger", "new", 403),
        ("writer", "a.new", 200),
    ):
        assert guarded.post(channel, body, {**kind, **guarded.token(name)}).status == status
    assert guarded.store.statistics().events == before + 1
    assert guarded.store.channels() == ["a.new", "a.x", "a.y", "b"]
    assert sum(b"access.refused" in line for line in guarded.audit_lines) == 4


@pytest.mark.guarantee("G12")
def test_expired_and_revoked_tokens_see_nothing(guarded: Running) -> None:
    short = guarded.token("root", expires_at_ns=guarded.clock.wall_ns() + NS_PER_S * 3600)
    gone = guarded.token("old-root", expires_at_ns=guarded.clock.wall_ns() - 1)
    assert guarded.get("/api/v1/channels", short).status == 200
    assert "expired" in guarded.get("/api/v1/channels", gone).error["message"]
    guarded.tokens.revoke("root", now_ns=guarded.clock.wall_ns())
    guarded.gatekeeper.poll()
    assert "revoked" in guarded.get("/api/v1/channels", short).error["message"]


# -- headers and document ---------------------------------------------------------------------------------------------


def test_every_answer_makes_browsers_careful(server: Running) -> None:
    server.store.commit("t", batch(1))
    server.state.connections_by_id[0] = "x"  # type: ignore[assignment]
    for path in (
        "/healthz",
        "/api/v1/channels",
        "/nothing",
        "/metrics",
        "/api/v1/connections",
        "/api/v1/channels/none",
    ):
        headers = server.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
        assert not [name for name in headers if name.startswith("access-control")]


def shape(schema: Any) -> Any:
    """The keys that a schema of the document requires, deeply."""
    if "$ref" in schema:
        return shape(OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if schema.get("type") == "object" and "properties" in schema:
        return {name: shape(inner) for name, inner in schema["properties"].items()}
    return [shape(schema["items"])] if schema.get("type") == "array" else None


def fits(value: Any, form: Any) -> bool:
    """Whether a value has exactly those keys."""
    if isinstance(form, dict):
        return isinstance(value, dict) and value.keys() == form.keys() and all(fits(value[k], form[k]) for k in form)
    return not isinstance(form, list) or all(fits(item, form[0]) for item in value)


def test_document_describes_what_is_answered(server: Running) -> None:
    server.store.commit("t", batch(3), identity=SlotFrame(SLOT, 0))  # type: ignore[arg-type]
    server.store.flush()
    server.store.subscriber("s", ["t"]).close()
    server.state.connections_by_id[1] = ConnectionInfo(1, "p", "a", "ingest", opened_at_ns=1)
    server.gatekeeper.bind(SLOT, "a")
    server.state.senders.arrive(SLOT.hex(), peer="p", principal="a")
    server.state.troubles.note("WRITE_ERROR", "full", peer="p")
    server.state.queries.tell(QueryNews("q", "a", ("t",), 1, 2, 3.0, 4, 5.0, "", at_ns=6))
    assert server.get("/api/v1/openapi.json").json == msgspec.to_builtins(OPENAPI)
    seen = 0
    for path, operations in OPENAPI["paths"].items():
        for method, operation in operations.items():
            schema = operation["responses"]["200"]["content"].get("application/json", {}).get("schema", {})
            if "data" not in schema.get("properties", {}):
                continue
            segment = server.get("/api/v1/segments").data[0]["segment"]  # compacting puts another one in its place
            place = path.format(channel="t", segment=segment, slot=SLOT.hex(), subscriber="s", query="q")
            answer = asked(server, method, place)
            assert answer.data, path
            assert fits(answer.json, shape(schema)), path
            seen += 1
    assert seen == 23


BODIES = {
    "/acks": b'{"acks": [{"channel": "t", "first_seq": 1, "last_seq": 1}]}',
    "/reset": b'{"to": "first"}',
    "/compact": b"{}",
    "/seal": None,
    "/subscribers/s": b'{"channels": ["t"]}',
    "/queries/q": b'{"channels": ["t"]}',
}


def asked(server: Running, method: str, path: str) -> Answer:
    for end, body in BODIES.items():
        if method == "post" and path.endswith(end):
            return server.ask("POST", path, body, JSON if body is not None else None)
    if method == "post":
        return server.post("t", b'{"n": 1}')
    return server.ask(method.upper(), path)


def test_document_names_every_route_and_nothing_else(server: Running) -> None:
    routes = {
        (route.path, method.lower())  # type: ignore[attr-defined]
        for route in build(server.state).routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    described = {(path, method) for path, operations in OPENAPI["paths"].items() for method in operations}
    assert routes == described


def test_reference_page_lists_every_route() -> None:
    page = (ROOT / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")
    listed = {(path, method.lower()) for method, path in re.findall(r"^\| `([A-Z]+) (\S+)` \|", page, re.MULTILINE)}
    assert listed == {(path, method) for path, operations in OPENAPI["paths"].items() for method in operations}


def test_a_failed_store_is_told_as_such(server: Running) -> None:
    server.store.commit("t", batch(1))
    server.store._tail.fail(StoreFailed(file=Path("wal-1.log"), reason="I/O error"))
    answer = server.get("/api/v1/channels")
    assert (answer.status, answer.error["code"]) == (503, "store_failed")
    assert server.get("/metrics").status == 200
    assert b"holdfast_store_failed 1.0" in server.get("/metrics").body
