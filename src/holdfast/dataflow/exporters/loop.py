"""A subscriber and its exporter, on a thread of their own.

    poll ──► read ──► deliver ──┬── done ──────► ack
      ▲                         ├── never ─────► reject: the dead-letter channel, with the reason
      └── pause ◄── nack ◄──────┴── again later

Promise: an event is acknowledged only after its destination has taken it. What may pass is tried again without limit,
with pauses that double up to `retry.max_interval`, or as long as the destination asked. One loop waits for no other.
"""

from __future__ import annotations

import logging
import random
import threading

from holdfast.clock import NS_PER_S
from holdfast.dataflow.exporters.parcels import SYSTEM, Exporter, ExporterStatistics, Parcel, Verdict
from holdfast.dataflow.settings import ExporterSettings
from holdfast.errors import Closed, StoreFailed
from holdfast.model.backoff import Backoff
from holdfast.store.subscribers.subscriber import Lease, Subscriber
from holdfast.telemetry import event

POLL_S = 1.0
PARCEL_BYTES_MAX = 32 << 20
"""A parcel is in memory as a whole, several times over while it is converted."""
REJECTIONS_KEPT = 10


class ExportLoop:
    """Runs one exporter until it is stopped."""

    def __init__(
        self,
        name: str,
        subscriber: Subscriber,
        exporter: Exporter,
        *,
        settings: ExporterSettings,
        chance: random.Random,
        core: int = 0,
    ) -> None:
        self.name = name
        self._core = core
        self.statistics = ExporterStatistics()
        self._subscriber = subscriber
        self._exporter = exporter
        self._backoff = Backoff(settings.retry_initial_ns / NS_PER_S, settings.retry_max_ns / NS_PER_S, spread=-0.5)
        self._chance = chance
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the parcel in hand; what it did not finish is there for the next start."""
        self._stopping.set()
        self._subscriber.close()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()
        self._exporter.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                lease = self._subscriber.poll(POLL_S, max_bytes=PARCEL_BYTES_MAX)
                if lease is not None:
                    self._handle(lease)
                del lease  # what was not answered is free again
            except Closed:
                return
            except StoreFailed as error:
                event("dataflow.exporter.stop", level=logging.ERROR, node=self.name, reason=error)
                return
            except Exception as error:  # an answer that the store did not take: nothing is lost, it comes again
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        figures = self.statistics
        figures.failing += 1
        figures.last_failure = f"{type(error).__name__}: {error}"
        event("dataflow.exporter.fail", level=logging.ERROR, node=self.name, reason=figures.last_failure)
        self._stopping.wait(self._backoff.pause_s(figures.failing, self._chance))

    def _handle(self, lease: Lease) -> None:
        try:
            parcel = Parcel(lease.channel, lease.first_seq, lease.last_seq, list(lease.read(system=SYSTEM)), self._core)
            verdict = self._exporter.deliver(parcel) if parcel.rows else Verdict()
        except (Closed, StoreFailed):
            raise
        except Exception as error:  # whatever it was, the events stay and are tried again
            verdict = Verdict(again=[(lease.first_seq, lease.last_seq)], reason=f"{type(error).__name__}: {error}")
        self._settle(lease, verdict)

    def _settle(self, lease: Lease, verdict: Verdict) -> None:
        figures = self.statistics
        figures.parcels += 1
        figures.refused_records += verdict.refused_records
        if verdict.refused_records:
            event("dataflow.exporter.partial", level=logging.WARNING, node=self.name, records=verdict.refused_records)
        for (first_seq, last_seq), reason in verdict.rejected:
            self._reject(lease.channel, first_seq, last_seq, reason)
        done = verdict.done(lease.first_seq, lease.last_seq)
        figures.events += sum(last - first + 1 for first, last in done)
        if not verdict.again:
            lease.ack()
            self._works()
            return
        if done:
            self._subscriber.ack_many(lease.channel, done)
        self._again(lease, verdict)

    def _reject(self, channel: str, first_seq: int, last_seq: int, reason: str) -> None:
        self._subscriber.reject(channel, first_seq, last_seq, reason=reason)
        self.statistics.rejected += last_seq - first_seq + 1
        self.statistics.rejections = [*self.statistics.rejections[1 - REJECTIONS_KEPT :], reason]
        event(
            "dataflow.exporter.reject",
            level=logging.WARNING,
            node=self.name,
            channel=channel,
            first_seq=first_seq,
            last_seq=last_seq,
            reason=reason,
        )

    def _works(self) -> None:
        if self.statistics.failing:
            event("dataflow.exporter.recover", node=self.name, failures=self.statistics.failing)
            self.statistics.failing = 0

    def _again(self, lease: Lease, verdict: Verdict) -> None:
        figures = self.statistics
        figures.retries += 1
        figures.failing += 1
        figures.last_failure = verdict.reason
        pause_s = max(verdict.after_s, self._backoff.pause_s(figures.failing, self._chance))
        event(
            "dataflow.exporter.retry",
            level=logging.WARNING,
            node=self.name,
            channel=lease.channel,
            segment=lease.segment_seq,
            failures=figures.failing,
            pause_s=f"{pause_s:.3f}",
            reason=verdict.reason,
        )
        lease.nack(pause_s)
        self._stopping.wait(pause_s)
