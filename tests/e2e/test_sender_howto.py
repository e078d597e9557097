"""The page on sending: its Python blocks run, one after the other, against a real server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.harness import RunningServer

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "send-events.md"


def test_every_block_of_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    with RunningServer(tmp_path / "data") as server:
        for block in blocks:
            exec(block.replace("127.0.0.1:9000", f"127.0.0.1:{server.port}"), names)
        assert server.rows("trades", "price") == [12.5, 12.6, 7.0, 12.7, 12.8]
        assert server.rows("measures", "sensor") == ["a", "b", "c", "d"]
        assert server.rows("orders", "id") == [1]
    assert len(list((tmp_path / "slots" / "app-1" / "rejected").iterdir())) == 2
