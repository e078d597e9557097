"""Run seeds: `python -m holdfast.testing.simulation --first 1 --count 1000`; one again, with its trace: `--seed 17`.

Exits with 1 if a seed failed. Each failure is printed with the command that shows it again.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import traceback
from collections import Counter

from holdfast.clock import NS_PER_S, SystemClock
from holdfast.testing.simulation.world import Result, World


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one seed and print its trace")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--count", type=int, default=100, help="how many seeds (default: 100)")
    parser.add_argument("--step", type=int, default=1, help="from one seed to the next, to share seeds among processes")
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    parser.add_argument("--hashes", action="store_true", help="print the hash of each trace")
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # what the product logs is in the trace, as far as it matters
    if chosen.seed is not None:
        return _show(chosen.seed)
    return _run(chosen)


def _show(seed: int) -> int:
    world = World(seed, tracing=True)
    try:
        verdict, code = f"seed {seed} is fine: {world.run().happenings} happenings", 0
    except Exception:
        verdict, code = traceback.format_exc(), 1
    for line in world.lines:
        _say(line)
    _say(verdict)
    _say(f"trace {world.trace_hash}")
    return code


def _run(chosen: argparse.Namespace) -> int:
    clock = SystemClock()
    began_ns = clock.monotonic_ns()
    failed: list[int] = []
    faults: Counter[str] = Counter()
    seeds = virtual_s = steps = 0.0
    for number in range(chosen.count):
        seed = chosen.first + number * chosen.step
        outcome = _outcome(seed)
        seeds += 1
        if isinstance(outcome, str):
            failed.append(seed)
            _say(f"seed {seed} FAILED: {outcome}\n    python -m holdfast.testing.simulation --seed {seed}")
        else:
            faults += outcome.faults
            virtual_s += outcome.virtual_s
            steps += outcome.steps
            if chosen.hashes:
                _say(f"{seed} {outcome.trace_hash}")
        if chosen.seconds is not None and (clock.monotonic_ns() - began_ns) / NS_PER_S >= chosen.seconds:
            break
    took_s = (clock.monotonic_ns() - began_ns) / NS_PER_S
    _say(
        f"{seeds:.0f} seeds, {len(failed)} failed, in {took_s:.0f} s ({seeds / took_s:.1f} seeds/s); "
        f"{virtual_s / 3600:.1f} virtual hours, {steps:.0f} steps"
    )
    for kind, count in faults.most_common():
        _say(f"{count:9} {kind}")
    return 1 if failed else 0


def _outcome(seed: int) -> Result | str:
    """What came of a seed, or what is wrong."""
    gc.disable()  # a run leaves little behind, and looking at it again and again takes a tenth of the time
    try:
        return World(seed).run()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    finally:
        gc.enable()
        gc.collect()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
