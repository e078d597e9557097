"""Settings of a tier, and the objects they lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config.file import read
from holdfast.config.tier import TierConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import InvalidConfig
from holdfast.tier.folder import FolderObjects
from holdfast.tier.opening import _credentials, open_objects


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"url": "ftp://x"}, "tier.url"),
        ({"url": "s3://user:secret@bucket"}, "tier.url"),
        ({"url": "file://host/path"}, "tier.url"),
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
