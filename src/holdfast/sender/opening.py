"""From settings to a ring: memory without `sf_dir`, a slot with it."""

from __future__ import annotations

from pathlib import Path

from holdfast.clock import Clock, SystemClock
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import LocalFilesystem
from holdfast.sender.conf import SenderConfig
from holdfast.sender.memory import Memory
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot, slot_directory
from holdfast.sender.substrate import Backing, LinkState, RingOptions, connected


def ring_options(config: SenderConfig) -> RingOptions:
    """What the connect string says about the ring."""
    return RingOptions(
        segment_bytes=config.sf_max_segment_bytes,
        cap_bytes=config.total_bytes_max,
        append_deadline_ms=config.sf_append_deadline_millis,
        durability=config.sf_durability,
        sync_interval_ms=config.sf_sync_interval_millis,
    )


def open_ring(
    config: SenderConfig,
    *,
    filesystem: Filesystem | None = None,
    clock: Clock | None = None,
    link_state: LinkState = connected,
    threaded: bool = True,
) -> Ring:
    """The sender's own ring, recovered if there was something to recover."""
    clock = clock or SystemClock()
    backing: Backing
    if config.sf_dir is None:
        backing = Memory()
    else:
        backing = Slot.open(
            slot_directory(Path(config.sf_dir), config.sender_id),
            filesystem=filesystem or LocalFilesystem(),
            clock=clock,
            durable=config.sf_durability != "memory",
        )
    return Ring(backing, ring_options(config), clock=clock, link_state=link_state, threaded=threaded)


def open_to_drain(
    directory: Path,
    config: SenderConfig,
    *,
    filesystem: Filesystem | None = None,
    clock: Clock | None = None,
) -> Ring:
    """A slot that nobody owns any more, to be sent and emptied. `Locked` when somebody does own it."""
    clock = clock or SystemClock()
    slot = Slot.open(directory, filesystem=filesystem or LocalFilesystem(), clock=clock, writing=False)
    return Ring(slot, ring_options(config)._replace(durability="memory"), clock=clock)
