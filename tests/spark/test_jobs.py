"""Jobs over channels: export, replay, figures, compaction. Without Spark, but for one test of the engine."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from holdfast import Store
from holdfast.cli.main import app
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, Locked, UnknownChannel
from holdfast.spark.jobs import compact_directory, export, figures, replay
from holdfast.spark.jobs.engine import on_spark
from holdfast.spark.jobs.exporting import write_file
from holdfast.spark.jobs.parts import parts_of
from holdfast.spark.jobs.replaying import Target
from holdfast.spark.options import SourceOptions, read_options
from holdfast.store.compaction import CompactionPolicy, compact
from holdfast.testing import ManualClock
from holdfast.tier.folder import FolderObjects
from tests.spark.stores import fill, made
from tests.unit.server.admin.running import Running
from tests.unit.tier.rig import Rig, rows, values_of


def source(directory: Path, **options: str) -> SourceOptions:
    return read_options({"path": str(directory), "channel": "t", **options}).check_batch()


def values(folder: Path) -> list[int]:
    """The column `n` of all files, by file name."""
    files = sorted((folder / "t").glob("part-*.parquet"))
    return [n for path in files for n in pq.read_table(path, columns=["n"]).column("n").to_pylist()]


# ---------------------------------------------------------------------------------------------------------------- parts


def test_parts_begin_at_multiples_of_their_length() -> None:
    found = [(part.first_seq, part.last_seq) for part in parts_of("t", 7, 32, length=10)]
    assert found == [(7, 10), (11, 20), (21, 30), (31, 31)]
    assert list(parts_of("t", 5, 5, length=10)) == []


# --------------------------------------------------------------------------------------------------------------- export


def test_an_export_has_every_event_once_and_goes_on_where_it_was(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=3, events=10)
    seen: list[int] = []
    done = export(source(tmp_path / "d"), tmp_path / "o", file_events=7, on_part=lambda now, _: seen.append(now.files))
    assert (done.files, done.events) == (5, 30)
    assert seen == [1, 2, 3, 4, 5]
    first = sorted((tmp_path / "o" / "t").iterdir())[0]
    stamp = first.stat().st_mtime_ns
    (tmp_path / "o" / "t" / "part-00000000000000000008-00000000000000000014.parquet").unlink()
    again = export(source(tmp_path / "d"), tmp_path / "o", file_events=7)
    assert (again.files, again.events) == (1, 7)
    assert first.stat().st_mtime_ns == stamp
    assert values(tmp_path / "o") == list(range(1, 31))


def test_an_export_of_a_channel_that_grew_adds_what_is_new(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=2, events=10)
    export(source(tmp_path / "d"), tmp_path / "o", file_events=100)
    with Store.open(tmp_path / "d") as store:
        fill(store, "t", segments=1, events=10)
        compact(store, "t")
    assert export(source(tmp_path / "d"), tmp_path / "o", file_events=100).events == 10
    assert values(tmp_path / "o") == list(range(1, 31))


def test_a_half_written_file_is_no_file(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    folder = tmp_path / "o" / "t"
    folder.mkdir(parents=True)
    (folder / "part-00000000000000000001-00000000000000000010.parquet.77.tmp").write_bytes(b"PAR1")
    assert export(source(tmp_path / "d"), tmp_path / "o").events == 10
    assert values(tmp_path / "o") == list(range(1, 11))


class NoNewNames(LocalFilesystem):
    """A disk on which a process dies before it gives a file its name."""

    def rename(self, source: Path, target: Path) -> None:
        raise OSError("no name")


def test_what_a_killed_export_leaves_is_skipped_by_readers_and_removed_by_the_next(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    folder = tmp_path / "o" / "t"
    folder.mkdir(parents=True)
    path = folder / "part-00000000000000000011-00000000000000000020.parquet"
    with pytest.raises(OSError, match="no name"):
        write_file(NoNewNames(), path, pa.table({"n": [0]}), "zstd")
    assert len(list(folder.iterdir())) == 1
    export(source(tmp_path / "d", endingOffsets='{"t": 6}'), tmp_path / "o")
    (folder / "part-00000000000000000006-00000000000000000010.parquet.77.tmp").write_bytes(b"PAR1")
    (folder / ".part-00000000000000000006-00000000000000000010.parquet.77.tmp").write_bytes(b"PAR1")
    (folder / "mine.tmp").write_bytes(b"")
    export(source(tmp_path / "d"), tmp_path / "o")
    assert [name.name for name in folder.iterdir() if not name.name.startswith("part-")] == ["mine.tmp"]
    (folder / "mine.tmp").unlink()
    assert sorted(pq.read_table(folder).column("n").to_pylist()) == list(range(1, 11))


def test_a_file_in_the_making_does_not_hinder_those_who_read_the_folder(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    export(source(tmp_path / "d"), tmp_path / "o")
    path = tmp_path / "o" / "t" / "part-00000000000000000011-00000000000000000020.parquet"
    with pytest.raises(OSError, match="no name"):
        write_file(NoNewNames(), path, pa.table({"other": ["x"]}), "zstd")
    assert pq.read_table(tmp_path / "o" / "t").column("n").to_pylist() == list(range(1, 11))


def test_one_export_of_a_channel_runs_in_a_folder(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    errors: list[type[BaseException]] = []

    def again(*_: object) -> None:
        with pytest.raises(Locked) as caught:
            export(source(tmp_path / "d"), tmp_path / "o")
        errors.append(caught.type)

    export(source(tmp_path / "d"), tmp_path / "o", on_part=again)
    assert errors == [Locked]
    assert export(source(tmp_path / "d"), tmp_path / "o").files == 0


def grown(directory: Path) -> None:
    """A channel with a column that its first events lack."""
    with Store.open(directory) as store:
        store.commit("t", pa.record_batch({"n": [1, 2]}))
    with Store.open(directory) as store:
        store.commit("t", pa.record_batch({"n": [3], "m": ["x"]}))


def test_all_files_of_an_export_have_the_columns_of_the_channel(tmp_path: Path) -> None:
    grown(tmp_path / "d")
    assert export(source(tmp_path / "d"), tmp_path / "o", file_events=1).files == 3
    found = pq.read_table(tmp_path / "o" / "t").to_pylist()
    assert found == [{"n": 1, "m": None}, {"n": 2, "m": None}, {"n": 3, "m": "x"}]


def test_a_column_that_came_since_the_last_export_is_never_dropped_silently(tmp_path: Path) -> None:
    with Store.open(tmp_path / "e") as store:
        store.commit("t", pa.record_batch({"n": [1, 2]}))
    export(source(tmp_path / "e"), tmp_path / "o")
    grown(tmp_path / "d")
    with pytest.raises(BadRequest, match=r"m \(string\) is new .*--merge-schema"):
        export(source(tmp_path / "d"), tmp_path / "o")
    assert export(source(tmp_path / "d", endingOffsets='{"t": 3}'), tmp_path / "o").files == 0
    assert values(tmp_path / "o") == [1, 2]
    done = export(source(tmp_path / "d"), tmp_path / "o", merge_schema=True, delta=True)
    assert (done.files, done.events) == (1, 1)
    merged = DeltaTable(str(tmp_path / "o" / "t")).to_pyarrow_table().sort_by("n")
    assert merged.column("m").to_pylist() == [None, None, "x"]


def test_a_column_that_was_widened_since_the_last_export_is_named(tmp_path: Path) -> None:
    with Store.open(tmp_path / "e") as store:
        store.commit("t", pa.record_batch({"n": pa.array([1, 2], pa.int32()), "k": ["x", "y"]}))
    export(source(tmp_path / "e"), tmp_path / "o")
    grown(tmp_path / "d")
    with pytest.raises(BadRequest, match=r"n was int32 and is int64; m \(string\) is new; k is left out"):
        export(source(tmp_path / "d"), tmp_path / "o")
    with pytest.raises(BadRequest, match="cannot be one Delta table"):
        export(source(tmp_path / "d"), tmp_path / "o", merge_schema=True, delta=True)


def test_a_file_of_the_name_of_a_part_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    (tmp_path / "o" / "t").mkdir(parents=True)
    (tmp_path / "o" / "t" / "part-00000000000000000001-00000000000000000005.parquet").write_bytes(b"?")
    with pytest.raises(BadRequest, match=r"0005\.parquet is no Parquet file"):
        export(source(tmp_path / "d"), tmp_path / "o")


def test_an_export_of_a_range_is_sorted_and_has_system_columns_if_asked(tmp_path: Path) -> None:
    with Store.open(tmp_path / "d") as store:
        store.commit("t", pa.record_batch({"n": pa.array([5, 3, 9, 1, 7], pa.uint32())}))
    options = source(tmp_path / "d", startingOffsets='{"t": 2}', endingOffsets='{"t": 5}', includeMetadata="true")
    export(options, tmp_path / "o", sort_by="n")
    (path,) = (tmp_path / "o" / "t").glob("*.parquet")
    table = pq.read_table(path)
    assert table.column("n").to_pylist() == [1, 3, 9]
    assert table.column("_seq").to_pylist() == [4, 2, 3]
    assert table.schema.field("n").type == pa.int64()


def test_exported_files_become_a_delta_table_as_they_are(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=2, events=10)
    export(source(tmp_path / "d"), tmp_path / "o", file_events=10, delta=True)
    table = DeltaTable(str(tmp_path / "o" / "t")).to_pyarrow_table()
    assert sorted(table.column("n").to_pylist()) == list(range(1, 21))
    with pytest.raises(BadRequest, match="is a Delta table already"):
        export(source(tmp_path / "d"), tmp_path / "o", delta=True)


def test_an_export_says_what_is_wrong_before_it_writes(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=1)
    with pytest.raises(BadRequest, match="has no column 'm'; it has n"):
        export(source(tmp_path / "d"), tmp_path / "o", sort_by="m")
    with pytest.raises(UnknownChannel):
        export(read_options({"path": str(tmp_path / "d"), "channel": "x"}), tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_spark_writes_the_same_files_and_its_session_stays(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=3, events=10)
    for master, folder in ((None, "here"), ("local[2,4]", "spark")):
        done = export(source(tmp_path / "d"), tmp_path / folder, master=master, file_events=10)
        assert (done.files, done.events) == (3, 30)
    names = [sorted(path.name for path in (tmp_path / folder / "t").iterdir()) for folder in ("here", "spark")]
    assert names[0] == names[1]
    assert values(tmp_path / "spark") == list(range(1, 31))
    assert list(on_spark(spark, lambda part: part.events, [])) == []


# --------------------------------------------------------------------------------------------------------------- replay


def sent(server: Running, channel: str = "copy") -> list[int]:
    return [n for part in server.store.read(channel) for n in part.column("n").to_pylist()]


@pytest.mark.guarantee("G3")
def test_a_replay_that_is_run_again_stores_nothing_twice(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=3, events=10)
    with Running(tmp_path / "s") as server:
        target = Target(f"http://127.0.0.1:{server.port}", "copy")
        run = partial(replay, target=target, part_events=12, frame_events=5)
        first = run(source(tmp_path / "d", endingOffsets='{"t": 18}'))
        assert (first.events, first.repeated) == (17, 0)
        again = run(source(tmp_path / "d"))
        assert (again.events, again.repeated) == (30, 17)
        assert sent(server) == list(range(1, 31))
        with Store.open(tmp_path / "d") as store:
            compact(store, "t")
        assert run(source(tmp_path / "d")).repeated == 30
        assert sent(server) == list(range(1, 31))


def test_another_identity_is_another_replay(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=3)
    with Running(tmp_path / "s") as server:
        target = Target(f"http://127.0.0.1:{server.port}", "copy")
        replay(source(tmp_path / "d"), target)
        replay(source(tmp_path / "d"), target, identity="once more")
        assert sent(server) == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("addr", "target"),
    [
        ("http://h:1", "http://H:1/"),
        ("http://localhost:1", "http://127.0.0.1:1"),
        ("http://[::1]:443", "https://localhost"),
        ("http://g:1,http://h:1", "http://h:1"),
    ],
)
def test_a_channel_is_not_replayed_to_itself(addr: str, target: str) -> None:
    with pytest.raises(BadRequest, match="would go to itself"):
        replay(read_options({"addr": addr, "channel": "t"}), Target(target, "t"))


@pytest.mark.guarantee("G3")
def test_each_tier_is_a_source_of_its_own(tmp_path: Path) -> None:
    for name, first in (("x", 0), ("y", 100)):
        rig = Rig(tmp_path / name, FolderObjects(LocalFilesystem(), tmp_path / f"bucket-{name}"))
        rig.store.commit("a", rows(*range(first, first + 5)))
        rig.upload()
        rig.close()
    with Running(tmp_path / "s") as server:
        target = Target(f"http://127.0.0.1:{server.port}", "copy")
        for name, repeated in (("x", 0), ("y", 0), ("x", 5)):
            tier = {"tier": f"file://{tmp_path}", "tierPrefix": f"bucket-{name}"}
            assert replay(read_options({**tier, "channel": "a"}), target).repeated == repeated
        assert values_of(server.store, "copy") == [*range(5), *range(100, 105)]


def large(directory: Path, *, events: int, each_bytes: int) -> None:
    """A channel of large events; `n` is the seq."""
    with Store.open(directory) as store:
        for at in range(0, events, 500):
            texts = pa.array([b"x" * each_bytes] * 500, pa.binary())
            store.commit("t", pa.record_batch([pa.array(range(at + 1, at + 501)), texts], names=["n", "b"]))


def test_large_events_are_sent_to_a_server_as_it_comes(tmp_path: Path) -> None:
    large(tmp_path / "d", events=8000, each_bytes=3000)
    with Running(tmp_path / "s") as server:
        assert replay(source(tmp_path / "d"), Target(f"http://127.0.0.1:{server.port}", "copy")).events == 8000
        assert sent(server) == list(range(1, 8001))


@pytest.mark.guarantee("G3")
def test_a_replay_with_frames_of_other_sizes_stores_nothing_twice(tmp_path: Path) -> None:
    large(tmp_path / "d", events=1000, each_bytes=1000)
    with Running(tmp_path / "s", {"ingest.max_batch_size": "64KiB"}) as server:
        run = partial(replay, target=Target(f"http://127.0.0.1:{server.port}", "copy"), part_events=600)
        with pytest.raises(BadRequest, match="max_batch_size"):
            run(source(tmp_path / "d"))
        assert run(source(tmp_path / "d", endingOffsets='{"t": 712}'), frame_bytes=30_000).repeated == 0
        for frame_bytes, frame_events in ((60_000, 1000), (1, 1000), (50_000, 7)):
            done = run(source(tmp_path / "d"), frame_bytes=frame_bytes, frame_events=frame_events)
            assert done.events == 1000
        assert sent(server) == list(range(1, 1001))


@pytest.mark.guarantee("G3")
def test_a_replay_does_not_guess_how_much_a_target_had_that_has_evicted_it(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=3, events=10)
    clock = ManualClock()
    with Running(tmp_path / "s", clock=clock) as server:
        part = source(tmp_path / "d", endingOffsets='{"t": 18}')
        assert replay(part, Target(f"http://127.0.0.1:{server.port}", "copy")).events == 17
    with Store.open(tmp_path / "s", clock=clock, inline=True) as store:
        store.flush()
        store.subscriber("s", ["copy"]).ack("copy", 1, 17)
        clock.advance(60)
        store.flush()
        assert list(store.read("copy")) == []
    with Running(tmp_path / "s") as server:
        target = Target(f"http://127.0.0.1:{server.port}", "copy")
        with pytest.raises(BadRequest, match=r"from seq 1 of 't' on, and has evicted them.*--from"):
            replay(source(tmp_path / "d"), target)
        replay(source(tmp_path / "d", startingOffsets='{"t": 18}'), target)
        assert sent(server) == list(range(18, 31))


# ------------------------------------------------------------------------------------------------------ compact, stats


def test_figures_say_how_many_segments_are_small(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=4, events=10)
    (row,) = figures(source(tmp_path / "d"))
    assert (row.segments, row.small_segments, row.events, row.columns) == (4, 4, 40, 1)
    compact_directory(tmp_path / "d", "t", CompactionPolicy())
    assert figures(source(tmp_path / "d"))[0].segments == 1


def test_figures_of_several_servers_are_told_by_server(tmp_path: Path) -> None:
    with Running(tmp_path / "a") as one, Running(tmp_path / "b") as two:
        addresses = sorted(f"http://127.0.0.1:{server.port}" for server in (one, two))
        fill(one.store, "t", segments=2, events=10)
        fill(two.store, "t", segments=3, events=5)
        found = figures(read_options({"addr": ",".join(addresses), "channel": "*"}))
        assert [(row.server, row.channel) for row in found] == [(addr, "t") for addr in addresses]
        assert sorted((row.segments, row.events, row.columns) for row in found) == [(2, 20, 1), (3, 15, 1)]
        told = CliRunner().invoke(app, ["stats", "--addr", ",".join(addresses)])
        assert [addr for addr in addresses if f"{addr}/t" in told.stdout] == addresses


def test_compacting_a_directory_deletes_nothing_that_was_confirmed(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=3, events=10)
    keep = {"retention.mode": "limits"}
    with Store.open(tmp_path / "d", keep) as store:
        store.subscriber("s", ["t"]).ack("t", 1, 30)
    assert compact_directory(tmp_path / "d", "t", CompactionPolicy()).events == 30
    with Store.open(tmp_path / "d", keep) as store:
        assert sum(part.num_rows for part in store.read("t")) == 30


def test_a_directory_that_is_no_store_does_not_become_one_by_compacting_it(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"is not a store: it has no catalog\.db"):
        compact_directory(tmp_path, "t", CompactionPolicy())
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_use_is_compacted_by_its_owner_only(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=2, events=10)
    with Store.open(tmp_path / "d"), pytest.raises(Locked):
        compact_directory(tmp_path / "d", "t", CompactionPolicy())


# ------------------------------------------------------------------------------------------------------------- commands


def command(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)["result"]
    return found


def test_commands_do_the_jobs_and_print_one_document(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=3, events=10)
    data = ("--data", str(tmp_path / "d"))
    assert command("export", "t", str(tmp_path / "o"), *data)["events"] == 30
    with Running(tmp_path / "s") as server:
        addr = f"http://127.0.0.1:{server.port}"
        to = ("--to-addr", addr, "--to-channel", "copy")
        assert command("replay", "t", *data, *to)["events"] == 30
        assert command("replay", "t", *data, *to)["repeated"] == 30
        fill(server.store, "small", segments=5, events=2)
        assert command("compact", "small", "--addr", addr)["segments_before"] == 5
        (row,) = command("stats", "small", "--addr", addr)["channels"]
        assert row["segments"] == 1
    assert command("compact", "t", *data)["segments_after"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("compact", "x", "--data", "{d}"), 2, "channel 'x' does not exist"),
        (("compact", "t", "--data", "{d}/absent"), 2, "does not exist"),
        (
            ("compact", "t", "--data", "{d}", "--target-size", "big"),
            2,
            "--target-size 'big' is not a number with one of the units",
        ),
        (("export", "t", "{d}/o", "--data", "{d}", "--format", "csv"), 2, "is neither parquet nor delta"),
        (("export", "t", "{d}/o", "--data", "{d}", "--from", "monday"), 2, "--from 'monday' is no position"),
        (("export", "t", "{d}/o", "--data", "{d}/absent"), 2, "does not exist; give --data, or --addr"),
        (("export", "t,x", "{d}/o", "--data", "{d}"), 2, "channel 'x' does not exist"),
        (("stats", "x", "--data", "{d}"), 2, "channel 'x' does not exist"),
        (("compact", "t", "--addr", "nowhere"), 2, "--addr 'nowhere' is no admin address"),
        (
            ("replay", "t", "--data", "{d}", "--to-addr", "nowhere", "--to-channel", "c"),
            2,
            "--to-addr 'nowhere' is no admin address",
        ),
        (("stats", "--addr", "nowhere"), 2, "--addr 'nowhere' is no admin address"),
        (("compact", "t*", "--data", "{d}"), 2, "takes one by its name"),
        (("compact", "t", "--data", "{d}", "--addr", "http://127.0.0.1:1"), 2, "--data and --addr are both given"),
        (("compact", "t", "-c", "{d}/c", "--addr", "http://127.0.0.1:1"), 2, "--config goes with --data"),
        (("compact", "t", "--data", "{d}", "--event-span", "long"), 2, "--event-span 'long' is not"),
        (
            ("replay", "t", "--data", "{d}", "--to-addr", "http://h:1", "--to-channel", "c", "--frame-size", "0"),
            2,
            "--frame-size '0' is no size above 0",
        ),
        (("replay", "t", "--data", "{d}", "--to-addr", "http://127.0.0.1:1", "--to-channel", "a b"), 2, "not allowed"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    made(tmp_path / "d", segments=1, events=1)
    result = CliRunner().invoke(app, [part.format(d=tmp_path / "d") for part in arguments])
    assert result.exit_code == code, result.output
    assert text in result.stderr
