"""Prints the pages `docs/reference/dataflow.md` and `docs/reference/otlp-schema.md` from what they describe.

python -m holdfast.dataflow.pages dataflow > docs/reference/dataflow.md
python -m holdfast.dataflow.pages otlp-schema > docs/reference/otlp-schema.md
"""

from __future__ import annotations

import sys

import pyarrow as pa

from holdfast.dataflow.plugins import PERSISTENCE, PLUGINS, Plugin
from holdfast.dataflow.receivers.settings import OtapSettings, OtlpSettings
from holdfast.dataflow.settings import NodeSettings
from holdfast.wire.otlp import raw
from holdfast.wire.otlp.decode import SCHEMAS

_DATAFLOW = """# Node graphs

Printed by `python -m holdfast.dataflow.pages dataflow`; a test compares. How to use them: [OTLP](../howto/otlp.md).

    holdfast pipeline validate FILE     everything that is wrong, with file, line, node and key
    holdfast pipeline graph FILE        the picture
    holdfast pipeline run FILE          until SIGTERM; prints where it listens
    holdfast pipeline run FILE --cores N    the same in N processes that share its ports

A file has `nodes`, a mapping from names to nodes, and optionally `admin.listening_addr`, a loopback address with
`/metrics`, `/healthz` and the [admin HTTP](http-api.md) of the first persistence node, through which Spark reads. With
[several cores](../howto/run-on-several-cores.md) it has all of them together, and each core's store is beside it.
Paths are relative to the folder of the file; `${NAME}` is filled from the environment.

| key of a node | meaning |
|---|---|
| `kind` | `receiver`, `processor` or `exporter` |
| `plugin_urn` | which one, see below; the short name will do |
| `out_ports` | one port: `destinations`, names of nodes, and `dispatch_strategy`; exporters have none |
| `config` | its settings |

Receivers lead to persistence nodes or to exporters. Persistence nodes lead to exporters; each is a subscriber of its
own under its node's name, so every one of them gets everything, whatever `dispatch_strategy` says. What leaves a
receiver goes to one destination (`round_robin`, `random`) or to all (`broadcast`); the client is answered when those
that got it have it. An exporter that is taken out of the file keeps its place, and its data, until
`holdfast subscribers rm` removes it; a start tells of it (`dataflow.subscriber.orphan`).

| `plugin_urn` | short | kind |
|---|---|---|
"""
_AFTER = {
    "urn:otel:otlp:receiver": """
gRPC: `Export` of the services for logs, traces and metrics. HTTP: `POST /v1/logs`, `/v1/traces`, `/v1/metrics` with
`application/x-protobuf` or `application/json`, `content-encoding` gzip, deflate or zstd. A request is answered after
its commit. The metadata or header `idempotency-key` makes a repeat harmless for `dedup.window` of the store.

| the answer | gRPC | HTTP | when |
|---|---|---|---|
| accepted | OK | 200 | committed; with `partial_success` if spans without ids were taken out |
| come again | UNAVAILABLE with RetryInfo | 503 with Retry-After | the store is full or has failed, or the graph stops |
| come again | UNAVAILABLE with RetryInfo | 429 with Retry-After | too many requests wait for their commit |
| too large | RESOURCE_EXHAUSTED | 413 | larger than `max_request_size`, inflated; more than 524,288 records |
| bad | INVALID_ARGUMENT | 400 | cannot be parsed; 415 for another content type |
| who are you | UNAUTHENTICATED | 401 | the token is missing or wrong |
| failed | INTERNAL | 500 | a bug; the log has it |
""",
    "urn:otel:otap:receiver": """
gRPC streams `ArrowLogs`, `ArrowTraces` and `ArrowMetrics` of OTAP, OpenTelemetry's Arrow protocol: tables of records,
attributes, events, links, points and exemplars, joined into the same rows in the same channels as those of OTLP. Arrow
streams with schema resets, delta and replaced dictionaries, zstd and lz4 inside. Each batch gets one status, after its
commit and in the order of commits. A batch with our header `idempotency-key`, as the OTAP exporter sends it, is stored
once, on whichever stream it comes again.

| the status of a batch | when |
|---|---|
| OK | committed; the message says if spans without ids were left out |
| INVALID_ARGUMENT | cannot be read, an unknown table, or too large: `max_request_size`, 524,288 rows of one table |
| UNAVAILABLE | the store is full or has failed, the graph stops, or a batch before it broke the stream |
| INTERNAL | a bug; the log has it |

While too much waits for its commit, streams are not read, which slows their senders down. A stream whose Arrow state is
lost ends with UNAVAILABLE and RetryInfo after the status of the batch that broke it; what had no status yet comes again
on another stream. What is no batch, or has the id of one under way, ends it with INVALID_ARGUMENT. gRPC itself knows
gzip; senders that compress gRPC messages with zstd must be told not to.
""",
    "urn:otel:otap:exporter": """
One stream for each signal, opened again after it ended; raw rows are decoded first. Batches have up to 8192 records,
texts that repeat have dictionaries that only grow. A status of CANCELED, DEADLINE_EXCEEDED, PERMISSION_DENIED,
RESOURCE_EXHAUSTED, ABORTED, UNAVAILABLE or UNAUTHENTICATED, a stream that ends with one, and silence are tried again
without limit; other statuses go to the dead-letter channel `<channel>.dead`. A stream that ends with one of those while
several batches are under way does not say which was meant: they come again one by one.
""",
    PERSISTENCE: """
All [settings of a store](settings.md) stand beside `path`, nested or flat. The store is `<path>/core-0`, with several
cores `<path>/core-<k>` for each; every command for stores works on it. `retention.size_cap` is for all of them
together. Where the file does not say otherwise, `frame.max_size` is 32 MiB and `memory_limit` is at least
one and a quarter times `segment.target_size`. `wal.flush_interval` counts with `wal.flush: interval` only: by default a
request is answered after its sync. Exporters get segments once they are sealed, after `segment.max_open_duration` at
the latest.
""",
    "urn:otel:otlp:exporter": """
Raw rows are sent on byte for byte; columns become requests again, up to 8192 records each. Answers are taken as OTLP
says: OK is done, and records of a partial success are counted; CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE,
UNAVAILABLE, DATA_LOSS, RESOURCE_EXHAUSTED with RetryInfo, and 408, 429, 502, 503, 504 are tried again without limit;
other refusals go to the dead-letter channel `<channel>.dead` with the reason. Unlike OTLP, UNAUTHENTICATED,
PERMISSION_DENIED, UNIMPLEMENTED and 401, 403, 404, 405, 407 are tried again too: they are about us, not about the data.
""",
    "urn:holdfast:parquet:exporter": """
`<path>/<channel>/date=YYYY-MM-DD/part-<first seq>-<last seq>.parquet`, one file for each segment and date, with the
columns of [the schema](otlp-schema.md), `_seq` and `_ingested_at`; of other cores than the first the name begins with
`core-<k>-`, since each counts for itself. A file is there whole or not at all; what comes
again adds nothing.
""",
    "urn:holdfast:console:exporter": """
One line for each segment, then its first records as JSON.
""",
    "urn:holdfast:spark:exporter": """
Runs a [pipeline](pipelines.md) on Spark, in a process of its own, for as long as the graph runs. `${HOLDFAST_ADMIN}` in
the pipeline's file is the admin address of the graph, of all its cores; a source with this `addr` reads the persistence
node. The pipeline's subscribers are registered before anything is accepted. It needs `admin.listening_addr` with a port
of its own, since Spark's checkpoint names it; the store of core k is at that port plus one plus k.
""",
}
_METRICS = """
## Metrics and log events

| metric | counts |
|---|---|
| `holdfast_receiver_requests_total`, `…_records_total`, `…_refused_records_total` `{node, signal}` | accepted |
| `holdfast_receiver_refusals_total{node, reason}` | refused |
| `holdfast_receiver_throttled_total`, `…_duplicates_total`, `…_bytes_total`, `…_groups_total` `{node}` | the intake |
| `holdfast_exporter_events_total`, `…_rejected_total`, `…_retries_total` `{node}` | taken, dead letters, again |
| `holdfast_exporter_parcels_total`, `…_refused_records_total` `{node}` | handed over; left out by the destination |
| `holdfast_exporter_failing{node}` | failures in a row now |
| `holdfast_gc_evictions_total{reason}`, `holdfast_ingest_throttle_total` | the store |
| `holdfast_segment_dropped_total`, `holdfast_subscriber_dropped_segments_total` | its losses |
| `holdfast_retention_size_emergency_total` | deletions that the size cap forced |
| `holdfast_subscriber_lag_events`, `…_lag_seconds`, `…_gaps` `{subscriber}` | each exporter's progress |
| `holdfast_ack_records_total`, `holdfast_ack_syncs_total` | the log of acknowledgements |
| `holdfast_core_bytes{core_id}`, `holdfast_core_cap_fraction` | the disk |
| `holdfast_core_up`, `holdfast_core_restarts_total` `{core_id}` | with several cores; all others have the label too |

Log events: `dataflow.exporter.retry`, `.reject`, `.partial`, `.recover`, `.fail`, `.stop`, `dataflow.receiver.fail`,
`dataflow.store.fail`, `dataflow.subscriber.orphan`, `dataflow.core.restart`, `dataflow.core.adopt`,
`dataflow.spark.restart`, `dataflow.spark.end`, `store.room.claim`, and those of the store.
"""
_SCHEMA = """# OTLP in channels

Printed by `python -m holdfast.dataflow.pages otlp-schema`; a test compares.

A receiver keeps requests as they came (`payload: raw`, one row per request) or records that can be queried as they
stand (`payload: columns`, one row per log record, span or data point). `holdfast.spark.otlp.decode`, the Parquet
exporter and `decode: otlp.logs` in a pipeline turn the first into the second.

An attribute value is a text in a map, and its kind is a number at the same place of the list beside it: 0 empty, 1
text, 2 whole number, 3 number, 4 true or false, 5 map, 6 list, 7 bytes. Maps and lists are JSON texts, bytes are
base64. Ids are lower-case hex; what was not sent is null. Times are UTC with nanoseconds (Spark: microseconds).
Unsigned numbers are signed here; those that do not fit are the largest.
"""
_MEANING = {
    "request": "the `Export…ServiceRequest`, protobuf, not compressed",
    "signal": "`logs`, `traces` or `metrics`",
    "protocol": "`grpc`, `http/protobuf`, `http/json` or `otap`",
    "records": "log records, spans or data points in it",
    "size_bytes": "its size",
    "time": "when it happened; for a data point, when it was measured",
    "observed_time": "when it was seen",
    "severity_number": "1 to 24, as OpenTelemetry numbers them",
    "body": "the message; `body_type` is its kind",
    "body_type": "as in `attribute_types`",
    "attributes": "of the record itself",
    "attribute_types": "the kind of each attribute, in order",
    "flags": "as sent; for logs and spans the W3C trace flags",
    "kind": "spans: 0 to 5 as in OTLP; data points: gauge, sum, histogram, exponential_histogram, summary",
    "duration_ns": "end less start",
    "status_code": "0 unset, 1 ok, 2 error",
    "value": "of gauges and sums, as a floating-point number",
    "value_int": "the same, if it was sent as a whole number",
    "aggregation_temporality": "1 delta, 2 cumulative",
    "service_name": "the resource's `service.name`",
    "resource_attributes": "of what sent the record",
    "scope_name": "the instrumentation that made it",
    "metadata_attributes": "the metric's metadata",
}


_RECEIVERS: dict[str, type[NodeSettings]] = {
    "urn:otel:otlp:receiver": OtlpSettings,
    "urn:otel:otap:receiver": OtapSettings,
}


def dataflow_markdown() -> str:
    """The page about graphs."""
    there = [plugin for plugin in PLUGINS if plugin.is_there]
    rows = "".join(f"| `{plugin.urn}` | `{plugin.short}` | {plugin.kind} |\n" for plugin in there)
    return _DATAFLOW + rows + "".join(_plugin(plugin) for plugin in there if plugin.urn in _AFTER) + _METRICS


def _plugin(plugin: Plugin) -> str:
    settings: type[NodeSettings] = _RECEIVERS.get(plugin.urn) or plugin.load().Settings
    rows = "".join(
        f"| `{row.key}` | {f'`{row.default_text}`' if row.default_text else ''} | {row.allowed_text} | {row.why} |\n"
        for row in settings.rows().values()
    )
    return f"\n## {plugin.urn}\n{_AFTER[plugin.urn]}\n| setting | default | allowed | why |\n|---|---|---|---|\n{rows}"


def schema_markdown() -> str:
    """The page about columns."""
    parts = [_table("Raw requests", raw.SCHEMA)]
    parts += [_table(f"Columns: {signal.value}", schema) for signal, schema in SCHEMAS.items()]
    return _SCHEMA + "".join(parts)


def _table(title: str, schema: pa.Schema) -> str:
    rows = "".join(f"| `{field.name}` | {_kind(field.type)} | {_MEANING.get(field.name, '')} |\n" for field in schema)
    return f"\n## {title}\n\n| column | type | meaning |\n|---|---|---|\n{rows}"


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map of {_kind(kind.key_type)} to {_kind(kind.item_type)}"
    if pa.types.is_list(kind):
        return f"list of {_kind(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "(" + ", ".join(f"{field.name} {_kind(field.type)}" for field in kind) + ")"
    return "time" if pa.types.is_timestamp(kind) else str(kind)


if __name__ == "__main__":
    sys.stdout.write({"dataflow": dataflow_markdown, "otlp-schema": schema_markdown}[sys.argv[1]]())
