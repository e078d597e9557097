"""A sync channel is an ordinary channel: Spark reads what offline-first clients committed."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from tests.unit.sync.served import SyncServer
from tests.unit.sync.world import seed, seed_event


def test_spark_reads_what_clients_committed(spark: SparkSession, tmp_path: Path) -> None:
    none = {"sync.validation": "none"}
    with SyncServer(tmp_path / "data", none) as server, server.seed_client("phone-1") as client:
        for number in range(3):
            answer = client.ask(seed("submit_event", **seed_event(f"id-{number}", n=number)))
            assert answer["type"] == "event_committed", answer
    rows = spark.read.format("holdfast").option("path", str(tmp_path / "data")).option("channel", "sync").load()
    found = sorted((row["id"], row["client_id"], json.loads(row["payload"])) for row in rows.collect())
    assert found == [(f"id-{number}", "phone-1", {"n": number}) for number in range(3)]
    assert [row["partitions"] for row in rows.collect()] == [["P1"]] * 3
