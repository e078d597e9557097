"""Log events: one line each, whatever the values are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.telemetry import event


def line(caplog: pytest.LogCaptureFixture, name: str, **fields: Any) -> str:
    with caplog.at_level(logging.INFO, logger="holdfast"):
        event(name, **fields)
    return caplog.messages[-1]


def test_event_is_its_name_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    assert line(caplog, "store.thing.verb", count=3, path=Path("/a/b")) == "store.thing.verb count=3 path=/a/b"


@pytest.mark.parametrize(
    "value", ["two words", "a\nforged line", "quote'", 'quote"', "a=b", "back\\slash", "ü", "\x1b[31m", ""]
)
def test_value_can_never_forge_a_line(caplog: pytest.LogCaptureFixture, value: str) -> None:
    text = line(caplog, "store.thing.verb", value=value)
    assert text == f"store.thing.verb value={value!a}"
    assert text.isascii()
    assert text.isprintable()


def test_event_below_the_level_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Loud:
        def __str__(self) -> str:
            raise AssertionError("was formatted")

    with caplog.at_level(logging.WARNING, logger="holdfast"):
        event("store.thing.verb", value=Loud())
    assert caplog.messages == []
