"""Is a request sound, how many records has it, and which of them must be refused.

Promise: after `check` every part of the request can be decoded, nested attribute values too. What cannot be parsed is
`WireError`. A span without a trace id of 16 bytes and a span id of 8 is no span: it is taken out of the request and
counted, so that its sender is told and the rest is kept.

A request with too many records is `LimitReached`. What remains, a record made of empty attributes, takes up to some 30
times its size in memory while it is parsed; callers check one request at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from holdfast.errors import Category, WireError
from holdfast.wire.otlp.envelopes import check_envelopes
from holdfast.wire.otlp.signals import Signal
from holdfast.wire.otlp.traces import SPAN_ID_BYTES, TRACE_ID_BYTES

NO_IDS = "spans without a trace id of 16 bytes and a span id of 8 bytes were refused"


class Checked(msgspec.Struct, frozen=True, gc=False):
    """A request that may be kept."""

    request: bytes
    records: int
    refused: int = 0


def check(signal: Signal, request: bytes) -> Checked:
    """The request, without what must be refused."""
    check_envelopes(signal, request)
    try:
        message = signal.request.FromString(request)
    except DecodeError as error:
        place = f"a request of {signal.value}"
        raise WireError(category=Category.PARSE_ERROR, reason=str(error), place=place) from None
    records = _COUNTS[signal](message)
    refused = _take_out_bad_spans(message) if signal is Signal.TRACES else 0
    return Checked(message.SerializeToString() if refused else request, records - refused, refused)


def _logs(message: Any) -> int:
    return sum(len(scope.log_records) for resource in message.resource_logs for scope in resource.scope_logs)


def _spans(message: Any) -> int:
    return sum(len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans)


def _points(message: Any) -> int:
    return sum(
        len(getattr(metric, kind).data_points)
        for resource in message.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if (kind := metric.WhichOneof("data"))
    )


_COUNTS: dict[Signal, Callable[[Any], int]] = {Signal.LOGS: _logs, Signal.TRACES: _spans, Signal.METRICS: _points}


def _take_out_bad_spans(message: Any) -> int:
    refused = 0
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            good = [s for s in scope.spans if len(s.trace_id) == TRACE_ID_BYTES and len(s.span_id) == SPAN_ID_BYTES]
            if len(good) < len(scope.spans):
                refused += len(scope.spans) - len(good)
                kept = type(scope)(spans=good)
                scope.ClearField("spans")
                scope.MergeFrom(kept)
    return refused
