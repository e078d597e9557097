"""Holdfast: a durable store-and-forward pipeline.

Programs hand it events; it keeps every one of them through crashes, outages and restarts; readers take them from there,
each at its own pace. The parts, in the order an event meets them:

    sender      the producer's side: events become frames, kept in a slot and sent until a server has them
    consumer    the reader's side over the network: messages come in, each is answered; outages are bridged
    wire        the ingest wire as bytes and values: frames of producers, messages of QuestDB clients, replies
    server      the process that accepts frames from many producers; who may do what; the admin HTTP
    store       accepts frames, logs them, seals them into Arrow segments; subscribers, retention, recovery, repair
    tier        published segments in an object store; durable acknowledgements; a wiped store back from there
    delivery    events to consumers over the network: subscriptions, groups, redelivery, dead letters
    sync        committed events for offline-first clients: validation, order, catch-up, broadcasts
    spark       channels as tables and streams of Spark; each batch is read once, whatever is killed
    dataflow    a graph of receivers, persistence and exporters from one file: OTLP in, OTLP and Parquet out
    console     one web page that shows a running server, live
    cli         the command `holdfast`: serving, sending, looking into a store, verifying and repairing it, a demo
    reading     events as a table, in one call
    model       the words every part shares, as types: names, positions, frames, schemas
    disk        the seam to the disk: what each call promises, checksums, records, one append log
    testing     honest fakes that we ship: a disk that loses power, a clock that is set by hand

What every part relies on:

    telemetry   log events: one line, one fixed name
    traffic     what moves on a connection: whether a slow line is one that lives
    config      every setting, declared once with its default and the reason for it
    clock       the seam to time
    errors      every error, sorted by what the caller can do about it

A part knows only what the layers below it offer; `pyproject.toml` lists the layers and import-linter holds them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.consumer.asyncconsumer import AsyncConsumer
    from holdfast.consumer.consumer import Consumer
    from holdfast.reading import read
    from holdfast.sender.asyncsender import AsyncSender
    from holdfast.sender.sender import Sender
    from holdfast.store.store import Store

__version__ = "0.1.0"
__all__ = ["AsyncConsumer", "AsyncSender", "Consumer", "Sender", "Store", "__version__", "read"]

_HOMES = {
    "AsyncConsumer": "holdfast.consumer.asyncconsumer",
    "Consumer": "holdfast.consumer.consumer",
    "AsyncSender": "holdfast.sender.asyncsender",
    "Sender": "holdfast.sender.sender",
    "Store": "holdfast.store.store",
    "read": "holdfast.reading",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, so that `import holdfast.errors` stays cheap."""
        if name not in _HOMES:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
