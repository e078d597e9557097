"""Compaction over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from tests.unit.server.admin.running import Running

JSON = {"Content-Type": "application/json"}


def fill(server: Running, segments: int) -> None:
    for n in range(segments):
        server.store.commit("t", pa.record_batch({"n": pa.array([n], pa.int64())}))
        server.store.flush()


def values(server: Running) -> list[int]:
    return [n for part in server.store.read("t") for n in part.column("n").to_pylist()]


def ask(server: Running, channel: str = "t", **body: int) -> tuple[int, object]:
    path = f"/api/v1/channels/{channel}/compact"
    found = server.ask("POST", path, json.dumps(body).encode(), JSON)
    return found.status, found.json


def test_a_request_does_a_bounded_piece_of_work_and_says_if_there_is_more(tmp_path: Path) -> None:
    with Running(tmp_path / "d") as server:
        fill(server, 60)
        size = server.store.statistics().segment_bytes // 60
        before = values(server)
        seen = []
        while True:
            status, answer = ask(server, target_bytes=max(1 << 16, 7 * size))
            assert status == 200
            assert isinstance(answer, dict)
            seen.append(answer["data"]["segments_before"])
            if not answer["data"]["more"]:
                break
        assert sum(seen) >= 60
        assert values(server) == before == list(range(60))
        assert server.store.statistics().segments < 10


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path) -> None:
    with Running(tmp_path / "d") as server:
        fill(server, 1)
        assert ask(server, "absent")[0] == 404
        assert ask(server, target_bytes=1)[0] == 400
        assert ask(server, event_span_ns=-1)[0] == 400
        assert ask(server, colour=1)[0] == 400
