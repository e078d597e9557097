"""OTAP, OpenTelemetry's Arrow protocol: batches of tables to rows and back. Nothing here does I/O.

    BatchArrowRecords ──► StreamReader ──► tables ──► decode ──► flat columns, those of OTLP
    BatchArrowRecords ◄── StreamWriter ◄── tables ◄── encode ◄── the same columns

A batch is some tables: the records, their attributes, the attributes of their resources and scopes, events, links,
points and exemplars, joined by ids. Each table is an Arrow stream of its own that goes on from batch to batch, so both
sides keep state for as long as the gRPC stream lives.

Promise: bytes from strangers give rows, `WireError` or `LimitReached`; never another exception, nor more memory than
`limits` allows. No Python runs per record, only per distinct value that is itself a list, a map or bytes.

| file | purpose |
|---|---|
| messages.py | the messages, payload types and services |
| limits.py | how much a batch and a stream may become |
| reading.py | the Arrow streams of a receiver |
| writing.py | the Arrow streams of a sender |
| ids.py | id columns and their encodings; children and parents |
| cbor.py | CBOR, in which lists and maps travel |
| values.py | attribute values and attributes |
| tables.py | a table as it came, column by column |
| context.py | resource and scope of each record |
| traces.py | spans, events, links |
| metrics.py | data points of all five kinds, exemplars |
| decode.py | tables to rows; logs |
| encode.py | rows to tables |
"""
