"""A repeat of an `Idempotency-Key` brings the rows of the first time, or the key was used for something else.

The rows of the first time are in the store, so nothing else has to be kept to tell: what came is compared with what is
stored at the positions of the first time. Rows that are gone are not compared, and what cannot be read, or of which
Arrow cannot say whether it is the same, is believed to be: then the answer is that of a repeat.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.errors import BadRequest, HoldfastError
from holdfast.model.evolution import conform
from holdfast.model.frame import FrameReceipt
from holdfast.server.admin.envelope import Refused
from holdfast.store.event_ids import keep_rows
from holdfast.store.store import Store

SEQ = "_seq"
ROWS_AT_ONCE = 1000
"""Rows that are compared as Python values at the same time, where Arrow finds a difference: it takes NaN for one."""


def check_same(store: Store, channel: str, batch: pa.RecordBatch, receipt: FrameReceipt) -> None:
    """Refuse rows that are not those that the receipt is about."""
    found = receipt.entries[0] if receipt.entries else None
    if found is None or not found.first_seq:
        return
    try:
        events = found.last_seq - found.first_seq + 1
        same = events == batch.num_rows and all(
            _is_same(stored, batch, found.first_seq, channel)
            for stored in store.read(channel, start=found.first_seq, end=found.last_seq, system=[SEQ])
        )
    except (HoldfastError, pa.ArrowException):
        return
    if not same:
        reason = f"this Idempotency-Key was used for {events} other events from seq {found.first_seq} on; nothing was "
        reason += "stored: send other events with another key"
        raise Refused(422, "idempotency_key_reused", reason, where={"channel": channel})


def _is_same(stored: pa.RecordBatch, batch: pa.RecordBatch, first_seq: int, channel: str) -> bool:
    """Whether stored rows are those of the batch that had their positions."""
    rows = stored.column(SEQ).to_numpy(zero_copy_only=False) - first_seq
    is_there = np.zeros(batch.num_rows, np.bool_)
    is_there[rows] = True  # positions only go up
    plain = stored.drop_columns([SEQ])
    try:
        came = keep_rows(conform(batch, plain.schema, channel=channel), is_there.tolist())
    except BadRequest:
        return False
    return came.equals(plain) or all(
        repr(came.slice(start, ROWS_AT_ONCE).to_pylist()) == repr(plain.slice(start, ROWS_AT_ONCE).to_pylist())
        for start in range(0, len(rows), ROWS_AT_ONCE)
    )
