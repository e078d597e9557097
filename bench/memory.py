"""Resident memory of a process that writes a backlog in 64 KiB batches with default settings and reads it all back.

Another process watches it. RSS is what the target is about; its two parts are told as well: RssAnon is memory of our
own, RssFile is mapped page cache (libraries, and segments while they are read), which the kernel takes back when it
needs it. Each peak is of its own moment.
"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

from bench.figures import Result, Target
from bench.workload import GB, MB, ROOT, Bench

TARGET = Target(150, at_least=False)
SAMPLE_S = 0.02
KINDS = ("VmRSS", "RssAnon", "RssFile", "VmHWM")
PHASES = ("empty store", "writing", "reading")


def run(bench: Bench) -> list[Result]:
    """The peak of each phase, and what is left at its end."""
    size = int(bench.scale(3.0 * GB, 0.15 * GB))
    arguments = [sys.executable, "-m", "bench.backlog", str(bench.directory / "memory"), str(size)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as child:
        samples = {phase: _watch(child) for phase in PHASES}
        assert child.stdin is not None
        child.stdin.close()
    assert child.returncode == 0, "the process that was watched failed"
    empty = samples.pop("empty store")[-1]
    results = [Result("memory", "empty store", empty["VmRSS"], "MB", also=_parts(empty))]
    for phase, found in samples.items():
        peak = {kind: max(sample[kind] for sample in found) for kind in KINDS}
        case = f"{phase} {size / GB:.1f} GB"
        results += [
            Result("memory", f"{case}, peak", peak["VmHWM"], "MB", target=TARGET, also=_parts(peak)),
            Result("memory", f"{case}, at the end", found[-1]["VmRSS"], "MB", target=TARGET, also=_parts(found[-1])),
        ]
    return results


def _watch(child: subprocess.Popen[str]) -> list[dict[str, float]]:
    """Samples until the child says that its phase is over; then it goes on."""
    over = threading.Event()

    def listen() -> None:
        assert child.stdout is not None
        child.stdout.readline()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    samples = []
    while not over.wait(SAMPLE_S):
        samples.append(_sample(child.pid))
    samples.append(_sample(child.pid))
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return samples


def _sample(pid: int) -> dict[str, float]:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE))
    return {kind: int(found[kind]) * 1024 / MB for kind in KINDS}


def _parts(sample: dict[str, float]) -> dict[str, float | str]:
    return {"RssAnon": sample["RssAnon"], "RssFile": sample["RssFile"]}
