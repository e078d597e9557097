"""OTLP: requests of OpenTelemetry's exporters as bytes, as rows and back. Nothing here does I/O.

    Export…ServiceRequest ──┬── raw.py: one row per request, the bytes as they came ──┐
    (protobuf; JSON first   │                                                         ▼
     becomes protobuf)      └── decode ──► flat columns, one row per record ◄── decode, later, anywhere
                                                       └── encode ──► requests again

Promise: bytes from strangers give rows, or `WireError`; never another exception. Decoding is columnar: no Python runs
per record, only per distinct value that is itself a list or a map.

| file | purpose |
|---|---|
| varint.py | numbers as protobuf writes them |
| signals.py | logs, traces, metrics: services, paths, messages, how records are counted |
| check.py | is a request sound, how many records has it, which of them must be refused |
| envelopes.py | how many records a large request has, before it is parsed |
| descriptors.py | the messages as columns see them: nested attribute values stay bytes |
| parts.py | what all signals share: resource, scope, attributes, ids, times |
| logs.py | log records as columns |
| traces.py | spans as columns |
| metrics.py | data points of all five kinds as columns |
| decode.py | requests to rows |
| encode.py | rows to requests |
| regroup.py | which neighbouring rows came from one resource and scope |
| raw.py | requests as rows of their own |
| jsontext.py | OTLP's JSON to protobuf, and answers to JSON |
| answers.py | what a sender is answered: success, partial success, refusals with retry hints |
"""
