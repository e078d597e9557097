"""How the queries of a pipeline are doing: one value per output, for people, metrics and tests.

Figures come from Spark's progress reports, which a listener hands over as the JSON they are (`listening.py`); this
module only reads them. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from holdfast.spark.losses import lost_in
from holdfast.spark.progress import offsets_of

State: TypeAlias = Literal["starting", "running", "restarting", "stopped", "done", "failed"]


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """One output. Totals are since the pipeline was started; the other figures are of the last batch."""

    output: str
    state: State = "starting"
    batch: int = -1
    """The number of the last batch that Spark has committed; -1 before the first."""
    batches: int = 0
    rows: int = 0
    rows_per_s: float = 0.0
    batch_s: float = 0.0
    lag_events: int = 0
    """Events that are published and not in the last batch nor in one before."""
    lost_events: int = 0
    """Events that were gone when their batch was planned, and were passed over."""
    state_rows: int = 0
    state_bytes: int = 0
    restarts: int = 0
    error: str = ""


def with_report(status: OutputStatus, report: Mapping[str, Any]) -> OutputStatus:
    """The same after a progress report of Spark. Reports of idle times have no rows and are no batches."""
    rows = int(report.get("numInputRows") or 0)
    batch = int(report.get("batchId", -1))
    took_s = float((report.get("durationMs") or {}).get("triggerExecution") or 0) / 1000
    operators = report.get("stateOperators") or []
    fresh = rows > 0 and batch > status.batch
    return replace(
        status,
        state="running" if status.state in ("starting", "restarting") else status.state,
        batch=max(batch, status.batch) if rows else status.batch,
        batches=status.batches + fresh,
        rows=status.rows + (rows if fresh else 0),
        rows_per_s=rows / took_s if took_s else 0.0,
        batch_s=took_s if rows else status.batch_s,
        lag_events=sum(lag_of(source) for source in _sources(report)),
        state_rows=sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
        state_bytes=sum(int(operator.get("memoryUsedBytes") or 0) for operator in operators),
    )


def _sources(report: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return report.get("sources") or []


def lag_of(source: Mapping[str, Any]) -> int:
    """Events between where a source is and where its channels end; 0 for sources that do not say."""
    end, latest = offsets_of(source.get("endOffset")), offsets_of(source.get("latestOffset"))
    return sum(max(0, seq - end.get(channel, 1)) for channel, seq in latest.items()) if end else 0


class Board:
    """The statuses of all outputs."""

    def __init__(self, outputs: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._statuses = {name: OutputStatus(name) for name in outputs}
        self._reports = dict.fromkeys(self._statuses, 0)
        self._lost: dict[str, dict[str, int]] = {name: {} for name in self._statuses}

    def report(self, output: str, report: Mapping[str, Any]) -> None:
        """Spark has told of its progress; reports of other queries are passed over."""
        with self._lock:
            if output in self._statuses:
                run, found = str(report.get("runId")), sum(lost_in(s.get("latestOffset")) for s in _sources(report))
                lost = self._lost[output]  # a query counts anew when it is started again
                lost[run] = max(found, lost.get(run, 0))
                status = with_report(self._statuses[output], report)
                self._statuses[output] = replace(status, lost_events=sum(lost.values()))
                self._reports[output] += 1

    def change(self, output: str, state: State, *, error: str = "", restarted: bool = False) -> None:
        """An output is in another state."""
        with self._lock:
            status = self._statuses[output]
            self._statuses[output] = replace(status, state=state, error=error, restarts=status.restarts + restarted)

    def reports(self, output: str) -> int:
        """How many reports there were: it changes whenever a batch is committed."""
        with self._lock:
            return self._reports[output]

    def statuses(self) -> list[OutputStatus]:
        """A picture of now."""
        with self._lock:
            return list(self._statuses.values())
