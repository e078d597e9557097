"""The sender's crash tests are worth something: each of these bugs, planted into it, is found by one of them.

A planted bug replaces one step of the product for the length of one test. The hunt is the body of a crash test, run
until it complains; a hunt that finds nothing fails here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from holdfast.disk.smallfiles import replace_whole
from holdfast.errors import CorruptData
from holdfast.sender import identity, recovery
from holdfast.sender.core import Effect, LinkCore, Opening
from holdfast.sender.identity import Identity
from holdfast.sender.ring import Ring
from holdfast.sender.segment import FileSegment
from holdfast.sender.slot import Slot
from holdfast.sender.watermark import Watermark
from holdfast.testing import PowerCut
from holdfast.wire import replies
from tests.crash.slot_workload import Ledger, fresh_disk, run
from tests.crash.test_slot_power_cut import FIRST, calls_of_workload, go_on
from tests.unit.sender import test_core_simulated, test_recovery

FOUND = (AssertionError, KeyError, CorruptData)

# --- hunts ----------------------------------------------------------------------------------------------------------


def hunt_power_cuts() -> None:
    """Cut the workload at every call, in any order, and go on from what a bad disk leaves."""
    calls = list(range(FIRST, calls_of_workload("flush") + 1))
    random.Random(7).shuffle(calls)
    for call in calls:
        disk, ledger = fresh_disk(), Ledger("flush")
        disk.cut_at(call)
        with suppress(PowerCut):
            run(disk, ledger)
        go_on(disk.after_power_cut((0, 1, call)[call % 3]), ledger)


def hunt_process_death() -> None:
    for call in range(FIRST, calls_of_workload("memory") + 1):
        disk, ledger = fresh_disk(), Ledger("memory")
        disk.cut_at(call)
        with suppress(PowerCut):
            run(disk, ledger)
        go_on(disk.after_kill(), ledger)


def hunt_old_frames() -> None:
    test_recovery.test_old_frame_never_appears_behind_a_new_one()


def hunt_in_virtual_time() -> None:
    test: Any = test_core_simulated.test_every_frame_arrives_once_and_in_order_after_any_trouble
    for seed in range(60):
        test.hypothesis.inner_test(seed=seed, durable=bool(seed % 2), hosts=1 + seed % 3)


# --- bugs of the slot -----------------------------------------------------------------------------------------------


def write_the_slot_id_without_syncing_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(identity, "replace_whole", partial(replace_whole, synced=False))


def keep_one_slot_id_for_all_openings(patch: pytest.MonkeyPatch) -> None:
    real = Identity.begin
    patch.setattr(Identity, "begin", lambda self, next_fsn, slot_id: real(self, next_fsn, bytes(16)))
    opened = Slot._take_over

    def take_over(self: Slot, **options: Any) -> None:
        opened(self, **options)
        self.slot_id = bytes(16)

    patch.setattr(Slot, "_take_over", take_over)


def flush_without_syncing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FileSegment, "sync", lambda _self: None)


def begin_a_segment_before_the_last_one_is_synced(patch: pytest.MonkeyPatch) -> None:
    real = Ring._rotate

    def rotate(self: Ring, size: int) -> None:
        self._durable = False
        try:
            real(self, size)
        finally:
            self._durable = True

    patch.setattr(Ring, "_rotate", rotate)


def delete_segments_before_the_watermark_is_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watermark, "sync", lambda _self: None)


def take_names_of_new_segments_for_synced(patch: pytest.MonkeyPatch) -> None:
    real = Slot.create

    def create(self: Slot, base: int, size_bytes: int) -> FileSegment:
        self._durable = False
        try:
            return real(self, base, size_bytes)
        finally:
            self._durable = True

    patch.setattr(Slot, "create", create)


def acknowledge_a_refused_span_before_it_is_kept(patch: pytest.MonkeyPatch) -> None:
    real = Ring.reject

    def reject(self: Ring, rejection: Any) -> Any:
        self._acked = rejection.last_fsn
        self._backing.acknowledged(rejection.last_fsn)
        self._acked = rejection.first_fsn - 1
        return real(self, rejection)

    patch.setattr(Ring, "reject", reject)


def append_behind_a_torn_frame(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_cut", lambda _filesystem, _torn: None)


def give_frames_out_twice_after_a_kill(patch: pytest.MonkeyPatch) -> None:
    real = FileSegment.recovered.__func__  # type: ignore[attr-defined]

    def recovered(cls: Any, filesystem: Any, found: Any) -> FileSegment:
        segment: FileSegment = real(cls, filesystem, found)
        if segment.count:
            segment.base += 1
        return segment

    patch.setattr(FileSegment, "recovered", classmethod(recovered))


# --- bugs of the connection loop ------------------------------------------------------------------------------------


def believe_an_answer_beyond_what_was_sent(patch: pytest.MonkeyPatch) -> None:
    def on_ok(self: LinkCore, reply: replies.Ok) -> list[Effect]:
        fsn = self._fsn_at_zero + reply.wire_seq
        self._accepted = max(self._accepted, fsn)
        return self._acknowledge(fsn)

    patch.setattr(LinkCore, "_on_ok", on_ok)


def number_a_connection_from_one(patch: pytest.MonkeyPatch) -> None:
    real = LinkCore._begin

    def begin(self: LinkCore, opening: Opening) -> None:
        real(self, opening)
        self._fsn_at_zero += 1

    patch.setattr(LinkCore, "_begin", begin)


def take_acceptance_for_durability(patch: pytest.MonkeyPatch) -> None:
    real = LinkCore._begin
    patch.setattr(LinkCore, "_begin", lambda self, opening: real(self, opening._replace(durable=False)))


def drop_a_frame_before_what_precedes_it(patch: pytest.MonkeyPatch) -> None:
    real = LinkCore._on_refusal

    def on_refusal(self: LinkCore, reply: replies.Refusal) -> list[Effect]:
        self._accepted = self._fsn_at_zero + reply.wire_seq - 1
        return real(self, reply)

    patch.setattr(LinkCore, "_on_refusal", on_refusal)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], None]] = {
    write_the_slot_id_without_syncing_it: hunt_power_cuts,
    keep_one_slot_id_for_all_openings: hunt_power_cuts,
    flush_without_syncing: hunt_power_cuts,
    begin_a_segment_before_the_last_one_is_synced: hunt_power_cuts,
    delete_segments_before_the_watermark_is_synced: hunt_power_cuts,
    take_names_of_new_segments_for_synced: hunt_power_cuts,
    acknowledge_a_refused_span_before_it_is_kept: hunt_process_death,
    append_behind_a_torn_frame: hunt_old_frames,
    give_frames_out_twice_after_a_kill: hunt_process_death,
    believe_an_answer_beyond_what_was_sent: hunt_in_virtual_time,
    number_a_connection_from_one: hunt_in_virtual_time,
    drop_a_frame_before_what_precedes_it: hunt_in_virtual_time,
    take_acceptance_for_durability: hunt_in_virtual_time,
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_of_the_sender_is_found(monkeypatch: pytest.MonkeyPatch, bug: Any) -> None:
    bug(monkeypatch)
    with pytest.raises(FOUND):
        BUGS[bug]()


def test_sender_without_a_planted_bug_passes_every_hunt() -> None:
    hunt_process_death()
    hunt_in_virtual_time()
