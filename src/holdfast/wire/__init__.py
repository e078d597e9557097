"""The ingest wire: what producers send and what they are answered, as bytes and as values. Nothing here does I/O.

| file | purpose |
|---|---|
| hfa.py | HFA1, our frame: identity, channels, one Arrow stream each |
| arrowstream.py | one Arrow IPC stream from a stranger, bounded before anything is inflated |
| qwp/ | QWP1, the message of QuestDB clients, to and from Arrow |
| replies.py | OK, DURABLE_ACK and refusals |
| ingest.py | the session: messages in, frames to commit and replies out |
| limits.py | how large a frame may be |
"""
