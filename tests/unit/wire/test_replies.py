"""Replies: their bytes, and a reader that takes nothing but exactly one of them."""

from __future__ import annotations

import pytest

from holdfast.errors import Category, WireError
from holdfast.wire.replies import (
    TEXT_BYTES_MAX,
    DurableAck,
    Ok,
    Refusal,
    decode,
    encode_durable_ack,
    encode_ok,
    encode_refusal,
)

OK = bytes.fromhex("00 0500000000000000 0200 0100 61 0300000000000000 0300 c3a962 ffffffffffffff7f")
DURABLE_ACK = bytes.fromhex("02 0100 0600 747261646573 2a00000000000000")
REFUSAL = bytes.fromhex("03 0700000000000000 0500 6ec3b36e65")
EVERY = [OK, DURABLE_ACK, REFUSAL, encode_ok(0, [])]


def test_ok_is_written_as_its_bytes() -> None:
    assert encode_ok(5, [("a", 3), ("éb", 2**63 - 1)]) == OK
    assert encode_ok(1, []).hex() == "0001000000000000000000"


def test_durable_ack_is_written_as_its_bytes() -> None:
    assert encode_durable_ack([("trades", 42)]) == DURABLE_ACK


def test_refusal_is_written_as_its_bytes() -> None:
    assert encode_refusal(Category.SCHEMA_MISMATCH, 7, "nóne") == REFUSAL


def test_replies_are_read_back_as_they_were_meant() -> None:
    assert decode(OK) == Ok(5, (("a", 3), ("éb", 2**63 - 1)))
    assert decode(bytearray(DURABLE_ACK)) == DurableAck((("trades", 42),))
    assert decode(memoryview(REFUSAL)) == Refusal(3, Category.SCHEMA_MISMATCH, 7, "nóne")


@pytest.mark.parametrize("category", [category for category in Category if category.value > 0])
def test_every_category_with_a_status_comes_back(category: Category) -> None:
    found = decode(encode_refusal(category, 1, "why"))
    assert isinstance(found, Refusal)
    assert (found.category, found.status) == (category, category.value)


@pytest.mark.parametrize("status", [0x01, 0x04, 0x0A, 0x7F, 0xFF])
def test_unknown_status_keeps_its_byte(status: int) -> None:
    found = decode(bytes([status]) + REFUSAL[1:])
    assert found == Refusal(status, Category.UNKNOWN, 7, "nóne")


@pytest.mark.parametrize("category", [Category.PROTOCOL_VIOLATION, Category.UNKNOWN])
def test_category_without_a_status_is_not_sent(category: Category) -> None:
    with pytest.raises(ValueError, match="close the connection"):
        encode_refusal(category, 1, "why")


@pytest.mark.parametrize("lead", ["", "x", "xx", "xxx"])
def test_long_text_is_cut_at_a_character(lead: str) -> None:
    found = decode(encode_refusal(Category.PARSE_ERROR, 1, lead + "€" * 1000))
    assert isinstance(found, Refusal)
    assert (lead + "€" * 1000).startswith(found.message)
    assert TEXT_BYTES_MAX - 2 <= len(found.message.encode()) <= TEXT_BYTES_MAX


@pytest.mark.parametrize("reply", EVERY)
def test_every_truncation_of_a_reply_is_refused(reply: bytes) -> None:
    for size in range(len(reply)):
        with pytest.raises(WireError):
            decode(reply[:size])


@pytest.mark.parametrize("reply", EVERY)
def test_trailing_byte_behind_a_reply_is_refused(reply: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode(reply + b"\0")
    assert caught.value.category is Category.PROTOCOL_VIOLATION


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("00 0000000000000000 0100 0000 0000000000000000", "empty"),
        ("00 0000000000000000 0100 0100 ff 0000000000000000", "UTF-8"),
        ("00 ffffffffffffffff 0000", "negative"),
        ("02 0100 0000 0000000000000000", "empty"),
        ("05 0000000000000000 0100 ff", "UTF-8"),
        ("05 0000000000000000 0104" + "61" * 1025, "1025"),
    ],
)
def test_malformed_reply_says_what_is_wrong(reply: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason) as caught:
        decode(bytes.fromhex(reply))
    assert "byte" in caught.value.place


def test_every_bit_flip_of_a_reply_is_read_or_refused() -> None:
    for reply in EVERY:
        for bit in range(len(reply) * 8):
            flipped = bytearray(reply)
            flipped[bit // 8] ^= 1 << (bit % 8)
            try:
                decode(flipped)
            except WireError:
                continue
