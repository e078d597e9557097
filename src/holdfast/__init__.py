"""Holdfast: a durable store-and-forward pipeline.

Programs hand it events; it keeps every one of them through crashes, outages and restarts; readers take them from there,
each at its own pace. The parts, in the order an event meets them:

    cli         the command `holdfast`: a demo, looking into a store, verifying and repairing it
    store       accepts frames, logs them, seals them into Arrow segments; subscribers, retention, recovery, repair
    model       the words every part shares, as types: names, positions, frames, schemas
    disk        the seam to the disk: what each call promises, checksums, records, one append log
    testing     honest fakes that we ship: a disk that loses power, a clock that is set by hand

What every part relies on:

    telemetry   log events: one line, one fixed name
    config      every setting, declared once with its default and the reason for it
    clock       the seam to time
    errors      every error, sorted by what the caller can do about it

A part knows only what the layers below it offer; `pyproject.toml` lists the layers and import-linter holds them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.store.store import Store

__version__ = "0.1.0"
__all__ = ["Store", "__version__"]

_HOMES = {"Store": "holdfast.store.store"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, so that `import holdfast.errors` stays cheap."""
        if name not in _HOMES:
            raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
