"""How fast the store is, with the limit of the machine beside each figure.

    python -m bench [NAME ...] [--quick] [--json FILE] [--markdown] [--keep] [--dir DIR]

| file | purpose |
|---|---|
| commit.py | `Store.commit` of 1 row to 1 MiB, 1 and 32 callers, against the bare disk |
| commit_async.py | small commits, many in flight |
| threads32.py | small commits, 32 threads that each wait for the answer |
| seal.py | committed events to a published segment |
| read.py | reading everything back, first time and again |
| startup.py | opening a store with many segments, or with a long log after a kill |
| memory.py | resident memory while a backlog is written and read |
| backlog.py | the process that `memory.py` watches |
| acks.py | answers of subscribers, idle subscribers, eviction |
| ingest.py | the whole server: frames over WebSocket, answered after the sync, 1 and 16 connections |
| ingest_load.py | its producer, in a process of its own |
| bare_sockets.py | its limit: a WebSocket server that only answers |
| jetstream.py | NATS JetStream beside it and beside the sender, if it is installed |
| consume.py | delivery: messages one by one, batches, 50 consumers, the live tail; nats-py beside it |
| consume_load.py | its consumers, in a process of their own |
| sender.py | a sender's hand-over, alone; frames, rows and messages through a server to its disk |
| questdb_client.py | QuestDB's client beside it, if it is installed |
| growth.py | how cost grows with channels, connections, subscribers, segments and bytes |
| plots.py | `python -m bench.plots FILE DIR`: draws the curves of `growth.py` |
| syscalls.py | `python -m bench.syscalls`: the system calls of each path, counted by `strace` |
| peers.py | SQLite, persist-queue, Redis Streams, RabbitMQ and Kafka beside ours |
| kafka.pom.xml | where Kafka's jars come from |
| served.py | a server in a process of its own |
| tier.py | upload to a folder, time to durable, restore |
| spark.py | Spark: our source beside its Parquet reader, a backlog drained, tables and channels written |
| workload.py | events, callers, and the bare disk to compare with |
| figures.py | what a result is, and how results are shown |

A figure and its limit are measured in turns (A B A B) in one run, and both are medians: what disturbs the machine
disturbs both. Everything runs on a real disk; on a memory filesystem a sync costs nothing and no ratio means anything.
"""
