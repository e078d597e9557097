"""Settings of a tier, and the objects they lead to."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from holdfast.config.file import read
from holdfast.config.tier import TierConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import InvalidConfig, TierUnavailable
from holdfast.tier.folder import FolderObjects
from holdfast.tier.opening import _credentials, open_objects


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"url": "ftp://x"}, "tier.url"),
        ({"url": "s3://user:secret@bucket"}, "tier.url"),
        ({"url": "file://host/path"}, "tier.url"),
        ({"url": "az://container"}, "tier.url"),
        ({"url": "gs://b", "endpoint": "http://127.0.0.1:1"}, "tier.endpoint"),
        ({"url": "s3://b", "prefix": "/x"}, "tier.prefix"),
        ({"url": "s3://b", "prefix": "a/../b"}, "tier.prefix"),
        ({"url": "s3://b", "retry_first": "2s", "retry_max": "1s"}, "tier.retry_max"),
        ({"url": "s3://b", "fencing": "hope"}, "tier.fencing"),
        ({"url": "s3://b", "concurrency": 0}, "tier.concurrency"),
        ({"bucket": "b"}, "tier.bucket"),
    ],
)
def test_a_setting_that_cannot_hold_is_named(settings: dict[str, object], key: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        TierConfig.from_mapping({"tier": settings})
    assert caught.value.key == key
    assert "secret" not in str(caught.value)


def test_a_file_of_settings_has_a_section_for_the_tier(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text("tier:\n  url: s3://bucket\n  credentials_file: keys.env\n  max_delay: 2s\n")
    tier = read(file).tier
    assert (tier.url, tier.max_delay_ns) == ("s3://bucket", 2 * 10**9)
    assert tier.credentials_file == str(tmp_path / "keys.env")


@pytest.mark.parametrize("text", ["local: 1GiB", "remote: {max_age: 30d}", "remote: {max_size: 1TiB}"])
def test_retention_for_a_tier_without_a_tier_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(f"retention:\n  {text}\n")
    with pytest.raises(InvalidConfig, match=r"retention\.(local|remote).*set tier\.url"):
        read(file)
    file.write_text(f"tier:\n  url: s3://b\nretention:\n  {text}\n")
    read(file)


def test_a_folder_is_opened_below_its_prefix(tmp_path: Path) -> None:
    objects = open_objects(TierConfig(url=f"file://{tmp_path}", prefix="plant"), LocalFilesystem())
    assert isinstance(objects, FolderObjects)
    assert objects.url == f"file://{tmp_path}/plant"


def test_credentials_are_lines_of_names_and_values(tmp_path: Path) -> None:
    file = tmp_path / "keys.env"
    file.write_text("# keys\nAWS_ACCESS_KEY_ID=id\n\nAWS_SECRET_ACCESS_KEY = a=b\n")
    assert _credentials(file) == {"aws_access_key_id": "id", "aws_secret_access_key": "a=b"}


def test_a_wrong_line_of_credentials_is_named_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "keys.env"
    file.write_text("AWS_ACCESS_KEY_ID=id\nhunter2\n")
    with pytest.raises(InvalidConfig, match=r"keys\.env:2") as caught:
        _credentials(file)
    assert "hunter2" not in str(caught.value)


KEY = "bm90IGEga2V5"
"""A key of Azure is base64."""
ROBOT = {
    "type": "service_account",
    "client_email": "robot@plant.example",
    "private_key_id": "1",
    "private_key": "none",
    "disable_oauth": True,
}


def test_every_kind_of_bucket_is_opened_with_its_own_credentials(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    (tmp_path / "robot.json").write_text(json.dumps(ROBOT))
    for url, lines in (
        ("s3://bucket", "AWS_ACCESS_KEY_ID=id\nAWS_SECRET_ACCESS_KEY=secret\n"),
        ("gs://bucket", f"GOOGLE_SERVICE_ACCOUNT={tmp_path}/robot.json\n"),
        ("az://account/container", f"AZURE_STORAGE_ACCOUNT_KEY={KEY}\n"),
    ):
        (tmp_path / "keys.env").write_text(lines)
        config = TierConfig(
            url=url, region="eu-central-1" if url[:2] == "s3" else "", credentials_file=str(tmp_path / "keys.env")
        )
        assert open_objects(config, LocalFilesystem()).url == f"{url}/holdfast"


def test_credentials_of_another_cloud_are_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    (tmp_path / "keys.env").write_text("AWS_ACCESS_KEY_ID=hunter2\n")
    with pytest.raises(InvalidConfig, match="aws_access_key_id") as caught:
        open_objects(TierConfig(url="gs://bucket", credentials_file=str(tmp_path / "keys.env")), LocalFilesystem())
    assert "hunter2" not in str(caught.value)


def test_a_robot_whose_file_is_missing_is_named(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    (tmp_path / "keys.env").write_text(f"GOOGLE_SERVICE_ACCOUNT={tmp_path}/robot.json\n")
    with pytest.raises(InvalidConfig, match=r"robot\.json"):
        open_objects(TierConfig(url="gs://bucket", credentials_file=str(tmp_path / "keys.env")), LocalFilesystem())


def test_an_azure_account_is_taken_from_the_address() -> None:
    pytest.importorskip("obstore")
    cloud = importlib.import_module("holdfast.tier.cloud")
    assert cloud._address("az://account/container/plant", {}) == ("az://container/plant", {"account_name": "account"})


def test_a_machine_without_a_role_is_told_where_credentials_go() -> None:
    """What the address of roles answers on this machine is not ours to say; that it was asked is in the text."""
    pytest.importorskip("obstore")
    cloud = importlib.import_module("holdfast.tier.cloud")
    objects = cloud.CloudObjects(
        "s3://bucket/p", timeout_s=1, options={"region": "x", "endpoint": "http://127.0.0.1:9"}
    )
    with pytest.raises(TierUnavailable, match=r"tier\.credentials_file"), objects._translated("read", "a"):
        raise OSError("GET http://169.254.169.254/latest/api/token: 403 Forbidden")
