"""The consumer's side: messages of a channel come in, each is answered, and a lost connection is won back.

Promise: every message of a durable subscription comes at least once, whatever is killed, in order within one
connection; what was answered with `ack_sync` never comes again. A consumer holds at most `max_inflight` messages.

    server ──► link (a thread with an event loop) ──► hopper ──► your loop, callback or task
                 ▲    core: what each reply means                        │
                 └──────────── answers, a batch at a time ◄──────────────┘

| file | purpose |
|---|---|
| consumer.py | `Consumer`: iterate, fetch, answer, configure, close |
| asyncconsumer.py | `AsyncConsumer`: the same for asyncio |
| messages.py | what an application gets: messages, deliveries |
| options.py | a subscription as the application asks for it |
| core.py | the session without the connection: what to send, what each reply means, what survives an outage |
| redialing.py | which server is tried when |
| hopper.py | deliveries between the I/O thread and the application |
| answers.py | acknowledgements on their way: collected, sent together |
| link.py | the I/O thread: carries out what the core decides |
| adminclient.py | a client of the admin HTTP that outlasts restarts of the server |
"""
