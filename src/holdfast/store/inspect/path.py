"""Any path: what it is, and what is in it.

Promise: a file is known by its first bytes or, where those are damaged, by its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from holdfast.disk.appendlog import MAGIC as LOG_MAGIC
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.errors import BadRequest, UnsupportedFormat
from holdfast.store.catalog import CATALOG_NAME
from holdfast.store.inspect.catalogs import CatalogView, inspect_catalog
from holdfast.store.inspect.copies import Damage, read_start
from holdfast.store.inspect.directory import LOG_FILE_NAME, StoreView, inspect_store
from holdfast.store.inspect.logs import LogView, inspect_log
from holdfast.store.segments.footer import MAGIC as ARROW_MAGIC
from holdfast.store.segments.reader import inspect_segment as report_segment

SQLITE_MAGIC = b"SQLite format 3\0"

SegmentView: TypeAlias = dict[str, Any]
"""What `segments.reader.inspect_segment` reports; `intact` says whether the file is what was written."""


def inspect_path(filesystem: Filesystem, path: Path) -> LogView | CatalogView | StoreView | SegmentView:
    """What `path` is, and what is in it; `BadRequest` if it is nothing of ours."""
    try:
        start = read_start(filesystem, path, len(SQLITE_MAGIC))
    except IsADirectoryError:
        return inspect_store(filesystem, path)
    if start.startswith(LOG_MAGIC) or LOG_FILE_NAME.fullmatch(path.name):
        return inspect_log(filesystem, path)
    if start.startswith(SQLITE_MAGIC) or path.name == CATALOG_NAME:
        return inspect_catalog(filesystem, path)
    if start.startswith(ARROW_MAGIC) or path.suffix == ".arrow":
        return inspect_segment(filesystem, path)
    raise BadRequest(
        f"{path} is no log, segment or catalog of holdfast; give one of these, or the directory of a store"
    )


def inspect_segment(filesystem: Filesystem, path: Path) -> SegmentView:
    """Everything a segment says of itself, or where it is damaged."""
    file = filesystem.open(path, Mode.READ)
    try:
        return report_segment(file)
    except UnsupportedFormat as error:
        damage = {"offset_bytes": 0, "reason": Damage.of(error).reason}
        report = {"file": str(path), "kind": "segment", "size_bytes": file.size_bytes()}
        return report | {"intact": False, "damage": damage}
    finally:
        file.close()
