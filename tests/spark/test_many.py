"""Several servers in one query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from holdfast.errors import InvalidConfig, ServerAway
from holdfast.spark.options import read_options
from tests.spark.away import back_once_missed, lasting
from tests.spark.stores import batch_of, between, fill, rows_of, stream_of
from tests.unit.server.admin.running import Running

LIMIT = ReadMaxBytes(1 << 30)
NOBODY = "http://127.0.0.1:9"


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
        assert between(reader, start, end) == [11, 12, 13], "planning asks no server whose range is empty"


def test_columns_and_a_run_that_ends_come_from_the_servers_that_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("resolving", "stream"):
        monkeypatch.setattr(f"holdfast.spark.{module}.INTERACTIVE_PATIENCE_S", 0.2)
    with Running(tmp_path / "a") as one:
        fill(one.store, "t", segments=2, events=10)
        own = f"{addr(one)}/t"
        reader = stream_of({"addr": f"{addr(one)},{NOBODY}", "channel": "t", "maxEventsPerTrigger": "15"})
        assert reader._schema.names == ["n"]
        start = {own: 1, f"{NOBODY}/t": 5}
        assert reader.latestOffset(start, ReadAllAvailable()) == {**start, own: 21}
        reader.prepareForTriggerAvailableNow()
        middle = reader.latestOffset(start, LIMIT)
        end = reader.latestOffset(middle, LIMIT)
        assert (middle[own], end[own], reader.latestOffset(end, LIMIT)) == (16, 21, end)
        assert between(reader, start, end) == list(range(1, 21))


def test_a_run_that_ends_waits_for_the_servers_it_began_with(tmp_path: Path) -> None:
    with Running(tmp_path / "a") as one:
        fill(one.store, "t", segments=1, events=10)
        with Running(tmp_path / "b", lasting()) as two:
            fill(two.store, "t", segments=2, events=10)
            reader = stream_of(options([one, two], subscriber="lake", maxSegmentsPerTrigger="2"))
            start = reader.initialOffset()
            reader.prepareForTriggerAvailableNow()
            middle = reader.latestOffset(start, LIMIT)
        with back_once_missed(tmp_path / "b", two.port) as back:
            end = reader.latestOffset(middle, LIMIT)
            assert end == {f"{addr(one)}/t": 11, f"{addr(two)}/t": 21}
            assert reader.latestOffset(end, LIMIT) == end
            assert back.result().store.subscribers()[0].channels[0].mark == 20


def test_a_batch_waits_for_all_of_its_servers(tmp_path: Path) -> None:
    with Running(tmp_path / "a") as one:
        fill(one.store, "t", segments=1, events=10)
        reader = batch_of({"addr": f"{addr(one)},{NOBODY}", "channel": "t"})
        with pytest.raises(ServerAway):
            reader.partitions()


def test_a_start_by_channel_counts_at_each_server(servers: list[Running]) -> None:
    for server in servers:
        fill(server.store, "t", segments=1, events=10)
    found = rows_of(batch_of(options(servers, startingOffsets='{"t": 9}', includeMetadata="true")))
    assert found["n"].to_pylist() == [9, 10, 9, 10]
    assert set(found["_channel"].to_pylist()) == {"t"}


@pytest.mark.parametrize("pattern", ["t", "*"])
@pytest.mark.parametrize("more", [{}, {"subscriber": "lake"}])
def test_offsets_can_be_given_back_as_the_start(servers: list[Running], pattern: str, more: dict[str, str]) -> None:
    for server in servers:
        fill(server.store, "t", segments=1, events=10)
    offsets = {f"{addr(servers[0])}/t": 8, f"{addr(servers[1])}/t": 5}
    given = options(servers, startingOffsets=json.dumps(offsets), **more) | {"channel": pattern}
    assert stream_of(given).initialOffset() == offsets
    common = options(servers, startingOffsets=json.dumps({"t": 3, f"{addr(servers[1])}/t": 5}))
    assert sorted(stream_of(common).initialOffset().values()) == [3, 5], "a server's own place counts before the common"
    ends = json.dumps({key: seq + 2 for key, seq in offsets.items()})
    bounded = options(servers, startingOffsets=json.dumps(offsets), endingOffsets=ends) | {"channel": pattern}
    assert sorted(rows_of(batch_of(bounded))["n"].to_pylist()) == [5, 6, 8, 9]


def test_a_directory_cannot_stand_for_several_servers(servers: list[Running]) -> None:
    with pytest.raises(InvalidConfig, match="several servers"):
        read_options(options(servers, path="/data"))
