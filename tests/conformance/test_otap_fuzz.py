"""Batches that strangers bent: whatever the bytes are, the answer is rows, or a refusal that is one of ours.

Bytes are bent at three depths: anywhere in the message, inside of one table's Arrow messages, and in the values of a
table that is well-formed Arrow, where ids point nowhere and types are of another kind.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import LimitReached, StreamBroken, WireError
from holdfast.wire.otap import cbor, ids
from holdfast.wire.otap.decode import decode
from holdfast.wire.otap.encode import encode
from holdfast.wire.otap.limits import Limits
from holdfast.wire.otap.messages import ArrowPayload, Batch, read_batch, read_status, write_batch
from holdfast.wire.otap.reading import StreamReader, Tables
from holdfast.wire.otap.writing import StreamWriter
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.encode import encode as encode_otlp
from holdfast.wire.otlp.signals import Signal
from tests.security.mutation import bent
from tests.unit.dataflow.otlp_samples import sample

ROUNDS = 500 if os.environ.get("HOLDFAST_PROFILE") == "prove" else 25
SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)
LIMITS = Limits(1 << 20)

pytestmark = pytest.mark.timeout(600)


def rows_of(signal: Signal) -> pa.RecordBatch:
    """What OTLP stores of the sample."""
    return decode_rows(signal, pa.array([sample(signal).SerializeToString()] * 2, pa.binary()))


def stream(signal: Signal, compression: str = "none") -> list[bytes]:
    """Two batches of one stream: one with schemas and dictionaries, one without."""
    writer, tables = StreamWriter(signal, compression=compression), encode(signal, rows_of(signal))
    return [writer.write(tables)[1] for _ in range(2)]


def opened(signal: Signal, messages: list[bytes], *, sent_on: bool = False) -> bool:
    """Whether all messages could be read; a refusal must be one of ours, and rows must be sound."""
    reader = StreamReader(signal, LIMITS)
    try:
        for message in messages:
            rows = decode(signal, reader.read(read_batch(message)), LIMITS).rows
            rows.validate(full=True)
            if rows.num_rows and sent_on:  # what is stored is no surprise to an exporter
                encode(signal, rows)
                again = decode_rows(signal, pa.array([encode_otlp(signal, rows)], pa.binary()))
                assert again.num_rows == rows.num_rows
    except (WireError, LimitReached, StreamBroken):
        return False
    return True


@SIGNALS
def test_bent_messages_give_rows_or_a_refusal(signal: Signal) -> None:
    chance, messages = random.Random(20261116), stream(signal)
    assert opened(signal, messages)
    accepted = 0
    for at in range(ROUNDS):
        bad = list(messages)
        bad[at % 2] = bent([bad[at % 2]], chance)
        accepted += opened(signal, bad)
    assert accepted < ROUNDS


@SIGNALS
def test_bent_tables_give_rows_or_a_refusal(signal: Signal) -> None:
    chance, plain, packed = random.Random(20261117), stream(signal), stream(signal, "zstd")
    accepted = 0
    for at in range(ROUNDS):
        messages = chance.choice((plain, packed))
        batch = read_batch(messages[at % 2])
        payloads = list(batch.payloads)
        which = chance.randrange(len(payloads))
        record = bytearray(payloads[which].record)
        for _ in range(chance.randint(1, 3)):
            record[chance.randrange(len(record))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        payloads[which] = ArrowPayload(payloads[which].schema_id, payloads[which].kind, bytes(record))
        bad = list(messages)
        bad[at % 2] = write_batch(Batch(batch.batch_id, payloads))
        accepted += opened(signal, bad)
    assert 0 < accepted < ROUNDS


KINDS: list[Callable[[random.Random, int], pa.Array]] = [
    lambda chance, rows: pa.array([chance.randrange(4) for _ in range(rows)], pa.uint16()),
    lambda chance, rows: pa.array([chance.getrandbits(32) for _ in range(rows)], pa.uint32()),
    lambda chance, rows: pa.array([chance.randrange(10) for _ in range(rows)], pa.uint8()),
    lambda chance, rows: pa.array([chance.choice((-1, 2**62, None)) for _ in range(rows)], pa.int64()),
    lambda chance, rows: pa.array([chance.choice(("", "a", None)) for _ in range(rows)], pa.string()),
    lambda chance, rows: pa.array([chance.choice((b"\x81", b"\xa1\x61a\x01", None)) for _ in range(rows)], pa.binary()),
    lambda chance, rows: pa.array([chance.choice((float("nan"), 0.0, None)) for _ in range(rows)], pa.float64()),
    lambda chance, rows: pa.array([chance.choice((True, None)) for _ in range(rows)], pa.bool_()),
    lambda _chance, rows: pa.nulls(rows),
    lambda _chance, rows: pa.array([[1.0]] * rows, pa.list_(pa.float64())),
    lambda _chance, rows: pa.array([{"id": 1}] * rows, pa.struct([("id", pa.uint16())])),
    lambda _chance, rows: pa.array(["a"] * rows).dictionary_encode(),
    lambda _chance, rows: pa.array([2**63 - 1] * rows, pa.timestamp("ns")),
    lambda _chance, rows: pa.array([-(2**63)] * rows, pa.duration("ns")),
    lambda chance, rows: pa.array([bytes(16) if chance.randrange(2) else None] * rows, pa.binary(16)),
]


def twisted(tables: Tables, chance: random.Random) -> Tables:
    """Tables with one to three columns of other values, of another kind, or gone."""
    found = dict(tables)
    for _ in range(chance.randint(1, 3)):
        kind = chance.choice(list(found))
        table = found[kind]
        at = chance.randrange(table.num_columns)
        name = table.schema.names[at]
        if chance.randrange(5) == 0:
            found[kind] = table.drop_columns([name]) if table.num_columns > 1 else table
        elif chance.randrange(8) == 0:
            found[kind] = pa.concat_batches([table, table])
        else:
            column = chance.choice(KINDS)(chance, table.num_rows)
            metadata = chance.choice((None, {"encoding": "plain"}, {"encoding": "delta"}, {"encoding": "other"}))
            found[kind] = table.set_column(at, pa.field(name, column.type, metadata=metadata), column)
    return found


@SIGNALS
def test_tables_with_other_values_give_rows_or_a_refusal(signal: Signal) -> None:
    chance, tables = random.Random(20261118), encode(signal, rows_of(signal))
    accepted = 0
    for _ in range(ROUNDS):
        writer = StreamWriter(signal)
        accepted += opened(signal, [writer.write(twisted(tables, chance))[1]], sent_on=True)
    assert 0 < accepted < ROUNDS


def test_bent_values_and_statuses_are_read_or_refused() -> None:
    chance = random.Random(20261119)
    value = {"a": [1, -2, 2.5, None, True, "text"], "b": {"c": "x" * 300, "d": [2**40, []]}}
    data = cbor.write(value)
    assert cbor.read(data) == value
    for _ in range(10 * ROUNDS):
        found = bent([data], chance)
        for read in (cbor.read, read_status):
            try:
                read(found)
            except WireError:
                continue


def test_ids_of_any_batch_survive_both_encodings() -> None:
    chance = np.random.default_rng(1)
    for _ in range(ROUNDS):
        found = np.sort(chance.integers(0, 1 << 16, chance.integers(1, 50)))
        equal = np.append(False, chance.integers(0, 2, len(found) - 1).astype(bool))
        delta = pa.array(ids.to_delta(found), pa.uint16())
        quasi = pa.array(ids.to_quasi_delta(found, equal), pa.uint16())
        assert (ids.from_delta(delta) == found).all()
        assert (ids.from_quasi_delta(quasi, equal) == found).all()
