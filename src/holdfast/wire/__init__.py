"""The wires: what producers and consumers send and what they are answered, as bytes and as values. No I/O here.

| file | purpose |
|---|---|
| hfa.py | HFA1, our frame: identity, channels, one Arrow stream each |
| arrowstream.py | one Arrow IPC stream from a stranger, bounded before anything is inflated |
| plain.py | frames that look like one before: recognised by comparing bytes |
| qwp/ | QWP1, the message of QuestDB clients, to and from Arrow |
| otlp/ | OTLP, the requests of OpenTelemetry's exporters, to and from Arrow |
| otap/ | OTAP, the Arrow batches of OpenTelemetry, to and from the same columns |
| replies.py | OK, DURABLE_ACK and refusals |
| ingest.py | the session: messages in, frames to commit and replies out |
| sync/ | the sync wire: dialects, and the session of an offline-first client |
| limits.py | how large a frame may be |
| consume.py | the messages between a consumer and the server |
| consumesession.py | the session of a consumer, on the server's side |
"""
