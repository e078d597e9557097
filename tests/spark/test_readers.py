"""The readers over a directory and over a server, called as Spark calls them."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast import Store
from holdfast.clock import NS_PER_S
from holdfast.errors import (
    AccessRefused,
    BadRequest,
    DamagedData,
    EventsGone,
    SchemaMismatch,
    ServerAway,
)
from holdfast.spark.access import StoreAccess
from holdfast.spark.batch import TASK_PATIENCE_S
from holdfast.spark.options import SourceOptions, read_options
from holdfast.spark.reading import SLICE_ROWS
from holdfast.spark.resolving import STREAM_PATIENCE_S, infer_schema, open_access
from holdfast.testing import ManualClock
from tests.spark.away import back_once_missed, lasting
from tests.spark.stores import (
    batch_of,
    between,
    fill,
    made,
    micro_batches,
    numbers,
    rows_of,
    stream_of,
)
from tests.spark.test_columns import COLUMNS, everything
from tests.unit.server.admin.running import Running


@dataclass(frozen=True)
class Place:
    """An open store, and the options that reach it."""

    store: Store
    directory: Path
    options: dict[str, str]
    clock: ManualClock

    def of(self, channel: str = "t", **more: str) -> dict[str, str]:
        return {**self.options, "channel": channel, **more}

    def files(self, channel: str = "t") -> list[Path]:
        return sorted((self.directory / "channels" / channel).glob("*.arrow"))


@pytest.fixture(params=["path", "addr", "both"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    clock = ManualClock()
    if request.param == "path":
        with Store.open(tmp_path / "d", clock=clock) as store:
            yield Place(store, tmp_path / "d", {"path": str(tmp_path / "d")}, clock)
        return
    with Running(tmp_path / "d", clock=clock) as running:
        options = {"addr": f"http://127.0.0.1:{running.port}"}
        if request.param == "both":
            options["path"] = str(tmp_path / "d")
        yield Place(running.store, tmp_path / "d", options, clock)


# -- a batch ----------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G8")
def test_a_batch_holds_every_published_event_once(place: Place) -> None:
    fill(place.store, "t", segments=3, events=10)
    assert rows_of(batch_of(place.of()))["n"].to_pylist() == list(range(1, 31))


def test_every_type_of_a_channel_is_read_from_its_segments(place: Place) -> None:
    place.store.commit("t", everything())
    place.store.flush()
    found = rows_of(batch_of(place.of())).to_pylist()
    assert found == [{name: value for name, (_, _, value) in COLUMNS.items()}]


def test_starting_and_ending_positions_bound_a_batch(place: Place) -> None:
    for _ in range(3):
        place.clock.advance(10)
        fill(place.store, "t", segments=1, events=10)

    def read(**bounds: str) -> list[int]:
        found: list[int] = rows_of(batch_of(place.of(**bounds)))["n"].to_pylist()
        return found

    moment = datetime.fromtimestamp(place.clock.wall_ns() // NS_PER_S - 5, UTC).isoformat()
    assert read(startingOffsets='{"t": 5}', endingOffsets='{"t": 13}') == list(range(5, 13))
    assert read(startingOffsets=moment) == list(range(21, 31))
    assert read(endingOffsets=moment) == list(range(1, 21))
    assert read(startingOffsets="latest") == []
    assert read(endingOffsets='{"t": 1000}') == list(range(1, 31))


def test_metadata_columns_come_on_request(place: Place) -> None:
    fill(place.store, "other", segments=1, events=5)
    fill(place.store, "t", segments=2, events=2)
    found = rows_of(batch_of(place.of(includeMetadata="true")))
    assert found["_seq"].to_pylist() == [1, 2, 3, 4]
    assert found["_committed_id"].to_pylist() == [6, 7, 8, 9]
    assert set(found["_channel"].to_pylist()) == {"t"}
    system = ["_seq", "_committed_id", "_ingested_at", "_channel", "_slot_id", "_fsn", "_frame_index"]
    assert found.column_names == ["n", *system]


def test_a_schema_of_the_caller_chooses_columns(place: Place) -> None:
    place.store.commit("t", pa.record_batch({"a": [1], "b": ["x"], "c": [2.0]}))
    place.store.flush()
    all_columns = infer_schema(read_options(place.of(includeMetadata="true")))
    chosen = type(all_columns)([all_columns["_seq"], all_columns["b"]])
    assert rows_of(batch_of(place.of(), chosen)).to_pylist() == [{"_seq": 1, "b": "x"}]


def test_names_of_columns_are_compared_without_case(place: Place) -> None:
    place.store.commit("t", pa.record_batch({"n": [1], "Part": [{"inner": "x"}], "both": [2], "BOTH": [3]}))
    place.store.flush()
    inner = StructType([StructField("INNER", StringType())])
    asked = [("N", LongType()), ("_SEQ", LongType()), ("part", inner), ("BOTH", LongType()), ("none", LongType())]
    chosen = StructType([StructField(name, kind) for name, kind in asked])
    row = {"N": 1, "_SEQ": 1, "part": {"INNER": "x"}, "BOTH": 3, "none": None}
    assert rows_of(batch_of(place.of(), chosen)).to_pylist() == [row]
    with pytest.raises(SchemaMismatch, match=r"column 'Both': expected one column, found both, BOTH: spell it"):
        rows_of(batch_of(place.of(), StructType([StructField("Both", LongType())])))


def test_several_channels_are_read_with_their_columns_together(place: Place) -> None:
    place.store.commit("a.x", pa.record_batch({"n": pa.array([1], pa.int32())}))
    place.store.commit("a.y", pa.record_batch({"n": pa.array([2], pa.int64()), "m": ["m"]}))
    place.store.commit("b", pa.record_batch({"other": [1]}))
    place.store.flush()
    expected = [{"n": 1, "m": None}, {"n": 2, "m": "m"}]
    assert rows_of(batch_of(place.of("a.*"))).to_pylist() == expected
    assert rows_of(batch_of(place.of("a.x,a.y"))).to_pylist() == expected


def test_a_channel_that_does_not_exist_needs_a_schema(place: Place) -> None:
    with pytest.raises(BadRequest, match=r"no channel t exists yet.*\.schema"):
        batch_of(place.of())


def test_large_segments_come_in_slices(tmp_path: Path) -> None:
    reader = batch_of(made(tmp_path, segments=1, events=SLICE_ROWS * 2 + 10))
    (task,) = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(task)]
    assert sum(sizes) == SLICE_ROWS * 2 + 10
    assert max(sizes) <= SLICE_ROWS


def test_looking_at_a_directory_changes_nothing_in_it(tmp_path: Path) -> None:
    options = made(tmp_path / "d")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (tmp_path / "d").rglob("*")}
    assert rows_of(batch_of(options)).num_rows == 30
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (tmp_path / "d").rglob("*")} == before


# -- a stream ---------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G8")
def test_a_stream_reads_each_event_once_as_it_is_published(place: Place) -> None:
    fill(place.store, "t", segments=2, events=10)
    reader = stream_of(place.of())
    assert [n for batch in micro_batches(reader) for n in batch] == list(range(1, 21))
    fill(place.store, "t", segments=1, events=10)
    end = reader.latestOffset({"t": 21}, ReadAllAvailable())
    assert between(reader, {"t": 21}, end) == list(range(21, 31))


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        ({"maxEventsPerTrigger": "7"}, [7, 7, 7, 7, 2]),
        ({"maxSegmentsPerTrigger": "2"}, [20, 10]),
        ({"maxSegmentsPerTrigger": "2", "maxEventsPerTrigger": "15"}, [15, 15]),
        ({"maxBytesPerTrigger": "1"}, [1] * 30),
        ({}, [30]),
    ],
)
def test_limits_of_a_micro_batch_hold_exactly(place: Place, limit: dict[str, str], sizes: list[int]) -> None:
    fill(place.store, "t", segments=3, events=10)
    batches = list(micro_batches(stream_of(place.of(**limit))))
    assert [len(batch) for batch in batches] == sizes
    assert [n for batch in batches for n in batch] == list(range(1, 31))


def test_a_trigger_that_asks_for_everything_gets_it(place: Place) -> None:
    fill(place.store, "t", segments=3, events=10)
    reader = stream_of(place.of(maxEventsPerTrigger="7"))
    assert reader.latestOffset({"t": 1}, ReadAllAvailable()) == {"t": 31}
    assert reader.latestOffset({"t": 1}, ReadMaxRows(7)) == {"t": 8}


def test_available_now_ends_at_what_was_there_when_it_began(place: Place) -> None:
    fill(place.store, "t", segments=1, events=10)
    reader = stream_of(place.of(maxEventsPerTrigger="4"))
    reader.prepareForTriggerAvailableNow()
    fill(place.store, "t", segments=1, events=10)
    assert [len(batch) for batch in micro_batches(reader)] == [4, 4, 2]


def test_a_channel_created_later_under_a_glob_joins_from_its_first_event(place: Place) -> None:
    fill(place.store, "a.x", segments=1, events=3)
    reader = stream_of(place.of("a.*", startingOffsets="latest"))
    start = reader.initialOffset()
    assert start == {"a.x": 4}
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    fill(place.store, "a.y", segments=1, events=5)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert json.dumps(end) == '{"a.x": 4, "a.y": 6}'
    assert between(reader, start, end) == [1, 2, 3, 4, 5]


def test_an_empty_channel_and_one_to_come_are_waited_for(place: Place) -> None:
    fill(place.store, "shape", segments=1, events=1)
    schema = infer_schema(read_options(place.of("shape")))
    reader = stream_of(place.of("t"), schema)
    assert list(micro_batches(reader, ReadAllAvailable())) == []
    assert rows_of(batch_of(place.of("t"), schema)).num_rows == 0
    fill(place.store, "t", segments=1, events=3)
    assert [n for batch in micro_batches(reader) for n in batch] == [1, 2, 3]


def test_events_that_are_in_no_segment_yet_are_left_for_later(place: Place) -> None:
    fill(place.store, "t", segments=1, events=3)
    place.store.commit("t", numbers(4, 3))
    reader = stream_of(place.of())
    assert reader.latestOffset({"t": 1}, ReadAllAvailable()) == {"t": 4}
    place.store.flush()
    assert reader.latestOffset({"t": 4}, ReadAllAvailable()) == {"t": 7}


def test_a_channel_that_grows_is_read_with_its_new_schema_after_a_restart(place: Place) -> None:
    place.store.commit("t", pa.record_batch({"n": pa.array([1], pa.int32())}))
    place.store.flush()
    before = stream_of(place.of())
    place.store.commit("t", pa.record_batch({"n": pa.array([2], pa.int64()), "m": ["m"]}))
    place.store.commit("t", pa.record_batch({"n": pa.array([2**40], pa.int64()), "m": ["m"]}))
    place.store.flush()
    assert between(before, {"t": 1}, {"t": 3}) == [1, 2]
    with pytest.raises(SchemaMismatch, match="start the query again"):
        between(before, {"t": 3}, {"t": 4})
    after = batch_of(place.of())
    assert rows_of(after).to_pylist() == [{"n": 1, "m": None}, {"n": 2, "m": "m"}, {"n": 2**40, "m": "m"}]


def test_a_reader_travels_to_executors_as_it_is(place: Place) -> None:
    fill(place.store, "t", segments=1, events=3)
    reader = stream_of(place.of())
    tasks = reader.partitions({"t": 1}, {"t": 4})
    sent, parts = pickle.loads(pickle.dumps((reader, tasks)))
    assert [batch.column("n").to_pylist() for part in parts for batch in sent.read(part)] == [[1, 2, 3]]


# -- loss and damage --------------------------------------------------------------------------------------------------


def test_events_that_were_removed_end_a_query_with_their_range(place: Place) -> None:
    fill(place.store, "t", segments=3, events=10)
    reader = stream_of(place.of())
    place.store.remove_channel("t")
    place.store.commit("t", numbers(31, 5))
    place.store.flush()
    with pytest.raises(EventsGone, match=r"events 5\.\.30 of channel 't' are gone.*failOnDataLoss"):
        reader.partitions({"t": 5}, {"t": 36})
    lenient = stream_of(place.of(failOnDataLoss="false"))
    assert between(lenient, {"t": 5}, {"t": 36}) == [31, 32, 33, 34, 35]


def test_a_segment_file_that_vanished_ends_the_task_with_its_range(tmp_path: Path) -> None:
    options = made(tmp_path / "d")
    reader = stream_of(options)
    tasks = reader.partitions({"t": 1}, {"t": 31})
    sorted((tmp_path / "d" / "channels" / "t").glob("*.arrow"))[1].unlink()
    with pytest.raises(EventsGone, match=r"events 11\.\.20"):
        [batch for task in tasks for batch in reader.read(task)]
    lenient = stream_of({**options, "failOnDataLoss": "false"})
    assert between(lenient, {"t": 1}, {"t": 31}) == [*range(1, 11), *range(21, 31)]


@pytest.mark.guarantee("G9")
def test_a_damaged_segment_gives_no_row_and_names_file_and_byte(place: Place) -> None:
    fill(place.store, "t", segments=2, events=1000)
    second = place.files()[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    reader = stream_of(place.of())
    assert len(between(reader, {"t": 1}, {"t": 1001})) == 1000
    got: list[pa.RecordBatch] = []
    with pytest.raises(DamagedData, match=rf"{second.name} is damaged at byte \d+"):
        got.extend(batch for task in reader.partitions({"t": 1001}, {"t": 2001}) for batch in reader.read(task))
    assert got == []


def test_a_file_that_is_damaged_where_tasks_see_it_is_asked_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Running(tmp_path / "d") as running:
        fill(running.store, "t", segments=2, events=10)
        seen = shutil.copytree(tmp_path / "d" / "channels", tmp_path / "seen" / "channels")
        second = sorted((seen / "t").glob("*.arrow"))[1]
        data = bytearray(second.read_bytes())
        data[len(data) // 2] ^= 1
        second.write_bytes(data)
        reader = stream_of({**options_of(running), "path": str(tmp_path / "seen")})
        assert between(reader, {"t": 1}, {"t": 21}) == list(range(1, 21))
    (told,) = [record.message for record in caplog.records if "elsewhere" in record.message]
    assert second.name in told


# -- the server -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path / "d") as running:
        fill(running.store, "t", segments=3, events=10)
        yield running


def options_of(server: Running, **more: str) -> dict[str, str]:
    return {"addr": f"http://127.0.0.1:{server.port}", "channel": "t", **more}


def mark_of(server: Running, name: str = "s") -> int:
    (lag,) = next(item.channels for item in server.store.subscribers() if item.name == name)
    return lag.mark


@pytest.mark.guarantee("G8")
def test_the_mark_follows_what_spark_has_committed(server: Running) -> None:
    reader = stream_of(options_of(server, subscriber="s", maxEventsPerTrigger="12"))
    start = reader.initialOffset()
    assert (start, mark_of(server)) == ({"t": 1}, 0)
    end = reader.latestOffset(start, ReadMaxRows(12))
    between(reader, start, end)
    assert (end, mark_of(server)) == ({"t": 13}, 0), "the batch is planned and read, but not committed"
    assert reader.latestOffset(end, ReadMaxRows(12)) == {"t": 25}
    assert mark_of(server) == 12
    reader.commit({"t": 25})
    assert mark_of(server) == 24
    reader.latestOffset({"t": 13}, ReadMaxRows(12))
    assert mark_of(server) == 24, "a mark never moves back"


def test_a_subscriber_keeps_the_start_and_the_place_of_a_query(server: Running) -> None:
    new = options_of(server, subscriber="s", startingOffsets="latest")
    assert stream_of(new).initialOffset() == {"t": 31}
    fill(server.store, "t", segments=1, events=10)
    reader = stream_of(new)
    assert reader.initialOffset() == {"t": 31}, "the same answer when batch 0 is run again"
    reader.latestOffset({"t": 36}, ReadAllAvailable())
    resumed = stream_of(options_of(server, subscriber="s", startingOffsets="subscriber"))
    assert resumed.initialOffset() == {"t": 36}, "a lost checkpoint goes on at the mark"


@pytest.mark.parametrize("start", ["subscriber", '{"t": "subscriber"}', '{"t": 5, "u": "subscriber"}'])
def test_starting_at_a_subscriber_that_does_not_exist_is_refused(server: Running, start: str) -> None:
    options = options_of(server, subscriber="s", startingOffsets=start) | {"channel": "t,u"}
    with pytest.raises(BadRequest, match="no subscriber 's'"):
        stream_of(options).initialOffset()
    assert server.store.subscribers() == []


def test_a_new_subscriber_starts_where_each_channel_is_told_to(server: Running) -> None:
    fill(server.store, "u", segments=1, events=10)
    fill(server.store, "v", segments=1, events=10)
    started = options_of(server, subscriber="s", startingOffsets='{"t": 5, "u": "latest"}') | {"channel": "*"}
    assert stream_of(started).initialOffset() == {"t": 5, "u": 11, "v": 1}


def test_a_subscriber_that_was_removed_is_registered_again(server: Running) -> None:
    reader = stream_of(options_of(server, subscriber="s"))
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    server.store.deregister("s")
    assert reader.latestOffset({"t": 6}, ReadAllAvailable()) == {"t": 31}
    assert mark_of(server) == 5


def test_a_query_that_reads_more_channels_after_a_restart_follows_them(server: Running) -> None:
    fill(server.store, "u", segments=1, events=5)
    stream_of(options_of(server, subscriber="s")).initialOffset()
    wider = stream_of(options_of(server, subscriber="s") | {"channel": "t,u"})
    assert wider.latestOffset({"t": 31}, ReadAllAvailable()) == {"t": 31, "u": 6}
    wider.commit({"t": 31, "u": 6})
    narrower = stream_of(options_of(server, subscriber="s") | {"channel": "u"})
    assert narrower.latestOffset({"t": 31, "u": 6}, ReadAllAvailable()) == {"t": 31, "u": 6}
    (item,) = server.store.subscribers()
    assert [(lag.channel, lag.mark) for lag in item.channels] == [("u", 5)]


def test_an_absent_server_never_ends_a_query(tmp_path: Path) -> None:
    with Running(tmp_path / "d") as running:
        fill(running.store, "t", segments=1, events=3)
        reader = stream_of(options_of(running, subscriber="s"))
        start = reader.initialOffset()
    for _ in range(2):
        assert reader.latestOffset(start, ReadMaxRows(5)) == start
    reader.commit(start)
    assert reader.reportLatestOffset() is None


@pytest.mark.guarantee("G8")
def test_available_now_waits_for_a_server_and_confirms_to_the_last(tmp_path: Path) -> None:
    with Running(tmp_path / "d", lasting()) as running:
        fill(running.store, "t", segments=3, events=10)
        options = options_of(running, subscriber="s", maxSegmentsPerTrigger="2")
        reader = stream_of(options)
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        middle = reader.latestOffset(start, ReadMaxRows(20))
    with back_once_missed(tmp_path / "d", running.port):
        end = reader.latestOffset(middle, ReadMaxRows(20))
        assert (middle, end) == ({"t": 21}, {"t": 31}), "Spark takes equality for the end of the run"
    with back_once_missed(tmp_path / "d", running.port) as back:
        assert reader.latestOffset(end, ReadMaxRows(20)) == end
        assert mark_of(back.result()) == 30


@pytest.mark.guarantee("G8")
def test_a_run_of_one_batch_waits_for_a_server_to_begin_with(tmp_path: Path) -> None:
    with Running(tmp_path / "d", lasting()) as running:
        fill(running.store, "t", segments=3, events=10)
        reader = stream_of(options_of(running, subscriber="s"))
        start = reader.initialOffset()
    with back_once_missed(tmp_path / "d", running.port):
        assert reader.latestOffset(start, ReadAllAvailable()) == {"t": 31}


def test_a_task_of_a_stream_waits_for_a_server_longer_than_that_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Running(tmp_path / "d", lasting()) as running:
        fill(running.store, "t", segments=1, events=10)
        stream, batch = stream_of(options_of(running)), batch_of(options_of(running))
        (task,) = stream.partitions({"t": 1}, {"t": 11})
    assert STREAM_PATIENCE_S >= 10 * TASK_PATIENCE_S
    monkeypatch.setattr("holdfast.spark.batch.open_access", partial(impatient, TASK_PATIENCE_S))
    with pytest.raises(ServerAway):
        list(batch.read(task))
    with back_once_missed(tmp_path / "d", running.port):
        assert [n for part in stream.read(task) for n in part.column("n").to_pylist()] == list(range(1, 11))


def impatient(limit_s: float, options: SourceOptions, *, patience_s: float) -> StoreAccess:
    """Access that waits, if it was to wait for longer than `limit_s`, and not at all otherwise."""
    return open_access(options, patience_s=patience_s if patience_s > limit_s else 0.0)


def test_a_wrong_address_is_told_before_long() -> None:
    with pytest.raises(ServerAway, match=r"http://127\.0\.0\.1:9 does not answer after"):
        stream_of({"addr": "http://127.0.0.1:9", "channel": "t"})


@pytest.mark.guarantee("G12")
def test_a_server_that_asks_for_a_token_gets_it_from_option_or_file(tmp_path: Path) -> None:
    rules = [{"principal": "root", "allow": "*"}]
    with Running(tmp_path / "d", {"access": rules}) as running:
        fill(running.store, "t", segments=1, events=3)
        token = running.token("root")["Authorization"].removeprefix("Bearer ")
        (tmp_path / "token").write_text(token + "\n")
        for more in ({"token": token}, {"tokenFile": str(tmp_path / "token")}):
            assert rows_of(batch_of(options_of(running, **more)))["n"].to_pylist() == [1, 2, 3]
        for more in ({}, {"token": "hf_wrong"}):
            with pytest.raises(AccessRefused):
                batch_of(options_of(running, **more))
