"""Events as JSON rows, for people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.server.admin.reading import ROWS_MAX, VALUE_CHARS_MAX
from tests.unit.server.admin.running import Running, batch


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path) as running:
        yield running


def seqs(server: Running, query: str = "") -> list[int]:
    return [row["_seq"] for row in server.get(f"/api/v1/channels/t/events{query}").data]


def test_last_events_come_without_a_position_and_also_from_the_log(server: Running) -> None:
    server.store.commit("t", batch(200))
    server.store.flush()
    server.store.commit("t", batch(5))
    assert seqs(server, "?limit=10") == list(range(196, 206))
    assert len(seqs(server)) == ROWS_MAX


def test_pages_follow_each_other_without_gap_or_repeat(server: Running) -> None:
    server.store.commit("t", batch(25))
    found, path = [], "/api/v1/channels/t/events?from_seq=1&limit=10"
    while path:
        answer = server.get(path)
        found += [row["_seq"] for row in answer.data]
        path = answer.json["next"]
    assert found == list(range(1, 26))


def test_behind_the_last_event_there_is_nothing(server: Running) -> None:
    server.store.commit("t", batch(3))
    assert seqs(server, "?from_seq=4") == []


def test_every_kind_of_value_has_a_word_in_json(server: Running) -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    row = {
        "text": "a" * (VALUE_CHARS_MAX + 1),
        "raw": b"\x00\xff",
        "price": Decimal("1.50"),
        "at": moment,
        "tags": ["x", "y"],
        "more": {"deep": [b"z"]},
        "none": None,
    }
    server.store.commit("t", pa.RecordBatch.from_pylist([row]))
    (found,) = server.get("/api/v1/channels/t/events").data
    assert found["text"] == f"{'a' * VALUE_CHARS_MAX}… ({VALUE_CHARS_MAX + 1} characters)"
    assert (found["raw"], found["price"], found["at"]) == ("AP8=", "1.50", moment.isoformat())
    assert (found["tags"], found["more"], found["none"]) == (["x", "y"], {"deep": ["eg=="]}, None)


@pytest.mark.parametrize(
    "query",
    [
        *("?from_seq=-1", "?from_seq=one", "?limit=0", "?seq=1"),
        *(f"?limit=000000001{'9' * 10}", f"?limit={'0' * 9}{'9' * 5_000}"),  # long, and small at its beginning
    ],
)
def test_parameter_that_is_wrong_is_named(server: Running, query: str) -> None:
    server.store.commit("t", batch(1))
    answer = server.get(f"/api/v1/channels/t/events{query}")
    assert (answer.status, answer.error["code"]) == (400, "bad_parameter")


def test_channel_that_is_not_there_is_not_found(server: Running) -> None:
    assert server.get("/api/v1/channels/t/events").status == 404


# -- as an Arrow stream -----------------------------------------------------------------------------------------------

ARROW = {"Accept": "application/vnd.apache.arrow.stream"}


def table_of(server: Running, query: str = "") -> pa.Table:
    answer = server.get(f"/api/v1/channels/t/events{query}", ARROW)
    assert answer.status == 200, answer.body
    return pa.ipc.open_stream(answer.body).read_all()


def test_stream_has_segments_and_the_log_without_gap_or_repeat(server: Running) -> None:
    server.store.commit("t", batch(50))
    server.store.flush()
    server.store.commit("t", batch(7, start=50))
    assert table_of(server, "?system=_seq").to_pydict() == {"n": list(range(57)), "_seq": list(range(1, 58))}


def test_stream_takes_bounds_and_columns(server: Running) -> None:
    server.store.commit("t", pa.record_batch({"a": [1, 2, 3, 4], "b": ["w", "x", "y", "z"]}))
    assert table_of(server, "?start=2&end=3&columns=b").to_pydict() == {"b": ["x", "y"]}
    assert table_of(server, "?start=9").num_rows == 0
    assert table_of(server, "?start=9&columns=b").schema.names == ["b"]


@pytest.mark.parametrize("query", ["?start=soon", "?columns=c", "?system=_when", "?from_seq=1", "?end=2026-01-01"])
def test_stream_that_cannot_be_made_is_refused_before_its_first_byte(server: Running, query: str) -> None:
    server.store.commit("t", batch(1))
    answer = server.get(f"/api/v1/channels/t/events{query}", ARROW)
    assert (answer.status, answer.error["code"]) == (400, "bad_parameter")
