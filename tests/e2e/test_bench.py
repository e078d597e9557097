"""The benchmarks still run, and what they write has the shape that programs read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 100.0
CONDITIONS = {"commit", "processor", "memory", "system", "filesystem", "Python", "pyarrow", "load at the start"}
RESULT = {"bench", "case", "figure", "unit", "limit", "limit_is", "ratio", "target", "passed", "also"}


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=PATIENCE_S)


@pytest.mark.long
def test_bench_writes_figures_with_limits_as_json(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = run_bench("commit_async", "--quick", "--json", str(file), "--dir", str(tmp_path / "scratch"))
    assert done.returncode == 0, done.stderr
    assert "commit_async" in done.stdout
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found.keys() == {"quick", "conditions", "results"}
    assert found["quick"] is True
    assert found["conditions"].keys() == CONDITIONS
    assert all(isinstance(value, str) and value for value in found["conditions"].values())
    (result,) = found["results"]
    assert result.keys() == RESULT
    assert (result["bench"], result["unit"], result["limit_is"] != "") == ("commit_async", "commits/s", True)
    assert result["ratio"] == pytest.approx(result["figure"] / result["limit"])
    assert result["passed"] is (result["figure"] >= 30_000)
    assert result["also"]["commits per sync"] >= 1
    assert list((tmp_path / "scratch").iterdir()) == [], "what was measured is left behind"


@pytest.mark.long
def test_rough_figures_are_not_kept(tmp_path: Path) -> None:
    history = ROOT / "docs" / "performance-history.jsonl"
    before = history.read_bytes()
    done = run_bench("commit_async", "--quick", "--keep", "--dir", str(tmp_path / "scratch"))
    assert done.returncode == 2
    assert "rough" in done.stderr
    assert history.read_bytes() == before
    assert not (tmp_path / "scratch").exists(), "it measured first"
