"""The example of a producer that outlives its server runs as it stands."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.test_examples import run
from tests.unit.server.harness import RunningServer


def test_producer_keeps_events_until_a_server_comes_and_loses_no_refused_frame(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server:
        told = run("resilient_producer.py", tmp_path / "sf", f"127.0.0.1:{server.port}")
        assert server.rows("readings", "minute") == list(range(11))
    assert "published up to frame 0 while nobody listens" in told
    assert 'holdfast_sender_frames_rejected_total{sender="gauge"} 1.0' in told
    assert 'holdfast_sender_halted{sender="gauge"} 0.0' in told
    assert len(list((tmp_path / "sf" / "gauge" / "rejected").iterdir())) == 1
