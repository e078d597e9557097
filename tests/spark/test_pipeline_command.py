"""`holdfast pipeline` as a process: what it prints, how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from holdfast.spark.tables import read_manifest
from tests.spark.stores import made

PATIENCE_S = 240.0
FILE = """\
name: numbers
sources:
  t: {channel: t, path: d, options: {maxEventsPerTrigger: 10}}
steps:
  - name: even
    filter: n % 2 = 0
outputs:
  lake: {from: even, format: parquet, path: lake}
checkpoint: checkpoint
trigger: 100ms
master: local[2,4]
conf:
  spark.ui.enabled: false
  spark.log.level: ERROR
  spark.driver.memory: 600m
  spark.python.authenticate.socketTimeout: 120s
"""
BROKEN = FILE.replace("from: even", "from: evn").replace("trigger: 100ms", "triger: 100ms")


def holdfast(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "holdfast.cli.main", "pipeline", "run", "p.yaml"]
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        watch = threading.Timer(PATIENCE_S, process.kill)
        watch.start()
        try:
            yield process
        finally:
            watch.cancel()
            process.kill()


def test_validate_tells_all_problems_and_exits_with_two(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(BROKEN)
    told = holdfast("pipeline", "validate", "p.yaml", folder=tmp_path)
    assert told.returncode == 2
    assert told.stderr.splitlines() == [
        "holdfast: p.yaml:8: outputs.lake.from: there is no source or step 'evn'; did you mean even?; "
        "there are t, even",
        "holdfast: p.yaml:10: triger: is no key of a pipeline; did you mean trigger?; there are checkpoint, conf, "
        "master, metrics, name, outputs, py_files, restart, sources, steps, trigger",
    ]
    answer = json.loads(holdfast("pipeline", "validate", "p.yaml", "--json", folder=tmp_path).stdout)
    assert answer["ok"] is False
    assert [(problem["line"], problem["key"]) for problem in answer["error"]["problems"]] == [
        (8, "outputs.lake.from"),
        (10, "triger"),
    ]


def test_a_plan_names_formats_that_spark_has_not_got(tmp_path: Path) -> None:
    made(tmp_path / "d")
    outputs = "  typo: {from: even, format: parqet, path: out}\n  absent: {from: even, format: kafka}\n"
    outputs += "  none: {from: even, format: noop}\n"
    (tmp_path / "p.yaml").write_text(FILE.replace("checkpoint: checkpoint", f"{outputs}checkpoint: checkpoint"))
    told = holdfast("pipeline", "validate", "p.yaml", "--plan", folder=tmp_path)
    assert told.returncode == 2, told.stderr
    lines = [line for line in told.stderr.splitlines() if line.startswith("holdfast: ")]
    assert len(lines) == 2
    assert "p.yaml:9: outputs.typo.format: 'parqet' is not one of" in lines[0]
    assert "did you mean parquet?" in lines[0]
    assert "p.yaml:10: outputs.absent.format: 'kafka'" in lines[1]
    assert "Kafka Integration Guide" in lines[1]


def test_graph_draws_a_pipeline_that_nothing_was_started_for(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(FILE)
    drawn = holdfast("pipeline", "graph", "p.yaml", folder=tmp_path)
    assert drawn.returncode == 0
    assert "└─► even  filter n % 2 = 0" in drawn.stdout
    assert holdfast("pipeline", "validate", "p.yaml", folder=tmp_path).returncode == 0


def run_until_sigterm(folder: Path) -> list[str]:
    """Start it, ask it to stop after the first batch, and see it end well; what it printed."""
    (folder / "p.yaml").write_text(FILE)
    made(folder / "d", segments=4, events=10)
    with running(folder) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "batch" in line:
                break
        process.send_signal(signal.SIGTERM)
        lines += process.stdout.readlines()
        assert process.wait(PATIENCE_S) == 0, (folder / "errors").read_text()
    return lines


def stored(folder: Path) -> list[int]:
    """What the table holds."""
    table = ds.dataset(read_manifest(folder / "lake").files, format="parquet").to_table()
    return sorted(table.column("n").to_pylist())


@pytest.mark.guarantee("G8")
@pytest.mark.timeout(700)
def test_sigterm_finishes_the_batch_and_ends_with_zero(tmp_path: Path) -> None:
    lines = run_until_sigterm(tmp_path)
    assert lines[0] == "lake: running\n"
    assert lines[-1].startswith("lake: stopped, batch ")
    batches = len(list((tmp_path / "checkpoint" / "lake" / "commits").glob("[0-9]*")))
    assert batches >= 1
    found = stored(tmp_path)
    assert len(found) in (5 * batches, 5 * batches + 5)  # a batch may be in the table that Spark has not noted as done
    assert found == list(range(2, 2 * len(found) + 1, 2))


@pytest.mark.long
@pytest.mark.guarantee("G8")
@pytest.mark.timeout(1400)
def test_the_run_after_a_sigterm_goes_on_and_ends_by_itself(tmp_path: Path) -> None:
    run_until_sigterm(tmp_path)
    run = holdfast("pipeline", "run", "p.yaml", "--available-now", "--json", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert answer["ok"]
    assert answer["result"]["outputs"][0]["state"] == "done"
    assert stored(tmp_path) == list(range(2, 41, 2))


@pytest.mark.long
@pytest.mark.timeout(700)
def test_a_failure_for_good_is_exit_code_four_and_a_plan_that_fails_two(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    (tmp_path / "d" / "channels" / "t" / "seg-1.arrow").unlink()
    (tmp_path / "p.yaml").write_text(FILE)
    run = holdfast("pipeline", "run", "p.yaml", folder=tmp_path)
    assert run.returncode == 4
    assert "holdfast: output 'lake' failed after 0 restarts: events 1..10 of channel 't' are gone" in run.stderr
    (tmp_path / "p.yaml").write_text(FILE.replace("n % 2 = 0", "m % 2 = 0"))
    planned = holdfast("pipeline", "validate", "p.yaml", "--plan", folder=tmp_path)
    assert planned.returncode == 2
    assert "p.yaml:6: steps[0].filter: [UNRESOLVED_COLUMN" in planned.stderr
