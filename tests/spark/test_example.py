"""The notebook example runs as it stands, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT


@pytest.mark.timeout(300)
def test_notebook_quickstart_reads_nothing_twice(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "notebook_quickstart.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.endswith(" events")]
    assert told == ["first run: 1000 events", "second run: 500 events", "in the lake: 1500 events"]
