"""What a producer hands over: identities refuse what cannot be one."""

from __future__ import annotations

import pytest

from holdfast.model.frame import Durability, EventIds, FrameReceipt, Guid, Receipt, SlotFrame
from holdfast.model.positions import CommittedId, Fsn, Seq

SLOT = bytes(16)


@pytest.mark.parametrize("fsn", [0, 1, 2**63 - 1])
def test_frame_number_of_63_bits_is_accepted(fsn: int) -> None:
    assert SlotFrame(SLOT, Fsn(fsn)).fsn == fsn


@pytest.mark.parametrize("fsn", [-1, 2**63])
def test_frame_number_beyond_63_bits_is_refused(fsn: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        SlotFrame(SLOT, Fsn(fsn))


@pytest.mark.parametrize("size", [0, 15, 17])
def test_identity_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"slot_id has {size} bytes"):
        SlotFrame(bytes(size), Fsn(1))
    with pytest.raises(ValueError, match=f"guid has {size} bytes"):
        Guid(bytes(size))


def test_identities_are_keys_equal_by_value() -> None:
    assert {SlotFrame(SLOT, Fsn(1)), SlotFrame(bytes(16), Fsn(1))} == {SlotFrame(SLOT, Fsn(1))}
    assert Guid(b"a" * 16) == Guid(b"a" * 16)
    assert EventIds("id") != EventIds("other")


def test_receipts_are_values_that_cannot_be_changed() -> None:
    receipt = Receipt("a", Seq(1), Seq(2), CommittedId(3), duplicate=False, durability=Durability.SYNCED)
    frame = FrameReceipt((receipt,), duplicate=False, durability=Durability.SYNCED)
    with pytest.raises(AttributeError):
        receipt.first_seq = Seq(9)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        frame.duplicate = True  # type: ignore[misc]
    assert hash(receipt) == hash(Receipt("a", Seq(1), Seq(2), CommittedId(3), False, Durability.SYNCED))
