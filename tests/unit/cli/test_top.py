"""The first line of `holdfast top`: how the server is, the worst of it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.top import _head

SERVER = {"version": "1", "started_at": 0.0, "insecure": False, "draining": False, "failed": False}


@pytest.mark.parametrize(
    ("server", "store", "expected"),
    [
        ({}, {"seal_postponed": ""}, "accepting"),
        ({}, {"seal_postponed": "No space left on device"}, "the disk is full"),
        ({"failed": True}, {"seal_postponed": "No space left on device"}, "the store has failed"),
    ],
)
def test_first_line_says_the_worst_that_is_known(server: dict[str, Any], store: dict[str, Any], expected: str) -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(_head({"server": SERVER | server, "store": store, "at": 61.0}))
    assert expected in captured.get()
