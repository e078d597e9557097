"""What is lost under `failOnDataLoss=false` stands in the logs of real processes, and is counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.errors import EventsGone
from holdfast.spark.losses import lost_in
from tests.spark.stores import fill, made, numbers, stream_of
from tests.spark.test_pipeline_command import FILE, holdfast
from tests.unit.server.admin.running import Running

LENIENT = FILE.replace("maxEventsPerTrigger: 10", "failOnDataLoss: false").replace(
    "t: {channel: t", 't: {channel: "t*"'
)


@pytest.mark.timeout(700)
def test_a_lost_range_stands_on_standard_error_and_is_counted(tmp_path: Path) -> None:
    """Of `t`, planning finds no segment; of `t2`, the task finds no file."""
    made(tmp_path / "d", segments=3, events=10)
    _removed_up_to_thirty(tmp_path / "d")
    made(tmp_path / "d", "t2", segments=3, events=10)
    sorted((tmp_path / "d" / "channels" / "t2").glob("*.arrow"))[1].unlink()
    started = LENIENT.replace("failOnDataLoss: false", "failOnDataLoss: false, startingOffsets: '{\"t\": 5}'")
    (tmp_path / "p.yaml").write_text(started)
    run = holdfast("pipeline", "run", "p.yaml", "--available-now", "--json", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    told = [line for line in run.stderr.splitlines() if "spark.events.lost" in line]
    assert [line.partition(" holdfast WARNING ")[2] for line in told] == [
        "spark.events.lost channel=t first_seq=5 last_seq=30 events=26",
        "spark.events.lost channel=t2 first_seq=11 last_seq=20 events=10",
    ]
    (status,) = json.loads(run.stdout)["result"]["outputs"]
    assert (status["rows"], status["lost_events"]) == (25, 26)


def _removed_up_to_thirty(directory: Path) -> None:
    with Running(directory) as running:
        running.store.remove_channel("t")
        running.store.commit("t", numbers(31, 5))
        running.store.flush()


@pytest.mark.parametrize("ends", [False, True])
def test_a_progress_report_has_what_its_own_batch_has_lost(tmp_path: Path, ends: bool) -> None:
    made(tmp_path / "d", segments=3, events=10)
    _removed_up_to_thirty(tmp_path / "d")
    with Running(tmp_path / "d") as running:
        options = {"addr": f"http://127.0.0.1:{running.port}", "channel": "t"}
        reader = stream_of({**options, "failOnDataLoss": "false"})
        if ends:
            reader.prepareForTriggerAvailableNow()
        assert reader.reportLatestOffset() == {"t": 36}
        end = reader.latestOffset({"t": 5}, reader.getDefaultReadLimit())
        assert lost_in(reader.reportLatestOffset()) == 26, "Spark asks for it between the offset and the plan"
        reader.partitions({"t": 5}, end)
        assert reader.reportLatestOffset() == {"t": 36, "events lost": {"t": 26}}
        strict = stream_of(options)
        fill(running.store, "t", segments=1, events=1)
        with pytest.raises(EventsGone):
            strict.partitions({"t": 5}, strict.latestOffset({"t": 5}, strict.getDefaultReadLimit()))
