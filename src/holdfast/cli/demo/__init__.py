"""`holdfast demo`: the whole of it on one machine, with kills in the middle, and the proof.

    two producers ──► server ──► Spark pipeline ──► Parquet: every event, and volumes per symbol and window
       ▲ SIGKILL         ▲ SIGKILL       └──► a consumer

| file | purpose |
|---|---|
| run.py | the course: start, kill, start again, drain, compare |
| events.py | what is sent: every event follows from its channel and id |
| producer.py | the process that sends, and is killed |
| processes.py | the processes of a demo, and what they say |
| watching.py | the consumer, and the rows that Spark has written |
| check.py | the comparison of what was promised with what arrived (pure) |
| show.py | what a person sees |
"""
