"""Bent inputs for every decoder: each is taken, or refused with a documented error; nothing dies, hangs or swells."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import pytest

from holdfast.clock import NS_PER_S, SystemClock
from holdfast.errors import WireError
from tests.faults import figures
from tests.security.fuzzing import portions, read_note, run
from tests.security.mutation import bent
from tests.security.targets import Target, targets

ROOT = Path(__file__).parents[2]
NAMES = [target.name for target in targets()]
INPUTS = {"quick": 3_000, "long": 1_100_000}
ROUNDS = {"quick": 1, "long": 11}
"""Each is a process of its own, so that a swollen one does not hide the next."""
AT_ONCE = 2
ROUNDS_S_MAX = {"quick": 600, "long": 7_000}
"""For all rounds; a process that is still there then hangs where it takes no signal."""
TELLS_S = 30
"""So long before that it says where it is, and ends."""
FLOOR = {"quick": 10, "long": 10_000}
"""What each decoder gets at least."""


def fuzz(folder: Path, seed: int, inputs: int, end_ns: int, *names: str) -> list[dict[str, object]]:
    """A process that fuzzes; how it went."""
    left_s = max(1.0, (end_ns - SystemClock().monotonic_ns()) / NS_PER_S)
    watch_s = max(0.5, left_s - TELLS_S)
    command = [sys.executable, "-m", "tests.security.fuzzing", str(seed), str(inputs), str(folder), str(watch_s)]
    try:
        done = subprocess.run([*command, *names], cwd=ROOT, capture_output=True, text=True, check=False, timeout=left_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the fuzzer hangs at {where(folder)}")
    if done.returncode != 0:
        pytest.fail(f"the fuzzer died ({done.returncode}) at {where(folder)}\n{done.stderr[-3000:]}")
    found: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def where(folder: Path) -> str:
    """The decoder and the input that a fuzzer was at."""
    at = (folder / "target").read_text(encoding="utf-8") if (folder / "target").exists() else "the start"
    note = read_note(folder / "now") if (folder / "now").exists() else b""
    return f"{at}, input {note[:400]!r}"


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize(
    "profile",
    [
        pytest.param("quick", marks=pytest.mark.timeout(900)),
        pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
def test_every_decoder_takes_or_refuses_whatever_comes(tmp_path: Path, profile: str) -> None:
    rounds = range(ROUNDS[profile])
    folders = [tmp_path / f"round-{seed}" for seed in rounds]
    for folder in folders:
        folder.mkdir()
    each = INPUTS[profile] // ROUNDS[profile]
    end_ns = SystemClock().monotonic_ns() + ROUNDS_S_MAX[profile] * NS_PER_S
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [
            result for results in pool.map(fuzz, folders, rounds, repeat(each), repeat(end_ns)) for result in results
        ]
    failures = [f"{result['target']}: {text}" for result in found for text in result["failures"]]  # type: ignore[attr-defined]
    assert failures == []
    inputs = Counter({name: 0 for name in NAMES})
    for result in found:
        inputs[str(result["target"])] += int(str(result["inputs"]))
    assert set(inputs) == set(NAMES)
    assert min(inputs.values()) >= FLOOR[profile]
    figures.note(
        "fuzz",
        "every decoder takes or refuses whatever comes; no crash, no hang, memory bounded",
        profile=profile,
        decoders=len(NAMES),
        inputs=inputs.total(),
        fewest_of_a_decoder=min(inputs.values()),
        taken=sum(int(str(result["taken"])) for result in found),
        slowest_ms=max(int(str(result["slowest_ms"])) for result in found),
    )


def test_fuzzer_finds_a_decoder_that_raises_something_else(tmp_path: Path) -> None:
    """The fuzzer itself: a decoder with a bug behind a length is found, one without is not."""

    def careless(data: bytes) -> None:
        if len(data) < 4:
            raise ValueError("short")

    good = [bytes(range(40))]
    assert run(Target("careless", lambda: good, careless), 2_000, 1, tmp_path)["failures"]
    assert run(Target("careful", lambda: good, careless, allowed=(ValueError,)), 2_000, 1, tmp_path)["failures"] == []


ENDLESS = """
import sys
from pathlib import Path
from tests.security import fuzzing
from tests.security.targets import Target
good = b"a" * 64
endless = Target("endless", lambda: [good], lambda data: data == good or sum(range(1 << 60)))
fuzzing.targets = lambda: [endless]
fuzzing.main(1, 1_000, Path(sys.argv[1]), 1.0)
"""


def test_fuzzer_that_hangs_where_it_takes_no_signal_ends_and_its_input_is_known(tmp_path: Path) -> None:
    """A sum is one call of C: no handler of Python runs before it returns."""
    command = [sys.executable, "-c", ENDLESS, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert done.stderr.startswith("Timeout (0:00:01)!")
    assert "line 7 in <lambda>" in done.stderr
    assert where(tmp_path).startswith("endless, input b'")


def test_bent_inputs_are_the_same_for_the_same_seed() -> None:
    good = [b"one two three", bytes(64)]
    for as_text in (False, True):
        runs = [
            [bent(good, chance, as_text=as_text) for _ in range(500)] for chance in (random.Random(3), random.Random(3))
        ]
        assert runs[0] == runs[1]
        assert len(set(runs[0])) > 300


def test_every_decoder_gets_its_floor_and_fast_ones_the_rest() -> None:
    chosen = targets()
    counts = portions(chosen, 100_000)
    assert 100_000 <= sum(counts) <= 100_000 + len(chosen)
    assert min(counts) == 1_000
    assert counts[NAMES.index("HFA1 frame")] > 5_000
    assert portions(chosen[:1], 10) == [10]


def test_fitting_leaves_good_inputs_readable_and_takes_bent_ones_further() -> None:
    fitted = {target.name: (target, target.fit) for target in targets() if target.fit is not None}
    for target, fit in fitted.values():
        assert all(target.survives(fit(data)) for data in target.good()), target.name
    requests, fit = fitted["consume request"]
    shorter = requests.good()[0][:-8]
    with pytest.raises(WireError, match="the head has"):
        requests.decode(shorter)
    with pytest.raises(WireError, match="HELLO"):
        requests.decode(fit(shorter))


def _reply(head: bytes) -> bytes:
    """A SETTLED with this head."""
    return b"\x01\x85\0\0" + len(head).to_bytes(4, "little") + head + bytes(-len(head) % 8)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rows as JSON", b'[{"\xf4": 1}]'),
        ("rows as JSON", b'[{"a": "\xed\xa0\x80"}]'),
        ("token file", b'{"a":' * 5_000),
        ("manifest of a tier", b"[" * 5_000),
        ("manifest of a table", b"[" * 5_000),
        ("rejection of a slot", b'{"\xff": 1}'),
        ("body of an admin call", b'{"\xff": 1}'),
        ("consume reply", _reply(b"\x81\xa1a" + b"\x91" * 5_000 + b"\xc0")),
        ("connect string", b"ws::addr=h:" + b"9" * 5_000 + b";"),
        ("pipeline file", b'metrics: "127.0.0.1:' + b"9" * 5_000 + b'"\nsources: {t: {channel: t}}\n'),
        ("pipeline file", b'metrics: "127.0.0.1:\xc2\xb2"\nsources: {t: {channel: t}}\n'),
        ("pipeline file", b"sources: {t: {channel: t, addr: 'http://127.0.0.1:9[01'}}\n"),
    ],
)
def test_inputs_that_were_found_once_are_refused(name: str, data: bytes) -> None:
    (target,) = [target for target in targets() if target.name == name]
    assert not target.survives(data)


def test_attribute_with_two_values_keeps_one_with_its_own_type() -> None:
    """Protobuf lets a sender write two members of a `oneof`; an exporter must be able to send on what was kept."""
    (target,) = [target for target in targets() if target.name == "OTLP logs"]
    both = b"\x0a\x00\x18\x05"  # string_value "", int_value 5
    attribute = b"\x0a\x01k\x12" + bytes([len(both)]) + both
    record = b"\x32" + bytes([len(attribute)]) + attribute
    scope = b"\x12" + bytes([len(record)]) + record
    logs = b"\x12" + bytes([len(scope)]) + scope
    assert target.survives(b"\x0a" + bytes([len(logs)]) + logs)
