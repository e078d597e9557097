"""Spark queries tell how they are doing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import LimitReached
from holdfast.server.queries import FORGET_S, QUERIES_MAX, Queries, QueryNews
from holdfast.testing import ManualClock
from tests.unit.server.admin.running import JSON, Answer, Running

RULES = [
    {"principal": "root", "allow": "*"},
    {"principal": "reader", "allow": "consume", "channels": ["a.>"]},
    {"principal": "other", "allow": "consume", "channels": ["a.>"]},
    {"principal": "stranger", "allow": "consume", "channels": ["b"]},
]
NEWS: dict[str, Any] = {
    "channels": ["a.x"],
    "batch": 7,
    "rows": 300,
    "rows_per_s": 120.5,
    "behind": 12,
    "batch_s": 2.5,
    "error": "",
}


def tell(server: Running, name: str, headers: dict[str, str] | None = None, **changes: object) -> Answer:
    body = json.dumps({**NEWS, **changes}).encode()
    return server.ask("POST", f"/api/v1/queries/{name}", body, {**JSON, **(headers or {})})


def news(name: str, principal: str = "p") -> QueryNews:
    return QueryNews(name, principal, ("a",), 1, 1, 1.0, 0, 1.0, "", at_ns=0)


def test_last_news_of_a_query_are_listed(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        assert server.get("/api/v1/queries").data == []
        told = tell(server, "lake").data
        assert {key: told[key] for key in NEWS} == NEWS
        tell(server, "alerts")
        tell(server, "lake", batch=8, error="a worker died")
        found = server.get("/api/v1/queries").data
        assert [(item["name"], item["batch"], item["error"]) for item in found] == [
            ("alerts", 7, ""),
            ("lake", 8, "a worker died"),
        ]


@pytest.mark.guarantee("G12")
def test_queries_are_told_and_shown_by_the_rules_of_their_channels(tmp_path: Path) -> None:
    with Running(tmp_path, {"access": RULES}) as server:
        root, reader, other, stranger = (server.token(name) for name in ("root", "reader", "other", "stranger"))
        assert tell(server, "q", reader).status == 200
        assert tell(server, "q", other, rows=1).status == 200
        assert tell(server, "q", stranger).error["code"] == "forbidden"
        assert tell(server, "q", reader, channels=["a.x", "b"]).error["code"] == "forbidden"
        assert tell(server, "both", root, channels=["a.x", "b"]).status == 200

        def seen(headers: dict[str, str]) -> list[tuple[str, str, int]]:
            found = server.get("/api/v1/queries", headers).data
            return [(item["name"], item["principal"], item["rows"]) for item in found]

        assert seen(root) == [("both", "root", 300), ("q", "other", 1), ("q", "reader", 300)]
        assert seen(reader) == [("q", "other", 1), ("q", "reader", 300)]
        assert seen(stranger) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": []},
        {"channels": ["a"] * 101},
        {"channels": ["a" * 256]},
        {"batch": -2},
        {"rows": 1 << 63},
        {"rows_per_s": -1.0},
        {"error": "x" * 501},
        {"more": 1},
    ],
)
def test_news_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with Running(tmp_path) as server:
        assert tell(server, "q", **changes).status == 400
        assert server.get("/api/v1/queries").data == []


def test_name_body_and_type_of_news_are_bounded(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        assert tell(server, "n" * 256).status == 400
        assert server.ask("POST", "/api/v1/queries/q", b" " * (1 << 16), JSON).status == 413
        assert server.ask("POST", "/api/v1/queries/q", b"{}").status == 415


def test_one_query_too_many_is_refused_until_another_is_forgotten() -> None:
    clock = ManualClock()
    queries = Queries(clock)
    for number in range(QUERIES_MAX):
        queries.tell(news(f"q{number:03}"))
    queries.tell(news("q000"))
    with pytest.raises(LimitReached, match="200"):
        queries.tell(news("q000", "somebody else"))
    clock.advance(FORGET_S - 1)
    queries.tell(news("q007"))
    clock.advance(1)
    queries.tell(news("new"))
    assert [item.name for item in queries.current()] == ["new", "q007"]
