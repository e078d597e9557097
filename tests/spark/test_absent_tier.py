"""An object store that is away, as a process that is not there: alone, and with a server that is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes

from holdfast.disk.local import LocalFilesystem
from holdfast.errors import TierUnavailable
from holdfast.spark.options import read_options
from holdfast.spark.planning import Task
from holdfast.spark.resolving import infer_schema, open_access
from holdfast.spark.stream import StreamReader
from holdfast.tier.folder import FolderObjects
from tests.conformance.s3servers import BUCKET, KEY_ID, SECRET, rclone_at, rclone_command
from tests.e2e.served import free_port
from tests.spark.away import objects_back_once_missed
from tests.spark.stores import batch_of, between, fill, stream_of
from tests.unit.server.admin.running import Running
from tests.unit.tier.rig import Rig

pytestmark = pytest.mark.skipif(rclone_command() is None, reason="rclone is not installed")
LIMIT = ReadMaxBytes(1 << 30)
THREE = list(range(1, 31))


@pytest.fixture
def uploaded(tmp_path: Path) -> dict[str, str]:
    """Three segments in a bucket that nobody serves, and the options for it."""
    (tmp_path / "key").write_text(f"AWS_ACCESS_KEY_ID={KEY_ID}\nAWS_SECRET_ACCESS_KEY={SECRET}\n")
    (tmp_path / "s3" / BUCKET).mkdir(parents=True)
    life = Rig(tmp_path / "d", FolderObjects(LocalFilesystem(), tmp_path / "s3" / BUCKET / "holdfast"))
    fill(life.store, "t", segments=3, events=10)
    life.upload()
    life.close()
    return {
        "tier": f"s3://{BUCKET}",
        "tierEndpoint": f"http://127.0.0.1:{free_port()}",
        "tierRegion": "us-east-1",
        "tierCredentialsFile": str(tmp_path / "key"),
        "channel": "t",
    }


def port(options: dict[str, str]) -> int:
    return int(options["tierEndpoint"].rpartition(":")[2])


@pytest.fixture
def reader(uploaded: dict[str, str], tmp_path: Path) -> StreamReader:
    """A stream of the object store alone, which was there when the query was started."""
    with rclone_at(port(uploaded), tmp_path / "s3"):
        return stream_of(uploaded)


def test_an_absent_object_store_brings_no_news_and_ends_no_query(
    uploaded: dict[str, str], reader: StreamReader, tmp_path: Path
) -> None:
    with rclone_at(port(uploaded), tmp_path / "s3"):
        assert reader.latestOffset({"t": 1}, LIMIT) == {"t": 31}
    for fresh in (reader, StreamReader(reader._schema, reader._options)):
        assert fresh.latestOffset({"t": 31}, LIMIT) == {"t": 31}
        assert fresh.reportLatestOffset() is None
        fresh.commit({"t": 31})


def test_start_plan_and_tasks_wait_for_an_object_store(
    uploaded: dict[str, str], reader: StreamReader, tmp_path: Path
) -> None:
    with objects_back_once_missed(port(uploaded), tmp_path / "s3"):
        assert reader.initialOffset() == {"t": 1}
    planning = StreamReader(reader._schema, reader._options)
    with objects_back_once_missed(port(uploaded), tmp_path / "s3"):
        (task,) = planning.partitions({"t": 1}, {"t": 31})
    with objects_back_once_missed(port(uploaded), tmp_path / "s3"):
        assert [n for batch in planning.read(task) for n in batch.column("n").to_pylist()] == THREE


def test_a_run_that_ends_by_itself_waits_for_an_object_store(
    uploaded: dict[str, str], reader: StreamReader, tmp_path: Path
) -> None:
    with objects_back_once_missed(port(uploaded), tmp_path / "s3"):
        reader.prepareForTriggerAvailableNow()
    with objects_back_once_missed(port(uploaded), tmp_path / "s3"):
        assert reader.latestOffset({"t": 1}, LIMIT) == {"t": 31}


def test_patience_with_an_object_store_has_the_end_that_it_is_given(uploaded: dict[str, str]) -> None:
    access = open_access(read_options(uploaded), patience_s=0.3)
    with pytest.raises(TierUnavailable, match="list manifest"):
        access.channels()


def test_a_directory_without_its_object_store_reads_what_it_has(uploaded: dict[str, str], tmp_path: Path) -> None:
    reader = stream_of({**uploaded, "path": str(tmp_path / "d")})
    assert between(reader, {"t": 1}, reader.latestOffset({"t": 1}, LIMIT)) == THREE


def test_a_server_gives_what_its_absent_object_store_cannot(uploaded: dict[str, str], tmp_path: Path) -> None:
    with Running(tmp_path / "d") as running:
        options = {**uploaded, "addr": f"http://127.0.0.1:{running.port}"}
        assert infer_schema(read_options(options)).names == ["n"]
        reader = stream_of({**options, "subscriber": "s"})
        end = reader.latestOffset(reader.initialOffset(), LIMIT)
        assert between(reader, {"t": 1}, end) == THREE
        assert reader.latestOffset(end, LIMIT) == end


def test_objects_that_are_away_when_a_task_runs_come_from_the_server(
    uploaded: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Running(tmp_path / "d") as running:
        reader = batch_of({**uploaded, "addr": f"http://127.0.0.1:{running.port}"})
        with rclone_at(port(uploaded), tmp_path / "s3"):
            (task,) = reader.partitions()
        assert isinstance(task, Task)
        assert all(piece.segment.object_key for piece in task.pieces)
        assert [n for batch in reader.read(task) for n in batch.column("n").to_pylist()] == THREE
    told = [record.message for record in caplog.records if "spark.server.away" in record.message]
    assert len(told) == 1, "not with each segment"
    assert f"tier=s3://{BUCKET}" in told[0]
