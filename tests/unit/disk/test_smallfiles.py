"""Small files: whoever reads sees the old content or the new one, whatever ends the writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.disk.local import LocalFilesystem
from holdfast.disk.smallfiles import read_whole, replace_whole
from holdfast.testing import CrashFilesystem, PowerCut

WHERE = Path("/d")
FILE = WHERE / "mark"


def test_file_that_is_not_there_has_no_content(tmp_path: Path) -> None:
    assert read_whole(LocalFilesystem(), tmp_path / "none") is None


@pytest.mark.parametrize("synced", [True, False])
def test_replaced_file_has_the_new_content_alone(tmp_path: Path, synced: bool) -> None:
    (tmp_path / "mark.tmp").write_bytes(b"left by a crash")
    for content in (b"a long first content", b"short", b""):
        replace_whole(LocalFilesystem(), tmp_path / "mark", content, synced=synced)
        assert read_whole(LocalFilesystem(), tmp_path / "mark") == content
        assert [path.name for path in tmp_path.iterdir()] == ["mark"]


def after_each_cut(*, synced: bool) -> list[bytes | None]:
    """What the file says when the power, or the process, ends at each call of a replacement, and after the last."""
    found: list[bytes | None] = []
    for call in range(1, 30):
        disk = CrashFilesystem()
        disk.makedir(WHERE)
        disk.sync_dir(WHERE.parent)
        replace_whole(disk, FILE, b"old")
        disk.cut_at(disk.calls + call)
        try:
            replace_whole(disk, FILE, b"new", synced=synced)
        except PowerCut:
            found += [read_whole(disk.after_kill(), FILE)]
            found += [read_whole(disk.after_power_cut(seed), FILE) for seed in range(6)] if synced else []
        else:
            assert all(read_whole(disk.after_power_cut(seed), FILE) == b"new" for seed in range(6)) or not synced
            return [*found, read_whole(disk.after_kill(), FILE)]
    raise AssertionError("a replacement has fewer calls")


@pytest.mark.parametrize("synced", [True, False])
def test_end_at_any_call_leaves_the_old_content_or_the_new_one(synced: bool) -> None:
    found = after_each_cut(synced=synced)
    assert set(found) == {b"old", b"new"}
    assert found[-1] == b"new"
