"""Subscribers: durable names that read channels and confirm what they have done with.

| file | purpose |
|---|---|
| progress.py | mark, gap set and what is free to hand out, for one subscriber and channel |
| attempts.py | how often the delivery of events failed |
| notes.py | subscribers as the catalog and the log keep them |
| acklog.py | the acknowledgement log: records and group commit |
| registry.py | all subscribers; claims, redelivery, news |
| desk.py | where they meet the store: the log's opening and checkpoints, answers, dead letters |
| handing.py | what delivery over a network needs of all this |
| moves.py | start positions, and what putting a subscriber at another place means |
| lag.py | how far a subscriber is behind |
| deadletters.py | rejected events, as the dead-letter channel keeps them |
| subscriber.py | the handle a program holds; leases |
"""
