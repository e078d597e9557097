"""`tailLatency=low`: what is in the server's memory is sealed for who waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from holdfast.clock import NS_PER_S
from holdfast.errors import InvalidConfig
from holdfast.spark.options import read_options
from holdfast.testing import ManualClock
from tests.spark.stores import between, fill, numbers, stream_of
from tests.unit.server.admin.running import Running

LIMIT = ReadMaxBytes(1 << 30)


def test_events_that_are_not_sealed_yet_come_with_the_next_batch(tmp_path: Path) -> None:
    with Running(tmp_path / "d", store={"segment.max_open_duration": "1h"}) as server:
        server.store.commit("t", numbers(1, 10))
        server.store.commit("other", numbers(1, 10))
        options = {"addr": f"http://127.0.0.1:{server.port}", "channel": "t"}
        patient, hasty = stream_of(options), stream_of({**options, "tailLatency": "low"})
        start = patient.initialOffset()
        assert patient.latestOffset(start, LIMIT) == start
        end = hasty.latestOffset(start, LIMIT)
        assert between(hasty, start, end) == list(range(1, 11))
        assert server.store.listing.channel("other").published_seq == 0, "other channels are left alone"


@pytest.mark.parametrize("limit", [LIMIT, ReadAllAvailable()])
def test_a_run_that_ends_begins_with_what_is_not_sealed_yet(tmp_path: Path, limit: ReadLimit) -> None:
    with Running(tmp_path / "d", store={"segment.max_open_duration": "1h"}) as server:
        server.store.commit("t", numbers(1, 10))
        reader = stream_of({"addr": f"http://127.0.0.1:{server.port}", "channel": "t", "tailLatency": "low"})
        start = reader.initialOffset()
        if limit is LIMIT:
            reader.prepareForTriggerAvailableNow()
            server.store.commit("t", numbers(11, 5))
        end = reader.latestOffset(start, limit)
        assert between(reader, start, end) == list(range(1, 11))


def test_only_a_server_can_seal(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="needs addr"):
        read_options({"path": str(tmp_path), "channel": "t", "tailLatency": "low"})


def test_what_spark_has_confirmed_is_kept_for_an_hour(tmp_path: Path) -> None:
    clock = ManualClock()
    with Running(tmp_path / "d", clock=clock, store={"retention.tick": "1ms"}) as server:
        fill(server.store, "t", segments=2, events=10)
        reader = stream_of({"addr": f"http://127.0.0.1:{server.port}", "channel": "t", "subscriber": "lake"})
        reader.latestOffset(reader.initialOffset(), LIMIT)
        reader.commit({"t": 11})
        (state,) = server.store._desk.registry.states()
        assert state.note.grace_ns == 3600 * NS_PER_S
        assert between(reader, {"t": 1}, {"t": 11}) == list(range(1, 11)), "a checkpoint that came back older"
