"""`truncate_bad_tail`: the operator's consent to open a store whose log files end too early.

What it helps with: a file of the write-ahead log that ends inside a record, or before the next file begins, where a
start would refuse because it is not the last one; and a file that is shorter than its header. Such a file is cut at its
first bad record. What it never helps with: a record that is there and has a wrong checksum, a missing file, a damaged
segment or catalog. Then nothing is touched, and the start refuses as it does without consent; `repair` is the way.

Promises:

- Every bad record is told with its bytes, as a log event and in `Store.recovery.truncated`, together with the seqs
  that are lost with it.
- The log files are copied to quarantine before anything else happens. The cut itself is a repair of the log alone,
  which can be interrupted anywhere (`operation.py`). No number is used twice.
- Consent is for one start. It leaves a witness, `.truncate-bad-tail`, on disk before anything is cut; while the witness
  is there the next start with consent is refused. A start without consent removes it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import Clock
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.errors import InvalidConfig
from holdfast.store.catalog import CATALOG_NAME
from holdfast.store.ground import WAL_DIR, WITNESS_NAME
from holdfast.store.repair.operation import Operation
from holdfast.store.repair.quarantine import Quarantine
from holdfast.store.repair.stock import take_stock
from holdfast.store.repair.survey import NEW_CATALOG_NAME, survey_store
from holdfast.telemetry import event


@dataclass(frozen=True, slots=True)
class TruncatedFile:
    """A log file that was cut at its first bad record."""

    file: Path
    offset_bytes: int
    reason: str
    dump: str


@dataclass(frozen=True, slots=True)
class Truncation:
    """What was cut at this start."""

    files: tuple[TruncatedFile, ...]
    lost: tuple[tuple[str, int, int], ...]
    """(channel, first seq, last seq) of events that are gone with it, as far as anything tells."""
    uncertain: tuple[str, ...]
    quarantine: Path


def renew_consent(filesystem: Filesystem, directory: Path, *, given: bool) -> None:
    """Leave the witness of a start with consent, or remove it at one without; the caller holds the lock."""
    witness = directory / WITNESS_NAME
    there = filesystem.exists(witness)
    if given and there:
        reason = "the last start had it too; data may be lost each time, so open the store once without it"
        raise InvalidConfig(key="truncate_bad_tail", reason=reason)
    if given:
        file = filesystem.open(witness, Mode.CREATE)
        try:
            file.sync()
        finally:
            file.close()
        filesystem.sync_dir(directory)
    elif there:
        filesystem.unlink(witness)
        filesystem.sync_dir(directory)


def discard_leftover(filesystem: Filesystem, directory: Path) -> None:
    """Delete the new catalog of a repair that was interrupted before it took the old one's place, which stands."""
    names = [NEW_CATALOG_NAME, *(NEW_CATALOG_NAME + suffix for suffix in ("-wal", "-shm"))]
    found = [directory / name for name in names if filesystem.exists(directory / name)]
    if found and filesystem.exists(directory / CATALOG_NAME):
        for path in found:
            filesystem.unlink(path)
        filesystem.sync_dir(directory)


def truncate_ended_logs(filesystem: Filesystem, directory: Path, *, clock: Clock) -> Truncation | None:
    """Cut files of the write-ahead log that end too early, if nothing else is wrong with it; None if nothing was."""
    if not filesystem.exists(directory / WAL_DIR):
        return None
    survey = survey_store(filesystem, directory, prove_segments=False)
    problems = survey.wal_problems
    if survey.distrusted or not problems or not all(problem.ended for problem in problems):
        return None
    stock = take_stock(survey)
    if stock.removed or stock.aside:
        return None
    quarantine = Quarantine(filesystem, directory, at_ns=clock.wall_ns())
    cut = tuple(TruncatedFile(item.path, item.offset_bytes, item.reason, item.dump) for item in problems)
    lost = tuple((name, first, last) for name, ranges in sorted(stock.lost.items()) for first, last in ranges)
    for item in cut:
        event("store.recovery.truncate", level=logging.WARNING, file=item.file, offset_bytes=item.offset_bytes,
              reason=item.reason, dump=item.dump)  # fmt: skip
    for channel, first, last in lost:
        event("store.recovery.lost", level=logging.WARNING, channel=channel, first=first, last=last)
    Operation(filesystem, survey, stock, quarantine).run()
    return Truncation(cut, lost, tuple(stock.uncertain), quarantine.path)
