"""Requests that strangers bent: whatever the bytes are, the answer is rows or `WireError`."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from holdfast.dataflow.receivers.inflating import inflate
from holdfast.errors import LimitReached, WireError
from holdfast.wire.otlp.check import check
from holdfast.wire.otlp.decode import decode
from holdfast.wire.otlp.encode import encode
from holdfast.wire.otlp.jsontext import to_protobuf
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.otlp_samples import sample
from tests.unit.dataflow.test_otlp_json import otlp_json

ROUNDS = 20_000 if os.environ.get("HOLDFAST_PROFILE") == "prove" else 400
SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)

INTERESTING = (b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x0a\x00", b"\x0b")


def bent(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one to four changes: a flipped bit, a byte, a cut, a doubled or inserted part."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1) if out else 0
        end = min(len(out), at + chance.randint(1, 16))
        kind = chance.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = chance.randrange(256)
        elif kind == 2:
            del out[at:end]
        elif kind == 3:
            out[at:at] = out[at:end]
        elif kind == 4:
            out[at:at] = chance.choice(INTERESTING)
        else:
            del out[at:]
    return bytes(out)


def survives(work: Callable[[], object]) -> bool:
    """Whether there was an answer; a refusal must be one of ours."""
    try:
        work()
    except (WireError, LimitReached):
        return False
    return True


@SIGNALS
def test_bent_protobuf_gives_rows_or_a_wire_error(signal: Signal) -> None:
    chance, body = random.Random(20261116), sample(signal).SerializeToString()
    accepted = 0
    for _ in range(ROUNDS):
        found = bent(body, chance)
        if survives(lambda found=found: check(signal, found)):  # type: ignore[misc]
            accepted += 1
            # what may be kept can be opened: nothing in the store is a surprise
            rows = decode(signal, pa.array([check(signal, found).request], pa.binary())).rows
            rows.validate(full=True)
            if rows.num_rows:
                again = decode(signal, pa.array([encode(signal, rows)], pa.binary())).rows
                assert again.num_rows == rows.num_rows
        else:
            survives(lambda found=found: decode(signal, pa.array([found], pa.binary())))  # type: ignore[misc]
    assert 0 < accepted < ROUNDS


@SIGNALS
def test_bent_json_gives_a_request_or_a_wire_error(signal: Signal) -> None:
    chance, text = random.Random(20261116), otlp_json(sample(signal)).encode()
    accepted = 0
    for _ in range(ROUNDS):
        found = bent(text, chance)
        accepted += survives(lambda found=found: check(signal, to_protobuf(signal, found)))  # type: ignore[misc]
    assert accepted < ROUNDS


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bent_compression_gives_a_body_or_a_refusal(encoding: str) -> None:
    chance, body = random.Random(20261116), sample(Signal.LOGS).SerializeToString() * 10
    packed = gzip.compress(body) if encoding == "gzip" else pa.Codec("zstd").compress(body, asbytes=True)
    for _ in range(ROUNDS):
        found = bent(packed, chance)
        survives(lambda found=found: inflate(found, encoding, bytes_max=1 << 16))  # type: ignore[misc]
