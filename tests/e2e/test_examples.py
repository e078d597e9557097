"""The examples run as they stand, in processes of their own. Process death (SIGKILL) where an example kills itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from holdfast import Store
from tests.tidy.tree import ROOT

EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: object) -> str:
    """What an example prints; it must end well."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.guarantee("G6")
@pytest.mark.guarantee("G7")
def test_dual_exporters_lose_nothing_across_a_kill(tmp_path: Path) -> None:
    told = run("dual_exporters.py", tmp_path / "example")
    assert "the first process ended with -9" in told
    assert "nothing was lost" in told
    tables = re.findall(r"otlp_exporter\s+│\s+(\d+)\s+│\s+(\S+)\s+│", told)
    before, after, end = tables
    assert before == after, "the restart changed neither mark nor gap set"
    assert before[1] != "-", "it was killed with a hole below what it had confirmed"
    assert end == ("1200", "-")
    files = list((tmp_path / "example" / "parquet").glob("*.parquet"))
    assert sum(pq.read_metadata(file).num_rows for file in files) == 1200
    with Store.open(tmp_path / "example" / "store") as store:
        assert [row["seq"] for part in store.read("logs.dead") for row in part.to_pylist()] == [1043]
        assert list(store.read("logs")) == [], "evicted once both had acked it"


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in tests] == []
