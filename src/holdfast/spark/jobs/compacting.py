"""Compaction asked of a store in a directory, which nobody may have open, or of a running server, step by step.

The store does it (`store/compaction.py`): only its owner may swap segments, and the work is copying mapped bytes, which
a cluster would not do faster than the one disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from holdfast.config import StoreConfig
from holdfast.consumer.adminclient import AdminClient
from holdfast.errors import BadRequest
from holdfast.spark.jobs.replaying import Target
from holdfast.store.catalog import CATALOG_NAME
from holdfast.store.compaction import Compaction, CompactionPolicy, compact
from holdfast.store.store import Store

KEEP_ALL: Mapping[str, object] = {"retention.mode": "limits"}
GROUPS_AT_ONCE = 4
PATIENCE_S = 60.0

OnStep = Callable[[Compaction], None]


def compact_directory(
    directory: Path,
    channel: str,
    policy: CompactionPolicy,
    *,
    config: StoreConfig | Mapping[str, object] = KEEP_ALL,
    on_step: OnStep = lambda _: None,
) -> Compaction:
    """Open the store and put small segments of a channel together; `Locked` while somebody has it open.

    Without settings nothing is deleted, whoever has confirmed it. A directory that is no store does not become one.
    """
    if not (directory / CATALOG_NAME).exists():
        raise BadRequest(f"{directory} is not a store: it has no {CATALOG_NAME}; give the directory of one")
    with Store.open(directory, config, inline=True) as store:
        return _repeated(lambda: compact(store, channel, policy, groups_max=GROUPS_AT_ONCE), on_step)


def compact_server(server: Target, policy: CompactionPolicy, *, on_step: OnStep = lambda _: None) -> Compaction:
    """Have a server do it, beside all else that it does."""
    client = AdminClient(server, patience_s=PATIENCE_S)
    body = asdict(policy)

    def step() -> Compaction:
        return Compaction(**client.post("channels", server.channel, "compact", body=body))

    return _repeated(step, on_step)


def _repeated(step: Callable[[], Compaction], on_step: OnStep) -> Compaction:
    done = step()
    on_step(done)
    while done.more:
        done = done.plus(step())
        on_step(done)
    return done
