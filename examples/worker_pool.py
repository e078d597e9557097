"""A pool of workers that share the messages of one channel, each message done by one of them.

    python examples/worker_pool.py ws::addr=127.0.0.1:9000; jobs

Start it several times: the workers divide the messages among them. Kill one: what it held goes to the others. A job
that fails five times is in the channel `jobs.dead` then, with the reason.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from holdfast import Consumer
from holdfast.consumer.messages import Message

WORKERS = 4


def work(message: Message) -> None:
    """The job itself. Whatever it raises gives the message back; it comes again later, maybe to another worker."""
    sys.stdout.write(f"seq {message.seq}, attempt {message.attempt}: {message.data}\n")


def handle(message: Message) -> None:
    """Do it, then say so."""
    try:
        work(message)
    except ValueError as error:
        message.reject(f"{error}")  # it would fail again: to the dead letters at once
    except Exception:
        message.nack()
    else:
        message.ack()


def main(conf: str, channel: str, limit: int = 0) -> int:
    """Work until interrupted, or until so many messages were done."""
    options = {"durable": "pool", "group": "pool", "max_inflight": 2 * WORKERS, "batch_rows": 1, "max_deliver": 5}
    done = 0
    with (
        Consumer.from_conf(conf, channel=channel, backoff=(1.0, 10.0, 60.0), **options) as consumer,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        for message in consumer:
            pool.submit(handle, message)
            done += 1
            if done == limit:
                break
    return done


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2])
    except KeyboardInterrupt:
        sys.exit(0)
