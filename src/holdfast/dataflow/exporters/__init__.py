"""Exporters: what goes out, and what becomes of what does not.

| file | purpose |
|---|---|
| parcels.py | what an exporter gets, and what it says of it |
| loop.py | a subscriber and its exporter, on a thread: ack, reject, again later |
| direct.py | an exporter fed by a receiver, without a store between |
| requests.py | OTLP requests from rows, whichever way they are kept |
| otlp.py | the OTLP exporter |
| links.py | its ways out: gRPC and HTTP, and which failures pass |
| parquet.py | the Parquet exporter: folders by date, files that are whole or not there |
| console.py | the console exporter, for people |
"""
