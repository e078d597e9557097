"""`plan_repair` says what is wrong and what would be done; `apply_repair` does it.

Promise: planning writes nothing but the lock file. Applying carries out a plan only if the store is still what was
planned for; it takes nothing away of which there is no copy in quarantine, and afterwards `verify` finds nothing.
Both need the lock: a store that a process has open is refused (`Locked`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import BadRequest
from holdfast.model.intervals import IntervalSet
from holdfast.store.ground import ACK_DIR, LOCK_NAME, WAL_DIR
from holdfast.store.inspect.directory import list_store
from holdfast.store.repair.operation import Operation
from holdfast.store.repair.quarantine import Quarantine
from holdfast.store.repair.stock import DAMAGE, UNKNOWN, Stock, take_stock
from holdfast.store.repair.survey import Survey, survey_store
from holdfast.store.verify import Finding, verify_store
from holdfast.telemetry import event

REPORT_NAME = "report.json"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that is done to a file."""

    kind: str
    file: str
    text: str


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Seqs of a channel that are in no segment and in no log any more.

    `damage`: they were stored and cannot be read. `unknown`: the catalog that could tell whether they were evicted,
    skipped or damaged is lost.
    """

    channel: str
    first_seq: int
    last_seq: int
    reason: str

    @property
    def events(self) -> int:
        """How many there are."""
        return self.last_seq - self.first_seq + 1


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What is wrong with a store, and what would be done about it."""

    directory: str
    rebuild_catalog: bool
    findings: tuple[Finding, ...]
    """What `verify` calls damage."""
    actions: tuple[Action, ...]
    missing: tuple[MissingRange, ...]
    """What is lost for good, as far as anything tells."""
    uncertain: tuple[str, ...]
    """What may be lost besides, where nothing tells how much."""
    rescued_events: int
    """Events that only damaged or discarded files hold; they are written anew."""

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.actions)

    @property
    def lost_events(self) -> int:
        """Events that were stored and cannot be read any more."""
        return sum(item.events for item in self.missing if item.reason == DAMAGE)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was done."""

    plan: RepairPlan
    quarantine: str
    """Where everything is that was taken away; "" if nothing was."""
    quarantined: tuple[str, ...]
    segments_written: int


def plan_repair(filesystem: Filesystem, directory: Path, *, rebuild_catalog: bool = False) -> RepairPlan:
    """Find out what is wrong. `rebuild_catalog` makes a new catalog even if nothing is."""
    with _locked(filesystem, directory):
        return _plan(filesystem, directory, rebuild_catalog=rebuild_catalog)[0]


def repair_store(
    filesystem: Filesystem, directory: Path, *, rebuild_catalog: bool = False, clock: Clock | None = None
) -> RepairReport:
    """Plan and carry out at once, reading everything only once. Does nothing if there is nothing to do."""
    with _locked(filesystem, directory):
        plan, survey, stock = _plan(filesystem, directory, rebuild_catalog=rebuild_catalog)
        if survey is None or stock is None:
            return RepairReport(plan, "", (), 0)
        return operate(filesystem, plan, survey, stock, clock=clock or SystemClock())


def apply_repair(filesystem: Filesystem, plan: RepairPlan, *, clock: Clock | None = None) -> RepairReport:
    """Carry out a plan. `BadRequest` if the store is not what it was when the plan was made."""
    directory = Path(plan.directory)
    with _locked(filesystem, directory):
        fresh, survey, stock = _plan(filesystem, directory, rebuild_catalog=plan.rebuild_catalog)
        if fresh != plan:
            raise BadRequest(f"{directory} has changed since the repair was planned; plan it again")
        if survey is None or stock is None:
            return RepairReport(plan, "", (), 0)
        return operate(filesystem, plan, survey, stock, clock=clock or SystemClock())


def operate(filesystem: Filesystem, plan: RepairPlan, survey: Survey, stock: Stock, *, clock: Clock) -> RepairReport:
    """Carry out a plan on what was just surveyed. The caller holds the lock."""
    quarantine = Quarantine(filesystem, survey.directory, at_ns=clock.wall_ns())
    quarantine.write(Path(REPORT_NAME), [msgspec.json.format(msgspec.json.encode(plan), indent=2)])
    operation = Operation(filesystem, survey, stock, quarantine)
    operation.run()
    for item in plan.missing:
        event("store.repair.lost", channel=item.channel, first=item.first_seq, last=item.last_seq, reason=item.reason)
    event("store.repair.done", quarantine=quarantine.path, actions=len(plan.actions), rescued=plan.rescued_events)
    held = tuple(map(str, quarantine.held))
    return RepairReport(plan, str(quarantine.path), held, len(operation.published))


@contextmanager
def _locked(filesystem: Filesystem, directory: Path) -> Iterator[None]:
    list_store(filesystem, directory)  # refuses what is no store before a lock file is made in it
    lock = filesystem.lock(directory / LOCK_NAME)
    try:
        yield
    finally:
        lock.release()


def _plan(
    filesystem: Filesystem, directory: Path, *, rebuild_catalog: bool
) -> tuple[RepairPlan, Survey | None, Stock | None]:
    report = verify_store(filesystem, directory, live=False)
    findings = tuple(finding for finding in report.findings if finding.severity == "damage")
    if report.intact and not rebuild_catalog:
        return RepairPlan(str(directory), False, (), (), (), (), 0), None, None
    survey = survey_store(filesystem, directory, distrust=rebuild_catalog)
    stock = take_stock(survey)
    if (
        not stock.changes and not survey.interrupted
    ):  # the files contradict each other in a way that only the catalog mends
        survey = survey_store(filesystem, directory, distrust=True)
        stock = take_stock(survey)
    return make_plan(survey, stock, findings, rebuild_catalog=rebuild_catalog), survey, stock


def make_plan(survey: Survey, stock: Stock, findings: tuple[Finding, ...], *, rebuild_catalog: bool) -> RepairPlan:
    """The decision in words."""
    missing = [(name, part, DAMAGE) for name, ranges in stock.lost.items() for part in ranges]
    missing += [(name, part, UNKNOWN) for name, ranges in stock.unknown.items() for part in ranges]
    return RepairPlan(
        directory=str(survey.directory),
        rebuild_catalog=rebuild_catalog,
        findings=findings,
        actions=tuple(_actions(survey, stock)),
        missing=tuple(MissingRange(name, *part, reason) for name, part, reason in sorted(missing)),
        uncertain=tuple(stock.uncertain),
        rescued_events=_events(stock.harvested),
    )


def _events(ranges: dict[str, IntervalSet]) -> int:
    return sum(last - first + 1 for found in ranges.values() for first, last in found)


def _actions(survey: Survey, stock: Stock) -> Iterator[Action]:
    yield from _catalog_actions(survey, stock)
    for found in stock.adopted:
        yield Action("adopt", str(found.path), "enter this intact segment, which the catalog does not know")
    for name, ranges in sorted(stock.harvested.items()):
        spans = ", ".join(f"{first}..{last}" for first, last in ranges)
        yield Action("rescue", name, f"write events {spans} of this channel, which nothing else holds, as new segments")
    if stock.replace_wal:
        text = f"copy {len(survey.wal)} files to quarantine and begin a new log above all their numbers"
        yield Action("log", str(survey.directory / WAL_DIR), text)
    if stock.replace_ack:
        text = f"copy {len(survey.ack)} files to quarantine and begin a new log with all marks that could be read"
        yield Action("log", str(survey.directory / ACK_DIR), text)
    for found in stock.aside:
        yield Action("set aside", str(found.path), f"move to quarantine ({found.problem or 'others hold its events'})")
    for path in stock.spare_logs:
        yield Action("set aside", str(path), "move to quarantine (damaged and no longer needed)")


def _catalog_actions(survey: Survey, stock: Stock) -> Iterator[Action]:
    if survey.interrupted:
        yield Action("catalog", str(survey.catalog_path), "complete the exchange of catalogs that was interrupted")
    if stock.rebuild:
        segments = len(stock.kept) + len(stock.adopted)
        text = f"write anew from {segments} segments, the logs, and what can be believed of the old one"
        yield Action("catalog", str(survey.contents.path), text)
        return
    for found in stock.removed:
        meta = found.row.meta if found.row is not None else None
        span = f"events {meta.first_seq}..{meta.last_seq}" if meta is not None else "events"
        yield Action("catalog", str(found.path), f"strike out this segment of {span} ({found.problem or 'doubled'})")
