"""`holdfast tail`: events of a channel as they come, one JSON object per line.

Promise: what is printed under `--durable` is confirmed after it was printed, so a tail that is killed repeats rather
than skips. A lost connection is won back in the background. Ends at `--limit` or at an interrupt; both are exit code 0.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import Any

import msgspec

from holdfast.cli.answer import ExitCode
from holdfast.cli.send import DEFAULT_CONF
from holdfast.config.values import whole_number
from holdfast.consumer.consumer import Consumer
from holdfast.consumer.messages import Delivery
from holdfast.errors import BadRequest
from holdfast.model.jsonvalues import as_json_value
from holdfast.sender.conf import ENVIRONMENT

SYSTEM = ("_seq", "_committed_id", "_ingested_at")
"""What `--meta` adds."""


def run(
    channel: str, *, conf: str | None, start: str | None, durable: str, limit: int, timeout_s: float | None, meta: bool
) -> ExitCode:
    """Print events until there are enough."""
    keys: dict[str, Any] = {
        "channel": channel,
        "start": position(start) if start is not None else None,
        "durable": durable,
        "mode": "fanout",
        "system": SYSTEM if meta else (),
    }
    left = limit
    try:
        with _open(conf, keys) as consumer:
            for delivery in consumer.deliveries(timeout_s):
                left = _print(delivery, left if limit else None)
                if limit and not left:
                    break
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # whoever reads, or wanted it, has enough
    return ExitCode.DONE


def _open(conf: str | None, keys: dict[str, Any]) -> Consumer:
    if conf is not None:
        return Consumer.from_conf(conf, **keys)
    return Consumer.from_env(**keys) if os.environ.get(ENVIRONMENT) else Consumer.from_conf(DEFAULT_CONF, **keys)


def _print(delivery: Delivery, left: int | None) -> int:
    """Print, then confirm; returns how many may still come."""
    rows = delivery.rows() if left is None else delivery.rows()[:left]
    encoder = msgspec.json.Encoder(enc_hook=as_json_value)
    sys.stdout.buffer.write(encoder.encode_lines(rows))
    sys.stdout.flush()
    if len(rows) == len(delivery):
        delivery.ack()
    else:
        for message in list(delivery.messages())[: len(rows)]:
            message.ack()
    return 0 if left is None else left - len(rows)


def position(text: str, *, option: str = "--from") -> str | int | datetime:
    """`first`, `new`, `last`, `seq:N` or `time:T`."""
    kind, _, value = text.partition(":")
    if text in ("first", "new", "last"):
        return text
    if kind == "seq" and (seq := whole_number(value, least=1)) is not None:
        return seq
    if kind == "time":
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
        if found is not None and found.tzinfo is not None:
            return found
    allowed = "first, new, last, seq:N, or time:T with T as 2026-01-31T12:00:00Z"
    raise BadRequest(f"{option} {text[:80]!r} is no position; allowed: {allowed}")
