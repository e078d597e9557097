"""Every error a frame can meet has its category, and a text that helps without telling too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import (
    Backpressure,
    Category,
    ChannelFull,
    Closed,
    DiskFull,
    Forbidden,
    InvalidBatch,
    InvalidName,
    LimitReached,
    QuotaReached,
    SchemaMismatch,
    StoreFailed,
    WireError,
)
from holdfast.server.refusals import explain

FILE = Path("store/wal/wal-0000000001.log")
MISMATCH = SchemaMismatch(channel="trades", column="price", expected="double", found="string", reason="no")


@pytest.mark.parametrize(
    ("error", "category", "words"),
    [
        (MISMATCH, Category.SCHEMA_MISMATCH, ["'trades'", "'price'", "double", "string"]),
        (InvalidBatch(channel="trades", reason="it has no columns"), Category.PARSE_ERROR, ["'trades'", "no columns"]),
        (InvalidName(what="channel", name="a b", reason="a blank"), Category.PARSE_ERROR, ["'a b'"]),
        (
            WireError(category=Category.DICTIONARY_GAP, reason="gap", place="byte 9"),
            Category.DICTIONARY_GAP,
            ["byte 9"],
        ),
        (Backpressure(bound="memory_limit", used_bytes=2, cap_bytes=1, waited_s=5), Category.NOT_WRITABLE, ["2 of 1"]),
        (ChannelFull(channel="a", limit="max_msgs", allowed=3), Category.WRITE_ERROR, ["'a'", "max_msgs=3"]),
        (DiskFull(file=FILE, reason="no"), Category.NOT_WRITABLE, ["no space left"]),
        (LimitReached(what="channel 'x'", limit="max_channels", allowed=1), Category.WRITE_ERROR, ["max_channels"]),
        (QuotaReached(principal="p", limit="x", allowed=1, retry_after_s=1), Category.NOT_WRITABLE, ["'p'"]),
        (Forbidden(principal="p", action="publish channel 'x'"), Category.SECURITY_ERROR, ["'p'", "'x'"]),
        (StoreFailed(file=FILE, reason="sync failed"), Category.NOT_WRITABLE, ["stopped"]),
        (Closed(what="store"), Category.NOT_WRITABLE, ["stopping"]),
        (ZeroDivisionError("inner detail"), Category.INTERNAL_ERROR, ["its log has the reason"]),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, Exception) else None,
)
def test_error_becomes_its_category_with_a_text_that_names_the_matter(
    error: Exception, category: Category, words: list[str]
) -> None:
    found, text = explain(error)
    assert found is category
    assert all(word in text for word in words), text


@pytest.mark.parametrize("error", [StoreFailed(file=FILE, reason="sync failed"), KeyError("secret")])
def test_text_of_an_inner_failure_tells_nothing_of_the_inside(error: Exception) -> None:
    _, text = explain(error)
    assert str(FILE) not in text
    assert "secret" not in text
