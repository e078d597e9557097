"""The parts of pipelines that decide without Spark: restarts, reasons, figures, the picture."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.errors import CannotListen, EventsGone, ServerAway
from holdfast.spark.losses import Losses, lost_in
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.pipeline.board import Board, lag_of
from holdfast.spark.pipeline.building import interval
from holdfast.spark.pipeline.metrics import BoardCollector, served
from holdfast.spark.pipeline.model import Restart
from holdfast.spark.pipeline.restarting import Attempts
from holdfast.spark.planning import Lost
from holdfast.spark.reasons import is_retriable, reason_of
from tests.unit.spark.test_pipeline_reading import WHOLE, read

SECOND = 10**9
REPORT = {
    "batchId": 7,
    "numInputRows": 300,
    "durationMs": {"triggerExecution": 1500},
    "sources": [{"endOffset": {"a": 10, "b": 5}, "latestOffset": '{"a": 14, "b": 5, "c": 3}'}],
    "stateOperators": [{"numRowsTotal": 4, "memoryUsedBytes": 100}, {"numRowsTotal": 1, "memoryUsedBytes": 50}],
}
TRACE = """Writing job failed: Traceback (most recent call last):
  File "x.py", line 1, in y
holdfast.errors.{name}: {text}
 SQLSTATE: 38000"""
JAVA = """An error occurred while calling o1.load.
: io.client.ClientException: an error
\tat io.client.Client.get(Client.java:1)
Caused by: java.io.IOException: refused: /127.0.0.1:9
\t... 20 more
Caused by: java.net.ConnectException: refused"""


def test_pauses_double_up_to_the_longest_and_then_it_is_given_up() -> None:
    attempts = Attempts(Restart(max_restarts=4, backoff_ns=SECOND, backoff_max_ns=5 * SECOND))
    found = [attempts.pause_ns(ran_ns=0) for _ in range(5)]
    assert found == [SECOND, 2 * SECOND, 4 * SECOND, 5 * SECOND, None]


def test_a_query_that_ran_long_begins_to_count_anew() -> None:
    attempts = Attempts(Restart(max_restarts=1, backoff_ns=SECOND, reset_after_ns=60 * SECOND))
    assert [attempts.pause_ns(ran_ns=ran) for ran in (0, 60 * SECOND, 59 * SECOND)] == [SECOND, SECOND, None]


def test_no_restarts_means_that_the_first_failure_ends_it() -> None:
    assert Attempts(Restart(max_restarts=0)).pause_ns(ran_ns=10**20) is None


@pytest.mark.parametrize(
    ("error", "again", "reason"),
    [
        (ServerAway(addr="h", reason="refused", waited_s=1.0), True, "h does not answer after 1.0 s: refused; start"),
        (EventsGone(channel="t", first_seq=1, last_seq=2, reason="evicted"), False, "events 1..2 of channel 't'"),
        (RuntimeError(TRACE.format(name="ServerAway", text="away")), True, "away"),
        (RuntimeError(TRACE.format(name="EventsGone", text="gone")), False, "gone"),
        (RuntimeError(TRACE.format(name="SchemaMismatch", text="no table holds it")), False, "no table"),
        (RuntimeError(TRACE.format(name="ColumnWidened", text="start again")), True, "start again"),
        (RuntimeError("x\nValueError: three is odd\n at java"), True, "ValueError: three is odd"),
        (
            RuntimeError("[STREAM_FAILED] org.apache.spark.sql.catalyst.ExtendedAnalysisException: no a"),
            True,
            "[STREAM",
        ),
        (RuntimeError("[UNSUPPORTED_STREAMING_OPERATOR.X] not so"), False, "[UNSUPPORTED"),
        (RuntimeError("a worker died"), True, "a worker died"),
        (RuntimeError(JAVA), True, "ClientException: an error; IOException: refused: /127.0.0.1:9"),
    ],
)
def test_what_is_tried_again_and_how_it_is_told(error: Exception, again: bool, reason: str) -> None:
    assert is_retriable(error) is again
    assert reason_of(error).startswith(reason)


def test_a_progress_report_becomes_figures() -> None:
    board = Board(["o"])
    board.change("o", "running")
    board.report("o", REPORT)
    board.report("o", {**REPORT, "numInputRows": 0})  # an idle report of the same batch
    board.report("other", REPORT)
    (status,) = board.statuses()
    assert (status.batch, status.batches, status.rows, status.batch_s) == (7, 1, 300, 1.5)
    assert (status.lag_events, status.state_rows, status.state_bytes) == (6, 5, 150)
    assert board.reports("o") == 2


def test_lost_events_are_counted_over_all_starts_of_a_query_and_are_no_lag() -> None:
    board = Board(["o"])
    for run, lost in (("x", 0), ("x", 3), ("x", 3), ("y", 2), ("y", 6), ("x", 3)):
        latest = Losses()
        latest.add([Lost("a", 1, lost)] if lost else [])
        source = {"endOffset": {"a": 10}, "latestOffset": json.dumps(latest.shown_with({"a": 14}))}
        board.report("o", {**REPORT, "runId": run, "sources": [source]})
    (status,) = board.statuses()
    assert (status.lost_events, status.lag_events) == (9, 4)


def test_a_range_that_is_found_lost_again_counts_once() -> None:
    losses = Losses()
    losses.add([Lost("a", 1, 10), Lost("b", 5, 5)])
    losses.add([Lost("a", 6, 12)])
    assert losses.shown_with({"a": 20, "b": 9}) == {"a": 20, "b": 9, "events lost": {"a": 12, "b": 1}}
    assert lost_in(losses.shown_with({"a": 20})) == 13


@pytest.mark.parametrize("latest", [None, "x", "7", {"t": 3}, '{"events lost": 3}', {"events lost": {"t": "x"}}])
def test_what_is_no_count_of_lost_events_counts_as_none(latest: object) -> None:
    assert lost_in(latest) == 0


def test_lag_is_unknown_without_offsets_of_ours() -> None:
    assert lag_of({"endOffset": None, "latestOffset": {"a": 3}}) == 0
    assert lag_of({"endOffset": "x", "latestOffset": "y"}) == 0


def test_metrics_have_the_figures_of_each_output() -> None:
    board = Board(["o"])
    board.report("o", REPORT)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BoardCollector("p", board))
    lines = generate_latest(registry).decode().splitlines()
    label = '{output="o",pipeline="p"}'
    for line in (f"up{label} 1.0", f"rows_total{label} 300.0", f"lag_events{label} 6.0", f"state_bytes{label} 150.0"):
        assert f"holdfast_pipeline_{line}" in lines


def test_a_taken_address_for_metrics_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CannotListen, match="metrics 127"), served(address, "p", Board([])):
            pass


def test_the_picture_shows_every_part_once(tmp_path: Path) -> None:
    picture = read(tmp_path, WHOLE, TOKEN="secret").graph()
    assert picture.splitlines() == [
        "trades: 2 sources, 5 steps, 3 outputs",
        "trades  trades, orders.* at http://127.0.0.1:9001",
        "└─► dear  filter price > 100",
        "    ├─► timed  watermark 10m on at",
        "    │   └─► counted  aggregate n by 1m of at, symbol",
        "    │       └─► [mine]  foreach_batch to my.module:take, every 10s",
        "    ├─► joined  sql SELECT * FROM dear JOIN rates USING (symbol) -- not tim…",
        f"    │   └─► [lake]  parquet to {tmp_path / 'lake'}, every 10s",
        "    └─► once  deduplicate _slot_id, _fsn",
        "        └─► [alerts]  channel to alerts, what is there now",
        f"rates  rates in {tmp_path / 'store'}",
        "└─► joined  (above)",
    ]


def test_times_are_written_as_spark_reads_them() -> None:
    assert interval(90 * SECOND + 1_500_000) == "90 seconds 1500 microseconds"


def test_a_pipeline_that_is_told_to_stop_twice_does_not_wait() -> None:
    pipeline = Pipeline.builder("p", checkpoint="c").source("t", channel="t", path="d").output("o", format="console")
    stopping = pipeline.build().stopping
    stopping.ask()
    assert (stopping.soon.is_set(), stopping.now.is_set()) == (True, False)
    stopping.ask()
    assert stopping.now.is_set()
