"""How queries are doing, told to the servers they read from, for their consoles.

    report(spark, addr="http://127.0.0.1:9001")     every query of the session, from now on

    Spark's listener ──► the latest news of each query ──► one thread, about once a second ──► POST /api/v1/queries/…

Promise: nothing here ends or holds back a query. A server that is away misses news and gets the next ones; one that
refuses the credential is left alone for a minute.
A query is told of once it has read from channels of ours, which are found in its offsets; a server is told of its own
channels only. A query that is quiet is told of again now and then, so that servers do not forget it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.consumer.adminclient import AdminClient
from holdfast.errors import AccessRefused, HoldfastError
from holdfast.spark.options import read_addresses
from holdfast.spark.progress import QUIET_S, News, Progress, after
from holdfast.spark.reasons import reason_in
from holdfast.telemetry import event

TELL_EVERY_S = 1.0
LAST_WORDS_S = 5.0
"""How long the end of a session waits for what is still to be told."""


@dataclass(frozen=True)
class Destination:
    """A server that is told, the credential for it, and the channels that are read from it: names or globs."""

    addr: str
    channels: tuple[str, ...] = ("*",)
    token: str = field(default="", repr=False)
    token_file: str = ""


class Reporter:
    """Tells some servers; a thread of its own does, until `close`."""

    def __init__(self, destinations: Sequence[Destination], *, clock: Clock | None = None) -> None:
        self._clients = [(AdminClient(found, patience_s=0.0, clock=clock), found.channels) for found in destinations]
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._news = News()
        self._away: set[str] = set()
        self._silent_until_ns: dict[str, int] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-spark-report", daemon=True)
        self._thread.start()

    def change(self, query: str, change: Callable[[Progress | None], Progress | None]) -> None:
        """There are news of a query, known by its id; takes no time. None: nothing is known of it."""
        with self._lock:
            progress = change(self._news.latest(query))
            if progress is not None:
                self._news.put(query, progress)

    def close(self) -> None:
        """Tell what is still to be told, and end; waits for `LAST_WORDS_S` at most."""
        self._ending.set()
        self._thread.join(LAST_WORDS_S)

    def _run(self) -> None:
        while not self._ending.wait(TELL_EVERY_S):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            due = self._news.due(self._clock.monotonic_ns())
        for progress in due:
            for client, channels in self._clients:
                body = progress.told(client.addr, channels)
                if body is not None and self._clock.monotonic_ns() >= self._silent_until_ns.get(client.addr, 0):
                    self._post(client, progress.name, body)

    def _post(self, client: AdminClient, name: str, body: Mapping[str, object]) -> None:
        try:
            client.post("queries", name, body=body)
        except (HoldfastError, FileNotFoundError, ValueError) as error:
            if client.addr not in self._away:  # once, not every second
                event("spark.report.away", level=logging.WARNING, addr=client.addr, reason=str(error))
            self._away.add(client.addr)
            if isinstance(error, AccessRefused):  # it would fill the server's audit log
                self._silent_until_ns[client.addr] = self._clock.monotonic_ns() + QUIET_S * NS_PER_S
        else:
            self._away.discard(client.addr)


class ReportListener(StreamingQueryListener):
    """Hands Spark's reports to a reporter."""

    def __init__(self, reporter: Reporter, names: frozenset[str] | None = None) -> None:
        """`names`: the queries to tell of; all of them without it."""
        self._reporter = reporter
        self._names = names

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """After a batch is in Spark's commit log, and now and then without one."""
        progress = event.progress
        if self._names is None or progress.name in self._names:
            report = json.loads(progress.json)
            self._reporter.change(str(progress.id), lambda before: after(before, report))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Its first report says more."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The reporter tells of quiet queries by itself."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """With the reason, if it is an error."""
        error = reason_in(event.exception) if event.exception else ""
        self._reporter.change(
            str(event.id), lambda before: before and replace(before, error=error, rows_per_s=0.0, ended=True)
        )


@dataclass(frozen=True)
class Reporting:
    """What `report` has begun; a context that ends it."""

    spark: SparkSession
    listener: ReportListener
    reporter: Reporter

    def stop(self) -> None:
        """Tell no more."""
        self.spark.streams.removeListener(self.listener)
        self.reporter.close()

    def __enter__(self) -> Reporting:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def report(spark: SparkSession, *, addr: str, token: str = "", token_file: str = "") -> Reporting:
    """Have the console of the server at `addr` show the streaming queries of a session that read from it.

    Several servers are separated by commas. It needs the right `consume` of the channels that the queries read. It goes
    on until the session stops, or until `stop` of what is returned.
    """
    reporter = Reporter([Destination(found, token=token, token_file=token_file) for found in read_addresses(addr)])
    listener = ReportListener(reporter)
    spark.streams.addListener(listener)
    return Reporting(spark, listener, reporter)
