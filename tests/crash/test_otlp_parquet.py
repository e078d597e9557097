"""Power goes at every disk call of the Parquet exporter: files are whole, and delivering again adds what is missing.

Power loss, on the crash disk.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.clock import SystemClock
from holdfast.dataflow.exporters import parquet
from holdfast.dataflow.exporters.parcels import Parcel
from holdfast.testing import CrashFilesystem, PowerCut
from tests.unit.dataflow.otlp_samples import logs_request
from tests.unit.dataflow.test_exporters import parcel_of, raw

REQUESTS = 4
SEEDS = range(3)


def parcels() -> list[Parcel]:
    """Two parcels of two dates."""
    bodies = [logs_request(2, first=10 * number).SerializeToString() for number in range(REQUESTS)]
    return [parcel_of(raw(*bodies[:2]), 1), parcel_of(raw(*bodies[2:]), 3, day=1)]


def deliver(disk: CrashFilesystem) -> int:
    """Deliver everything; how many parcels were done before power went."""
    exporter = parquet.make(parquet.Settings(path="/lake"), filesystem=disk, clock=SystemClock())
    done = 0
    for parcel in parcels():
        try:
            exporter.deliver(parcel)
        except PowerCut:
            break
        done += 1
    return done


def seqs(disk: CrashFilesystem) -> list[int]:
    """The seqs in all files under their final names; each must be a whole Parquet file."""
    found: list[int] = []
    for path in disk.paths():
        if path.suffix == ".parquet":
            found += pq.read_table(pa.BufferReader(disk.read_bytes(path))).column("_seq").to_pylist()
    return sorted(found)


def calls() -> int:
    disk = CrashFilesystem()
    assert deliver(disk) == 2
    return disk.calls


@pytest.mark.parametrize("seed", SEEDS)
def test_files_are_whole_after_a_power_cut_and_complete_after_a_repeat(seed: int) -> None:
    for call in range(1, calls() + 1):
        disk = CrashFilesystem(seed=seed)
        disk.cut_at(call)
        done = deliver(disk)
        left = disk.after_power_cut(seed)
        confirmed = [1, 1, 2, 2, 3, 3, 4, 4][: 4 * done]
        assert [seq for seq in seqs(left) if seq in confirmed] == confirmed, f"lost after call {call}"
        assert deliver(left) == 2
        assert seqs(left) == [1, 1, 2, 2, 3, 3, 4, 4], f"after call {call}"


def test_the_layout_is_the_documented_one() -> None:
    disk = CrashFilesystem()
    deliver(disk)
    assert (
        Path("/lake/otlp.logs/date=2026-05-04/part-00000000000000000001-00000000000000000002.parquet") in disk.paths()
    )
