"""`holdfast demo`: a writer is killed in the middle, several times, and the proof that nothing is lost.

    run ──── starts ──► writer ──── commits ──► store
     ▲                    │
     └─ pipe: opened, sent, answered (only after the store accepted)

Promise: an answer counts only if it came out of the writer's pipe, and the check compares the store with those answers,
event by event. The kill is a real SIGKILL of a real process. It proves process death, not power loss.

| file | purpose |
|---|---|
| run.py | the course of a demo: start, kill, start again, check |
| writer.py | the process that commits, and is killed |
| events.py | what is written: every event follows from its id, so that it can be checked |
| ledger.py | what was sent and answered, as the writer's pipe says |
| check.py | the comparison of what was accepted with what is stored |
| show.py | what a person sees |
"""
