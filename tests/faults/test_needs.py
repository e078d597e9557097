"""What a machine lacks is named and counted at the end of every run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_that_needs_a_disk(n):
    pytest.skip("this machine lacks a disk")

@pytest.mark.skipif(True, reason="no network")
def test_that_needs_a_network():
    pass

def test_that_needs_a_disk_too():
    pytest.skip("this machine lacks a disk")

def test_that_needs_nothing():
    pass
"""


def run(folder: Path, *options: str) -> list[str]:
    """What pytest prints at the end, with the summary of this project and nothing else of it."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-c",
        "/dev/null",
        "--rootdir",
        str(folder),
    ]
    ended = subprocess.run(
        [*command, *options, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize("options", [(), ("--numprocesses=1",)], ids=["one process", "a worker"])
def test_every_reason_to_skip_is_named_with_its_count(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_four_needs.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_thing')\n", encoding="utf-8")
    lines = run(tmp_path, *options)
    begin = next(number for number, line in enumerate(lines) if "6 skipped, by reason" in line)
    (_, disk), (_, module), (_, network) = told = [line.split(maxsplit=1) for line in lines[begin + 1 : begin + 4]]
    assert [count for count, _ in told] == ["4", "1", "1"]
    assert (disk, network) == ("this machine lacks a disk", "no network")
    assert "no_such_thing" in module


def test_run_that_skips_nothing_says_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "test_none.py").write_text("def test_that_needs_nothing():\n    pass\n", encoding="utf-8")
    assert not any("skipped" in line for line in run(tmp_path))
