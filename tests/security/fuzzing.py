"""The fuzzer, in a process of its own: what kills it, hangs it or swells it is found by the test that started it.

    python -m tests.security.fuzzing SEED INPUTS FOLDER SECONDS [TARGET...]

Each decoder gets its floor of the inputs, and by its share of the rest: the slow ones little more, so that many inputs
are not mostly a few slow decoders. The input of now is in a file of the folder before it is decoded, so that it
is there when the process is not. An input that takes too long fails; one that takes no signal either ends the process
after SECONDS, with where it was on standard error. The last line on standard output is the sum as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import math
import mmap
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.security.mutation import INPUT_BYTES_MAX, bent
from tests.security.targets import Target, targets

INPUT_S_MAX = 120.0
"""What one input may take before it is called a hang; machines are slow, hangs are slower."""
GROWTH_BYTES_MAX = 512 << 20
ADDRESS_SPACE_MAX = 16 << 30
"""A length that is believed fails here as MemoryError, before the machine does."""
FLOOR = 0.01
"""Of all inputs, for each decoder."""
_LENGTH_BYTES = 8


class Hang(BaseException):
    """An input that took too long; no decoder catches it."""


def _on_alarm(_number: int, _frame: object) -> None:
    raise Hang


class Notebook:
    """The input of now, where it survives this process."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_LENGTH_BYTES + INPUT_BYTES_MAX)
            self._map = mmap.mmap(file.fileno(), 0)

    def write(self, data: bytes) -> None:
        self._map[:_LENGTH_BYTES] = len(data).to_bytes(_LENGTH_BYTES, "little")
        self._map[_LENGTH_BYTES : _LENGTH_BYTES + len(data)] = data


def read_note(path: Path) -> bytes:
    """The input that a dead process was at."""
    data = path.read_bytes()
    return data[_LENGTH_BYTES:][: int.from_bytes(data[:_LENGTH_BYTES], "little")]


def peak_bytes() -> int:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(target: Target, inputs: int, seed: int, folder: Path) -> dict[str, object]:
    """Bend and decode; what was taken, what was refused, and the first failures with their inputs."""
    chance = random.Random(f"{seed} {target.name}")
    (folder / "target").write_text(target.name, encoding="utf-8")
    good = target.good()
    for data in good:
        assert target.survives(data), f"{target.name}: a good input is refused: {data[:200]!r}"
    notebook = Notebook(folder / "now")
    before, taken, slowest_ns, failures = peak_bytes(), 0, 0, []
    for number in range(inputs):
        data = bent(good, chance, as_text=target.as_text)
        if target.fit is not None and chance.random() < 0.5:
            data = target.fit(data)
        notebook.write(data)
        began_ns = time.process_time_ns()
        signal.setitimer(signal.ITIMER_REAL, INPUT_S_MAX)
        try:
            taken += target.survives(data)
        except (Exception, Hang) as error:
            kept = folder / f"failure-{target.name.replace(' ', '-')}-{number}"
            kept.write_bytes(data)
            failures.append("".join(traceback.format_exception(error)[-4:]) + f"\n{kept}")
            if len(failures) >= 3:
                break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        slowest_ns = max(slowest_ns, time.process_time_ns() - began_ns)
    growth = peak_bytes() - before
    if growth > GROWTH_BYTES_MAX:
        failures.append(f"memory grew by {growth} bytes")
    counts = {"inputs": inputs, "taken": taken, "growth": growth, "slowest_ms": slowest_ns // 1_000_000}
    return {"target": target.name, **counts, "failures": failures}


def portions(chosen: Sequence[Target], inputs: int) -> list[int]:
    """How many inputs each gets."""
    floor = min(FLOOR, 1 / len(chosen)) * inputs
    shares = sum(target.share for target in chosen)
    rest = inputs - floor * len(chosen)
    return [max(1, math.ceil(floor + (rest * target.share / shares if shares else 0))) for target in chosen]


def main(seed: int, inputs: int, folder: Path, seconds: float, *names: str) -> None:
    """All decoders, or those named."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(seconds, exit=True)
    signal.signal(signal.SIGALRM, _on_alarm)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    chosen = [target for target in targets() if not names or target.name in names]
    found = [run(target, count, seed, folder) for target, count in zip(chosen, portions(chosen, inputs), strict=True)]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:])
