"""Where records come from: resource and scope of each row of a root table, and the tables of a batch by name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otap.ids import DELTA, Numbers
from holdfast.wire.otap.limits import Budget, Limits
from holdfast.wire.otap.messages import Payload
from holdfast.wire.otap.reading import Tables
from holdfast.wire.otap.tables import Table
from holdfast.wire.otap.values import attributes
from holdfast.wire.otlp import parts
from holdfast.wire.otlp.parts import Columns


class Found:
    """The tables of one batch and the budget of its rows."""

    def __init__(self, tables: Tables, limits: Limits) -> None:
        self.budget = Budget(limits)
        self._tables = tables

    def table(self, kind: Payload) -> Table | None:
        """A table; None if it did not come."""
        found = self._tables.get(kind)
        return Table(kind.name, found, self.budget) if found is not None else None


def context(root: Table, found: Found) -> Columns:
    """The columns that say where each row comes from."""
    resource, scope = root.struct("resource"), root.struct("scope")
    named = _shared(resource, found, Payload.RESOURCE_ATTRS, "resource_")
    return {
        **named,
        "resource_dropped_attributes_count": resource.number("dropped_attributes_count", pa.int64()),
        "resource_schema_url": parts.nothing_if_empty(resource.column("schema_url", pa.string())),
        "scope_name": parts.nothing_if_empty(scope.column("name", pa.string())),
        "scope_version": parts.nothing_if_empty(scope.column("version", pa.string())),
        **_shared(scope, found, Payload.SCOPE_ATTRS, "scope_"),
        "scope_dropped_attributes_count": scope.number("dropped_attributes_count", pa.int64()),
        "scope_schema_url": parts.nothing_if_empty(root.column("schema_url", pa.string())),
    }


def _shared(struct: Table, found: Found, kind: Payload, prefix: str) -> Columns:
    """Attributes that many rows share: made once for each id, then repeated."""
    ids: Numbers = struct.ids("id", DELTA)
    distinct, at = np.unique(ids, return_inverse=True)
    columns = attributes(distinct, found.table(kind), prefix)
    if kind is Payload.RESOURCE_ATTRS:
        columns["service_name"] = pc.map_lookup(columns["resource_attributes"], "service.name", "first")
    return {name: found.budget.take(column, at) for name, column in columns.items()}
