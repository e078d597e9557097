"""What is done between commits, on the writer's thread: snapshots of documents that changed much, and pruning.

Promise: a chore that fails is logged and tried again later; it never fails a client.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from holdfast.config import MS
from holdfast.config.sync import SyncConfig
from holdfast.errors import HoldfastError
from holdfast.sync.eventlog import EventLog
from holdfast.sync.snapshots import Snapshots
from holdfast.sync.validation import Kept, Key, TreeValidator
from holdfast.telemetry import event
from holdfast.wire.sync import Committed, Snapshot
from holdfast.wire.sync.jsontext import parse

EVENTS_MAX = 2**62
"""A document is made again from all events of its partition."""
SNAPSHOT_BYTES_MAX = 16 << 20
"""Larger documents are not kept as snapshots: they would not fit a message."""


class TreeHistory:
    """Documents from the log, and back into snapshots."""

    def __init__(self, config: SyncConfig, log: EventLog, snapshots: Snapshots) -> None:
        self._config = config
        self._log = log
        self._snapshots = snapshots
        self._pruned: dict[str, int] = {}
        self.validator = TreeValidator(self._rebuild, strict=config.tree_policy == "strict")

    def _rebuild(self, key: Key) -> tuple[Kept, Iterable[Committed]]:
        found = self._snapshots.latest(key, upto=EVENTS_MAX)
        kept = Kept({}, 0, 0)
        if found is not None:
            kept = Kept(parse(found.state), found.committed_id, len(found.state))
        scopes = frozenset([key[0]])
        return kept, self._log.events(scopes, since=kept.committed_id, upto=EVENTS_MAX, limit=EVENTS_MAX)

    @property
    def is_due(self) -> bool:
        """Whether there is a snapshot to take."""
        return bool(self._config.snapshot_every and self.validator.due(self._config.snapshot_every))

    def do(self, now_ms: int) -> None:
        """Take snapshots that are due, and let go of what old ones hold."""
        try:
            if self._config.snapshot_every:
                self._take(now_ms)
            if self._config.prune_age_ns:
                self._prune(now_ms)
        except HoldfastError as error:
            event("sync.chore.fail", level=logging.WARNING, reason=error)

    def _take(self, now_ms: int) -> None:
        for key, kept in self.validator.due(self._config.snapshot_every):
            state = msgspec.json.encode(kept.document)
            if len(state) <= SNAPSHOT_BYTES_MAX:
                self._snapshots.take(key, Snapshot(key[1], kept.committed_id, state), now_ms)
            kept.events = 0

    def _prune(self, now_ms: int) -> None:
        for scope, committed_id in self._snapshots.older_than(now_ms - self._config.prune_age_ns // MS):
            if self._pruned.get(scope, 0) < committed_id:
                self._log.let_go(scope, upto=committed_id)
                self._pruned[scope] = committed_id
