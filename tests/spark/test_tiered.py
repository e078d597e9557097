"""The object store as a source: alone, and behind a directory or a server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, CorruptData, EventsGone, InvalidConfig
from holdfast.spark.options import read_options
from holdfast.spark.planning import Task
from holdfast.tier.folder import FolderObjects
from tests.spark.stores import batch_of, between, fill, numbers, rows_of, stream_of
from tests.unit.server.admin.running import Running
from tests.unit.tier.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    life = Rig(tmp_path / "d", FolderObjects(LocalFilesystem(), tmp_path / "bucket"))
    yield life
    life.close()


def options(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"tier": f"file://{tmp_path}", "tierPrefix": "bucket", "channel": "t", **more}


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "d" / "channels" / "t").glob("*.arrow"))


def uploaded(rig: Rig, *, segments: int) -> None:
    fill(rig.store, "t", segments=segments, events=10)
    rig.upload()


def test_the_object_store_alone_gives_every_durable_event(rig: Rig, tmp_path: Path) -> None:
    uploaded(rig, segments=3)
    fill(rig.store, "t", segments=1, events=10)  # published, not uploaded
    for path in files(tmp_path):
        path.unlink()
    found = rows_of(batch_of(options(tmp_path, includeMetadata="true")))
    assert found["n"].to_pylist() == found["_seq"].to_pylist() == list(range(1, 31))


def test_a_stream_follows_the_object_store(rig: Rig, tmp_path: Path) -> None:
    uploaded(rig, segments=2)
    reader = stream_of(options(tmp_path, maxEventsPerTrigger="15"))
    start = reader.initialOffset()
    first = reader.latestOffset(start, ReadMaxRows(15))
    assert (start, first) == ({"t": 1}, {"t": 16})
    uploaded(rig, segments=1)
    second = reader.latestOffset(first, ReadMaxRows(15))
    assert [*between(reader, start, first), *between(reader, first, second)] == list(range(1, 31))
    assert reader.latestOffset(second, ReadMaxRows(15)) == second


def test_a_damaged_file_is_read_from_its_object(rig: Rig, tmp_path: Path) -> None:
    uploaded(rig, segments=3)
    data = bytearray(files(tmp_path)[1].read_bytes())
    data[len(data) // 2] ^= 1
    files(tmp_path)[1].write_bytes(data)
    files(tmp_path)[2].unlink()
    with pytest.raises(CorruptData, match=files(tmp_path)[1].name):
        rows_of(batch_of({"path": str(tmp_path / "d"), "channel": "t"}))
    assert rows_of(batch_of(options(tmp_path, path=str(tmp_path / "d"))))["n"].to_pylist() == list(range(1, 31))


def test_tasks_of_a_server_read_objects_and_what_is_not_uploaded_from_it(tmp_path: Path) -> None:
    life = Rig(tmp_path / "d", FolderObjects(LocalFilesystem(), tmp_path / "bucket"))
    uploaded(life, segments=2)
    life.close()
    with Running(tmp_path / "d") as running:
        fill(running.store, "t", segments=1, events=10)
        reader = batch_of(options(tmp_path, addr=f"http://127.0.0.1:{running.port}"))
        (task,) = reader.partitions()
        assert isinstance(task, Task)
        assert [bool(piece.segment.object_key) for piece in task.pieces] == [True, True, False]
        for path in files(tmp_path)[:2]:
            path.unlink()
        found = [n for batch in reader.read(task) for n in batch.column("n").to_pylist()]
    assert found == list(range(1, 31))


def test_a_damaged_object_is_never_delivered(rig: Rig, tmp_path: Path) -> None:
    uploaded(rig, segments=1)
    (path,) = (tmp_path / "bucket" / "segments" / "t").glob("*.arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData):
        rows_of(batch_of(options(tmp_path)))


def test_a_bucket_without_a_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="has no manifest"):
        batch_of(options(tmp_path))


def test_a_subscriber_needs_the_server_not_its_objects(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="subscriber"):
        read_options(options(tmp_path, subscriber="s"))


@pytest.mark.guarantee("G8")
def test_events_that_were_evicted_before_they_were_uploaded_are_lost_not_skipped(tmp_path: Path) -> None:
    """What was uploaded stays in the object store; what came while it was away went over the size cap."""
    cap = {"local": "5KiB", "size_cap": "2MiB", "size_cap_policy": "drop_oldest"}
    log = {"max_size": "1MiB", "rotation_size": "256KiB"}
    small = {"frame.max_size": "64KiB", "segment.target_size": "64KiB", "wal": log, "retention": cap}
    objects = FolderObjects(LocalFilesystem(), tmp_path / "bucket")
    life = Rig(tmp_path / "d", objects, store=small)
    uploaded(life, segments=1)
    for _ in range(50):
        fill(life.store, "t", segments=1, events=7000)
        life.tick()
    life.upload()
    ((gone, *_),) = ([loss for loss in life.store.losses() if loss.events],)
    end = {"t": life.store.listing.channel("t").next_seq}
    with pytest.raises(EventsGone, match=rf"events 11\.\.{10 + gone.events} "):
        stream_of(options(tmp_path)).partitions({"t": 1}, end)
    calm = stream_of(options(tmp_path, failOnDataLoss="false"))
    assert between(calm, {"t": 1}, end) == [*range(1, 11), *range(11 + gone.events, end["t"])]
    life.close()


def test_numbers_that_a_restore_skipped_are_no_loss(tmp_path: Path) -> None:
    objects = FolderObjects(LocalFilesystem(), tmp_path / "bucket")
    life = Rig(tmp_path / "d", objects)
    uploaded(life, segments=1)
    for _ in range(2):  # the second restore knows of the numbers that the first one skipped
        life.close()
        shutil.rmtree(tmp_path / "d")
        life = Rig(tmp_path / "d", objects)
        life.store.commit("t", numbers(0, 1))
        life.upload()
    (facts,) = (life.store.listing.channel("t"),)
    for source in (options(tmp_path), {"path": str(tmp_path / "d"), "channel": "t"}):
        assert between(stream_of(source), {"t": 1}, {"t": facts.next_seq}) == [*range(1, 11), 0, 0]
    life.close()
