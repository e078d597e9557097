"""What a Python worker of Spark looks at for garbage after each task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.stores import made
from tests.tidy.tree import ROOT

COUNTS = """
import gc
from holdfast.spark.worker import settle
for _ in range(4):
    settle()
    kept = [[] for _ in range(1000)]
    print(gc.get_freeze_count())
"""


READS = """
import gc
from holdfast.spark.batch import read_task
from holdfast.spark.options import read_options
from tests.spark.stores import batch_of
options = {options!r}
reader = batch_of(options)
for task in reader.partitions():
    print(sum(batch.num_rows for batch in read_task(read_options(options), task, reader._schema)))
    print(gc.get_freeze_count())
"""


def test_worker_that_has_read_does_not_look_again_at_what_it_has_loaded(tmp_path: Path) -> None:
    options = made(tmp_path / "d", segments=1, events=5)
    command = [sys.executable, "-c", READS.format(options=options)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    rows, frozen = map(int, told)
    assert rows == 5
    assert frozen > 10_000, "all that was loaded until the task began"


def test_only_what_the_first_two_tasks_load_is_kept_for_good() -> None:
    told = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True).stdout.split()
    first, second, third, fourth = map(int, told)
    assert first < second
    assert second == third == fourth


SPEAKING = """
import importlib.machinery, logging, sys, types
sys.modules["__main__"] = types.ModuleType("__main__")
if {name!r}:
    sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec({name!r}, None)
from holdfast.spark.worker import settle
from holdfast.telemetry import event
settle()
settle()
event("first.warning", level=logging.WARNING, n=1)
event("some.news")
logging.basicConfig(stream=sys.stdout)
event("second.warning", level=logging.WARNING)
"""


@pytest.mark.parametrize(("name", "warned"), [("pyspark.daemon", 1), ("holdfast.cli.main", 0), ("", 0)])
def test_warnings_of_sparks_own_processes_go_to_stderr_unless_a_program_takes_them(name: str, warned: int) -> None:
    told = subprocess.run(
        [sys.executable, "-c", SPEAKING.format(name=name)], capture_output=True, text=True, check=True
    )
    lines = told.stderr.splitlines()
    assert len(lines) == warned
    assert all(line.endswith(" holdfast WARNING first.warning n=1") for line in lines)
    assert told.stdout == "WARNING:holdfast:second.warning\n"
