"""The process whose memory `memory.py` watches: it writes a backlog and reads it back.

A program of its own that imports no more than a user's would: what the benchmark itself needs does not count. Nor does
pandas, which pyarrow loads where it is installed: 40 MB that are not ours.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

from bench.workload import CHANNEL, SIZES, events, touch
from holdfast.store.store import Store


class NoPandas(MetaPathFinder):
    """Pandas is not there, whoever looks for it."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Refuse one name, leave the others to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def phase_over() -> None:
    """Tell the watcher, wait for it, and begin the next phase with a fresh peak."""
    print("over", flush=True)
    sys.stdin.readline()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def backlog(directory: str, size: int) -> None:
    """Write, then read."""
    batch = events(SIZES["64 KiB"])
    calls = size // len(batch.serialize())
    with Store.open(directory) as store:
        phase_over()
        for _ in range(calls):
            store.commit(CHANNEL, batch)
        store.flush()
        phase_over()
        rows = 0
        for found in store.read(CHANNEL):
            rows += found.num_rows
            touch(found)
        assert rows == calls * batch.num_rows
        phase_over()


if __name__ == "__main__":
    sys.meta_path.insert(0, NoPandas())
    backlog(sys.argv[1], int(sys.argv[2]))
