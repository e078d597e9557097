"""Bent inputs for every decoder: each is taken, or refused with a documented error; nothing dies, hangs or swells."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import figures
from tests.security.fuzzing import read_note, run
from tests.security.mutation import bent
from tests.security.targets import Target, targets

ROOT = Path(__file__).parents[2]
NAMES = [target.name for target in targets()]
INPUTS = {"quick": 1_500, "long": 1_100_000}
ROUNDS = {"quick": 1, "long": 11}
"""Each is a process of its own, so that a swollen one does not hide the next."""


def fuzz(folder: Path, seed: int, inputs: int) -> list[dict[str, object]]:
    """A process that fuzzes; how it went."""
    command = [sys.executable, "-m", "tests.security.fuzzing", str(seed), str(inputs), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        at = (folder / "target").read_text(encoding="utf-8") if (folder / "target").exists() else "the start"
        note = read_note(folder / "now") if (folder / "now").exists() else b""
        pytest.fail(f"the fuzzer died ({done.returncode}) at {at}, input {note[:400]!r}\n{done.stderr[-3000:]}")
    found: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize(
    "profile", ["quick", pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(7200)])]
)
def test_every_decoder_takes_or_refuses_whatever_comes(tmp_path: Path, profile: str) -> None:
    found = [
        result for seed in range(ROUNDS[profile]) for result in fuzz(tmp_path, seed, INPUTS[profile] // ROUNDS[profile])
    ]
    failures = [f"{result['target']}: {text}" for result in found for text in result["failures"]]  # type: ignore[attr-defined]
    assert failures == []
    assert {result["target"] for result in found} == set(NAMES)
    figures.note(
        "fuzz",
        "every decoder takes or refuses whatever comes; no crash, no hang, memory bounded",
        profile=profile,
        decoders=len(NAMES),
        inputs=sum(int(str(result["inputs"])) for result in found),
        taken=sum(int(str(result["taken"])) for result in found),
    )


def test_fuzzer_finds_a_decoder_that_raises_something_else(tmp_path: Path) -> None:
    """The fuzzer itself: a decoder with a bug behind a length is found, one without is not."""

    def careless(data: bytes) -> None:
        if len(data) < 4:
            raise ValueError("short")

    good = [bytes(range(40))]
    assert run(Target("careless", lambda: good, careless), 2_000, 1, tmp_path)["failures"]
    assert run(Target("careful", lambda: good, careless, allowed=(ValueError,)), 2_000, 1, tmp_path)["failures"] == []


def test_bent_inputs_are_the_same_for_the_same_seed() -> None:
    good = [b"one two three", bytes(64)]
    for as_text in (False, True):
        runs = [
            [bent(good, chance, as_text=as_text) for _ in range(500)] for chance in (random.Random(3), random.Random(3))
        ]
        assert runs[0] == runs[1]
        assert len(set(runs[0])) > 300


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rows as JSON", b'[{"\xf4": 1}]'),
        ("rows as JSON", b'[{"a": "\xed\xa0\x80"}]'),
        ("token file", b'{"a":' * 5_000),
        ("manifest of a tier", b"[" * 5_000),
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
