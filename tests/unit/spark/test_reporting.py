"""Queries are told to the consoles of their servers. Spark's own events, without Spark."""

from __future__ import annotations

import json
import socket
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

from holdfast.clock import NS_PER_S
from holdfast.spark.progress import QUIET_S, News, Progress, after
from holdfast.spark.reporting import Destination, Reporter, ReportListener
from tests.unit.dataflow.flows import until
from tests.unit.server.admin.running import Running

QUERY = uuid.UUID(int=7)
REPORT: dict[str, Any] = {
    "id": str(QUERY),
    "runId": str(uuid.UUID(int=8)),
    "name": "lake",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 3,
    "batchDuration": 2000,
    "numInputRows": 300,
    "durationMs": {"triggerExecution": 2000},
    "stateOperators": [],
    "sources": [
        {
            "description": "holdfast",
            "startOffset": '{"trades":1}',
            "endOffset": '{"trades":301}',
            "latestOffset": '{"trades":311}',
            "numInputRows": 300,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
            "metrics": {},
        }
    ],
    "sink": {"description": "x", "numOutputRows": 1, "metrics": {}},
}
FAILURE = """[STREAM_FAILED] Query failed: Traceback (most recent call last):
holdfast.errors.EventsGone: channel 'trades': events 1 to 9 are gone
SQLSTATE: XXKST"""


def progress(**changes: object) -> QueryProgressEvent:
    return QueryProgressEvent.fromJson({"progress": {**REPORT, **changes}})


def terminated(exception: str | None) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(QUERY, uuid.UUID(int=8), exception, None)


def told(server: Running) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("/api/v1/queries").data
    return found


def test_console_of_the_server_hears_of_each_batch_and_the_end(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        reporter = Reporter([Destination(f"http://127.0.0.1:{server.port}")])
        listener = ReportListener(reporter)
        listener.onQueryProgress(progress())
        listener.onQueryProgress(progress(batchId=4, numInputRows=100))
        listener.onQueryProgress(progress(batchId=5, numInputRows=0))
        reporter.close()
        (found,) = told(server)
        assert (found["name"], found["channels"], found["batch"], found["rows"]) == ("lake", ["trades"], 4, 400)
        assert (found["behind"], found["batch_s"], found["error"]) == (10, 2.0, "")


def test_query_that_failed_is_told_with_its_reason(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        reporter = Reporter([Destination(f"http://127.0.0.1:{server.port}")])
        listener = ReportListener(reporter)
        listener.onQueryProgress(progress())
        listener.onQueryTerminated(terminated(FAILURE))
        reporter.close()
        (found,) = told(server)
        assert (found["batch"], found["error"]) == (3, "channel 'trades': events 1 to 9 are gone")


def test_server_that_is_away_or_refuses_holds_nothing_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        away = Destination(f"http://127.0.0.1:{free.getsockname()[1]}")
    rules = [{"principal": "reader", "allow": "consume", "channels": ["other"]}]
    with Running(tmp_path, {"access": rules}) as server:
        addr = f"http://127.0.0.1:{server.port}"
        refused = Destination(addr, token=server.token("reader")["Authorization"].split()[1])
        reporter = Reporter([away, refused, Destination(addr, token_file=str(tmp_path / "missing"))])
        ReportListener(reporter).onQueryProgress(progress())
        reporter.close()
        lines = [record.getMessage() for record in caplog.records]
        places = [line.split()[:2] for line in lines if line.startswith("spark.report.away")]
        assert places == [["spark.report.away", f"addr={place}"] for place in (away.addr, addr)]
        assert server.state.queries.current() == ()


def test_server_that_refuses_the_credential_is_left_alone_for_a_while(tmp_path: Path) -> None:
    rules = [{"principal": "reader", "allow": "consume", "channels": ["other"]}]
    with Running(tmp_path, {"access": rules}) as server:
        token = server.token("reader")["Authorization"].split()[1]

        def refusals() -> int:
            return sum(b"access.refused" in line for line in server.audit_lines)

        reporter = Reporter([Destination(f"http://127.0.0.1:{server.port}", token=token)])
        listener = ReportListener(reporter)
        listener.onQueryProgress(progress())
        until(lambda: refusals() > 0)
        listener.onQueryProgress(progress(batchId=4))
        reporter.close()
        assert refusals() == 1


def test_only_the_queries_that_were_named_are_told(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        reporter = Reporter([Destination(f"http://127.0.0.1:{server.port}")])
        listener = ReportListener(reporter, frozenset({"lake"}))
        listener.onQueryProgress(progress(name="another", id=str(uuid.UUID(int=9))))
        listener.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(int=9), QUERY, None, None))
        listener.onQueryProgress(progress())
        reporter.close()
        assert [item["name"] for item in told(server)] == ["lake"]


def test_a_server_is_told_of_its_own_channels_only() -> None:
    one, two = "http://10.0.0.1:9001", "http://10.0.0.2:9001"
    offsets = {f"{one}/a": 5, f"{two}/a": 3, f"{two}/b": 2}
    ends = {f"{one}/a": 7, f"{two}/a": 3, f"{two}/b": 9}
    many = Progress("q", offsets, ends)
    first, second = many.told(one, ["*"]), many.told(two, ["*"])
    assert first is not None
    assert second is not None
    assert (first["channels"], first["behind"]) == (["a"], 2)
    assert (second["channels"], second["behind"]) == (["a", "b"], 7)
    assert many.told("http://10.0.0.3:9001", ["*"]) is None
    both = Progress("q", {"a": 5, "b": 2}, {"a": 6, "b": 9})
    found = both.told(one, ["a*"])
    assert found is not None
    assert (found["channels"], found["behind"]) == (["a"], 1)


def test_query_over_other_sources_is_not_told() -> None:
    rate = {**REPORT, "sources": [{"endOffset": 5, "latestOffset": 5}]}
    kafka = {**REPORT, "sources": [{"endOffset": {"topic": {"0": 5}}, "latestOffset": None}]}
    for report in (rate, kafka):
        assert after(None, report).told("http://127.0.0.1:9001", ["*"]) is None


def test_query_without_a_name_is_told_by_its_id() -> None:
    assert after(None, json.loads(json.dumps({**REPORT, "name": None}))).name == str(QUERY)


def test_quiet_query_is_told_again_and_an_ended_one_is_not() -> None:
    news = News()
    first = after(None, REPORT)
    news.put("a", first)
    news.put("b", replace(first, name="b", ended=True))
    assert [item.name for item in news.due(0)] == ["lake", "b"]
    assert news.due(1) == []
    assert news.due(QUIET_S * NS_PER_S) == [first]
    assert news.due(QUIET_S * NS_PER_S + 1) == []
    second = replace(first, batch=9)
    news.put("a", second)
    assert news.due(QUIET_S * NS_PER_S + 2) == [second]
