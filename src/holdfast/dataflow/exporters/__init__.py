"""Exporters: what goes out, and what becomes of what does not.

| file | purpose |
|---|---|
| parcels.py | what an exporter gets, and what it says of it |
| loop.py | a subscriber and its exporter, on a thread: ack, reject, again later |
| direct.py | an exporter fed by a receiver, without a store between |
| requests.py | OTLP requests from rows, whichever way they are kept |
| window.py | sending the messages of a parcel, several at a time |
| otlp.py | the OTLP exporter |
| links.py | its ways out: gRPC and HTTP, and which failures pass |
| otap.py | the OTAP exporter |
| otapbatches.py | OTAP batches from rows, and their keys |
| otaplinks.py | its way out: a gRPC stream for each signal |
| parquet.py | the Parquet exporter: folders by date, files that are whole or not there |
| console.py | the console exporter, for people |
"""
