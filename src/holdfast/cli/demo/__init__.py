"""`holdfast demo`: the whole of it on one machine, with kills in the middle, and the proof.

    two Senders, one with a slot ──┬──► server ──┬──► Spark pipeline ──► Parquet: every event, volumes per window
        ▲ SIGKILL                  │     ▲       └──► a consumer
    an OpenTelemetry client ───────┘     SIGKILL

| file | purpose |
|---|---|
| run.py | the course: start, kill, start again, drain, compare |
| events.py | what is sent: every event follows from its channel and id |
| producer.py | the process that sends, and is killed |
| otlpsource.py | the process that exports logs over OTLP |
| processes.py | the processes of a demo, and what they say |
| watching.py | the consumer, and the rows that Spark has written |
| windows.py | the volumes that Spark computed, and what they must be |
| check.py | the comparison of what was promised with what arrived (pure) |
| show.py | what a person sees |
"""
