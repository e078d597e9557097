"""`holdfast restore` as of an earlier entry or time, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.cli import restore
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, DamagedObject, TierMismatch
from holdfast.tier.folder import FolderObjects
from tests.unit.tier.rig import Rig, values_of


class Kept:
    """A tier in a folder with two uploads, a minute apart."""

    def __init__(self, root: Path) -> None:
        (root / "bucket").mkdir()
        self.url = f"file://{root}/bucket"
        self.objects = FolderObjects(LocalFilesystem(), root / "bucket" / "holdfast")
        self.rig = Rig(root / "data", self.objects)
        self.rig.send(1, "a")
        self.rig.upload()
        self.number, self.at_ns = self.rig.tier.state.number, self.rig.clock.wall_ns()
        self.rig.clock.advance(60)
        self.rig.send(2, "a")
        self.rig.upload()


def restored(kept: Kept, target: Path, at: str | None = None) -> list[int]:
    restore.run(target, url=kept.url, prefix=None, config=None, at=at, as_json=True)
    with Store.open(target, inline=True) as store:
        return values_of(store, "a")


def test_the_default_is_everything_up_to_now(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert restored(kept, tmp_path / "copy") == [1, 2]
    kept.rig.close()


def test_an_earlier_entry_or_time_leaves_out_what_came_later(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    moment = datetime.fromtimestamp(kept.at_ns / 1e9, UTC).isoformat()
    assert restored(kept, tmp_path / "by-number", str(kept.number)) == [1]
    assert restored(kept, tmp_path / "by-time", moment) == [1]
    kept.rig.close()


def test_a_copy_of_an_earlier_time_does_not_go_on_with_the_tier(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    restored(kept, tmp_path / "copy", str(kept.number))
    kept.rig.close()
    with pytest.raises(TierMismatch, match="another process has used the tier"):
        Rig(tmp_path / "copy", kept.objects, clock=kept.rig.clock)


def test_what_was_deleted_since_is_named_as_missing(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.rig.store.remove_channel("a")
    kept.rig.tier.turn()
    kept.rig.close()
    with pytest.raises(DamagedObject, match="is not there"):
        restored(kept, tmp_path / "copy", str(kept.number))


@pytest.mark.parametrize(
    ("url", "at", "text"),
    [
        (None, None, "no tier is named"),
        ("", "yesterday", "neither a number"),
        ("", "2026-05-01T12:00", "has no time zone"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path, url: str | None, at: str | None, text: str) -> None:
    kept = Kept(tmp_path)
    kept.rig.close()
    with pytest.raises(BadRequest, match=text):
        restore.run(
            tmp_path / "copy",
            url=kept.url if url is not None else None,
            prefix=None,
            config=None,
            at=at,
            as_json=True,
        )
    assert not (tmp_path / "copy").exists()


def test_an_empty_tier_has_nothing_to_restore(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with pytest.raises(BadRequest, match="holds no store"):
        restore.run(tmp_path / "copy", url=f"file://{tmp_path}/bucket", prefix=None, config=None, at=None, as_json=True)
