"""Runs that end, in real queries, while their server is away: by themselves, and because they are stopped."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.away import back_once_missed, lasting
from tests.spark.stores import fill
from tests.unit.server.admin.running import WAIT_S, Running

pytestmark = pytest.mark.timeout(600)  # a timeout in the middle of a call leaves the session of all tests unusable


@pytest.mark.guarantee("G8")
def test_available_now_reads_all_of_a_server_that_is_away_between_two_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    taken: list[list[int]] = []
    with ExitStack() as held:
        server = held.enter_context(Running(tmp_path / "d", lasting()))
        fill(server.store, "t", segments=3, events=10)
        options = {"addr": f"http://127.0.0.1:{server.port}", "channel": "t", "subscriber": "s"}
        back = []

        def keep(frame: DataFrame, batch_id: int) -> None:
            taken.append([row["n"] for row in frame.collect()])
            if batch_id == 0:
                held.close()
                back.append(held.enter_context(back_once_missed(tmp_path / "d", server.port)))

        stream = spark.readStream.format("holdfast").options(**options, maxSegmentsPerTrigger="1").load()
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c"))
        assert writer.trigger(availableNow=True).start().awaitTermination(300)
        marks = [lag.mark for lag in back[0].result().store.subscribers()[0].channels]
    assert taken == [list(range(1, 11)), list(range(11, 21)), list(range(21, 31))]
    assert marks == [30]


def test_stopping_ends_a_query_that_waits_for_its_server_and_the_process_that_waits(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A batch is open: Spark plans it again before it asks for news."""
    with Running(tmp_path / "d", lasting()) as server:
        fill(server.store, "t", segments=3, events=10)
        options = {"addr": f"http://127.0.0.1:{server.port}", "channel": "t", "subscriber": "s"}
        stream = spark.readStream.format("holdfast").options(**options).load()

        def fail(frame: DataFrame, batch_id: int) -> None:
            raise RuntimeError("it is not committed")

        writer = stream.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "c"))
        with pytest.raises(StreamingQueryException, match="it is not committed"):
            writer.start().awaitTermination(300)
    with socket.create_server(("127.0.0.1", server.port)) as listener:
        listener.settimeout(WAIT_S)
        query = writer.start()
        asked, _ = listener.accept()
        with asked:
            asked.settimeout(WAIT_S)
            query.stop()
            assert (query.isActive, query.exception()) == (False, None)
            while asked.recv(4096):
                pass  # until the process is gone that has asked
