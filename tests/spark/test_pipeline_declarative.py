"""The example for Spark Declarative Pipelines runs as it stands, twice in a row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

PATIENCE_S = 800.0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_declarative_example_reads_nothing_twice_in_two_runs(tmp_path: Path) -> None:
    pytest.importorskip("grpc_status", reason="pyspark[pipelines] is not installed")
    command = [sys.executable, str(ROOT / "examples" / "declarative" / "run.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if line.endswith(" trades")]
    assert told == ["first run: 1000 trades", "second run: 1500 trades"]
