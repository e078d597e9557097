"""Several servers in one query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from holdfast.errors import InvalidConfig, ServerAway
from holdfast.spark.options import read_options
from tests.spark.stores import batch_of, between, fill, rows_of, stream_of
from tests.unit.server.admin.running import Running

LIMIT = ReadMaxBytes(1 << 30)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Running]]:
    with ExitStack() as held:
        yield [held.enter_context(Running(tmp_path / name)) for name in "ab"]


def addr(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"


def options(servers: list[Running], **more: str) -> dict[str, str]:
    return {"addr": ", ".join(addr(server) for server in servers), "channel": "t", **more}


@pytest.mark.guarantee("G8")
def test_every_event_of_every_server_comes_once_with_offsets_of_its_own(servers: list[Running]) -> None:
    fill(servers[0].store, "t", segments=2, events=10)
    fill(servers[1].store, "t", segments=1, events=5)
    reader = stream_of(options(servers, subscriber="lake"))
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    assert end == {f"{addr(servers[0])}/t": 21, f"{addr(servers[1])}/t": 6}
    assert list(end) == sorted(end)
    assert sorted(between(reader, start, end)) == sorted([*range(1, 21), *range(1, 6)])
    reader.commit(end)
    marks = [server.store.subscribers()[0].channels[0].mark for server in servers]
    assert marks == [20, 5]


def test_a_server_that_counts_low_does_not_starve_the_others(servers: list[Running]) -> None:
    old, new = servers
    fill(old.store, "other", segments=1, events=1000)
    fill(old.store, "t", segments=1, events=10)
    fill(new.store, "t", segments=3, events=10)
    reader = stream_of(options(servers, maxEventsPerTrigger="20"))
    end = reader.latestOffset(reader.initialOffset(), LIMIT)
    assert end == {f"{addr(old)}/t": 11, f"{addr(new)}/t": 11}


def test_a_server_that_is_away_does_not_hold_up_the_others(tmp_path: Path) -> None:
    with Running(tmp_path / "a") as one:
        fill(one.store, "t", segments=1, events=10)
        with Running(tmp_path / "b") as two:
            fill(two.store, "t", segments=1, events=10)
            reader = stream_of(options([one, two], subscriber="lake"))
            start = reader.latestOffset(reader.initialOffset(), LIMIT)
            gone = addr(two)
        fill(one.store, "t", segments=1, events=3)
        end = reader.latestOffset(start, LIMIT)
        assert end == {**start, f"{addr(one)}/t": 14}
        assert end[f"{gone}/t"] == 11


def test_a_batch_waits_for_all_of_its_servers(tmp_path: Path) -> None:
    with Running(tmp_path / "a") as one:
        fill(one.store, "t", segments=1, events=10)
        with pytest.raises(ServerAway):
            batch_of({"addr": f"{addr(one)},http://127.0.0.1:9", "channel": "t"})


def test_a_start_by_channel_counts_at_each_server(servers: list[Running]) -> None:
    for server in servers:
        fill(server.store, "t", segments=1, events=10)
    found = rows_of(batch_of(options(servers, startingOffsets='{"t": 9}', includeMetadata="true")))
    assert found["n"].to_pylist() == [9, 10, 9, 10]
    assert set(found["_channel"].to_pylist()) == {"t"}


def test_a_directory_cannot_stand_for_several_servers(servers: list[Running]) -> None:
    with pytest.raises(InvalidConfig, match="several servers"):
        read_options(options(servers, path="/data"))
