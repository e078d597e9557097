"""How many channels a principal may write to: noted before a frame, and given back only after its refusal."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from holdfast.errors import InvalidName
from holdfast.server.access.bindings import Bindings
from holdfast.server.access.quota import ChannelQuota
from holdfast.testing import CrashFilesystem, ManualClock
from tests.unit.server.access.gate import DATA, disk


class Rig:
    """A quota of two channels for everybody, and its disk."""

    def __init__(self, filesystem: CrashFilesystem | None = None) -> None:
        self.disk = filesystem or disk()
        self.bindings = Bindings(self.disk, DATA / "access", ManualClock())
        self.quota = ChannelQuota(self.bindings)

    def claim(self, *channels: str) -> list[str] | str:
        return self.quota.claim("a", channels, allowed=2, check=_check)

    def counted(self) -> set[str]:
        return set(self.bindings.channels_of("a"))

    def after_power_cut(self) -> Rig:
        return Rig(self.disk.after_power_cut(0))


def _check(channel: str) -> None:
    if not channel.isalnum():
        raise InvalidName(what="channel", name=channel, reason="is no word")


def test_claim_is_on_disk_before_its_frame_can_be_stored() -> None:
    rig = Rig()
    assert rig.claim("x", "y", "x") == ["x", "y"]
    assert rig.after_power_cut().counted() == {"x", "y"}


def test_claim_takes_all_channels_or_names_the_first_one_too_many() -> None:
    rig = Rig()
    assert rig.claim("x", "y", "z") == "z"
    with pytest.raises(InvalidName):
        rig.claim("x", "two words")
    assert rig.counted() == set()
    assert rig.after_power_cut().counted() == set()


def test_refused_channel_is_free_at_once_and_on_disk_after_tidying() -> None:
    rig = Rig()
    rig.claim("x", "y")
    rig.quota.refuse("a", ["x"])
    assert rig.counted() == {"y"}
    assert rig.claim("z") == ["z"]
    rig.quota.tidy()
    assert rig.after_power_cut().counted() == {"y", "z"}


def test_refused_channel_still_counts_after_a_power_cut_before_tidying() -> None:
    rig = Rig()
    rig.claim("x", "y")
    rig.quota.refuse("a", ["x"])
    assert rig.after_power_cut().counted() == {"x", "y"}


def test_channel_of_two_frames_is_given_back_with_the_last_refusal() -> None:
    rig = Rig()
    assert rig.claim("x") == rig.claim("x") == ["x"]
    rig.quota.refuse("a", ["x"])
    assert rig.counted() == {"x"}
    rig.quota.refuse("a", ["x"])
    assert rig.counted() == set()


def test_channel_that_one_frame_was_stored_for_is_never_given_back() -> None:
    rig = Rig()
    rig.claim("x")
    rig.claim("x")
    rig.quota.accept("a", ["x"])
    rig.quota.refuse("a", ["x"])
    rig.quota.tidy()
    assert rig.claim("x") == [], "there is nothing left to settle"
    assert rig.after_power_cut().counted() == {"x"}


def test_channel_that_is_claimed_again_before_tidying_stays_on_disk() -> None:
    rig = Rig()
    rig.claim("x")
    rig.quota.refuse("a", ["x"])
    assert rig.claim("x") == ["x"]
    rig.quota.tidy()
    assert rig.after_power_cut().counted() == {"x"}


def test_claim_that_could_not_be_written_counts_nothing() -> None:
    rig = Rig()
    rig.claim("x")
    rig.disk.fail_at(rig.disk.calls + 1, errno.ENOSPC)
    with pytest.raises(sqlite3.OperationalError):
        rig.claim("y")
    assert rig.bindings.loaded_channels_of("a") == {"x"}
