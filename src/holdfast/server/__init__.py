"""The server: producers connect over WebSocket, frames are committed, answers go back.

    socket ─► door ─► connection ─► ingest ─► store          admin: HTTP for people, metrics and programs
              (handshake, access)  (wire/)

| file | purpose |
|---|---|
| server.py | `Server`: listens, sweeps, reloads, drains |
| door.py | handshakes under way, who is let in, which protocol lives at which path |
| handshake.py | what an upgrade request gets: status, headers, reasons (pure) |
| connection.py | one WebSocket: its rules, when to read, whether the peer lives |
| unfinished.py | what has arrived of messages that are not whole yet, bounded over all connections |
| ingest.py | one connection's frames into the store, and the answers back |
| ingestdesk.py | what all ingest connections share: bounds, threads, turns, the wake-up after a commit |
| ingestwaiting.py | a message between arrival and answer, and whether its frame may keep the loop |
| ingesttrains.py | small frames of many connections go to the store together |
| refusals.py | errors as categories and texts |
| troubles.py | the last refusals, for people |
| latency.py | how long producers wait for their answer |
| senders.py | who sends frames of slots: connected or away, and what was sent again |
| queries.py | Spark queries that tell how they are doing |
| interpreter.py | how Python takes turns and looks for garbage in a process that serves |
| state.py | what the parts share: store, settings, connections, counters |
| access/ | who is calling, what they may do, how much |
| admin/ | the admin HTTP server |
"""
