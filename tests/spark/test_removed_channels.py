"""Channels that are removed or retired while a query follows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from holdfast.errors import EventsGone
from holdfast.spark.planning import Task
from holdfast.spark.stream import StreamReader
from holdfast.testing import ManualClock
from tests.spark.stores import batch_of, between, fill, stream_of
from tests.unit.server.admin.running import Running

ALL = ReadMaxBytes(1 << 30)
PATTERNS = pytest.mark.parametrize("pattern", ["a.*", "a.x,a.y"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path / "d", clock=ManualClock(), store={"channels": {"a.x": {"max_inactivity": "1h"}}}) as running:
        fill(running.store, "a.x", segments=1, events=10)
        fill(running.store, "a.y", segments=1, events=10)
        yield running


def query(server: Running, pattern: str = "a.*", **more: str) -> StreamReader:
    return stream_of(options(server, pattern, **more) | {"subscriber": "s"})


def options(server: Running, pattern: str = "a.*", **more: str) -> dict[str, str]:
    return {"addr": f"http://127.0.0.1:{server.port}", "channel": pattern, **more}


def marks(server: Running) -> dict[str, int]:
    (subscriber,) = server.store.subscribers()
    return {lag.channel: lag.mark for lag in subscriber.channels}


def told_of_removal(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "spark.channel.removed" in record.message]


@PATTERNS
def test_a_removed_channel_does_not_end_a_query_that_starts_again(
    server: Running, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader = query(server, pattern)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert reader.latestOffset(end, ALL) == end == {"a.x": 11, "a.y": 11}
    server.store.remove_channel("a.x")
    fill(server.store, "a.y", segments=1, events=5)
    again = query(server, pattern)
    following = again.latestOffset(end, ALL)
    assert following == {"a.x": 11, "a.y": 16}
    assert between(again, end, following) == [11, 12, 13, 14, 15]
    assert again.latestOffset(following, ALL) == following
    again.commit(following)
    assert marks(server) == {"a.y": 15}
    assert [line.partition(" subscriber")[0] for line in told_of_removal(caplog)] == [
        "spark.channel.removed channel=a.x"
    ], "said once"


@PATTERNS
def test_a_channel_that_is_removed_before_its_last_batch_is_confirmed_leaves_the_others_confirmed(
    server: Running, pattern: str
) -> None:
    reader = query(server, pattern)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    between(reader, {"a.x": 1, "a.y": 1}, end)
    server.store.remove_channel("a.x")
    assert reader.latestOffset(end, ALL) == end
    assert marks(server) == {"a.y": 10}


def test_a_channel_that_is_retired_does_not_end_a_query_and_may_come_back(server: Running) -> None:
    reader = query(server)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.commit(end)
    clock = server.clock
    assert isinstance(clock, ManualClock)
    clock.advance(24 * 3600)
    server.store._keeper.tick()
    assert server.store.channels() == ["a.y"]
    again = query(server)
    assert again.latestOffset(end, ALL) == end
    fill(server.store, "a.x", segments=1, events=1)
    following = again.latestOffset(end, ALL)
    assert following == {"a.x": 12, "a.y": 11}
    again.commit(following)
    assert marks(server) == {"a.x": 11, "a.y": 10}


def test_many_removed_channels_cost_few_requests(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"a.{number}" for number in range(30)]
    for name in names:
        fill(server.store, name, segments=1, events=1)
    reader = query(server)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    for name in names:
        server.store.remove_channel(name)
    again = query(server)
    assert again.latestOffset(end, ALL) == end
    assert marks(server) == {"a.x": 10, "a.y": 10}
    assert len(told_of_removal(caplog)) == len(names)


def test_a_channel_that_is_removed_after_planning_is_a_loss_of_its_range(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = batch_of(options(server, "a.x")), batch_of(options(server, "a.x", failOnDataLoss="false"))
    (task,) = strict.partitions()
    assert isinstance(task, Task)
    server.store.remove_channel("a.x")
    with pytest.raises(EventsGone, match=r"events 1\.\.10 of channel 'a\.x' are gone"):
        list(strict.read(task))
    assert list(lenient.read(task)) == []
    assert "spark.events.lost channel=a.x first_seq=1 last_seq=10 events=10" in caplog.text


def test_a_channel_that_is_removed_while_it_is_planned_is_a_loss_of_its_range(server: Running) -> None:
    reader = query(server)
    server.store.remove_channel("a.x")
    with pytest.raises(EventsGone, match=r"events 1\.\.10 of channel 'a\.x' are gone"):
        reader.partitions({"a.x": 1, "a.y": 1}, {"a.x": 11, "a.y": 11})
    lenient = query(server, failOnDataLoss="false")
    assert between(lenient, {"a.x": 1, "a.y": 1}, {"a.x": 11, "a.y": 11}) == list(range(1, 11))
