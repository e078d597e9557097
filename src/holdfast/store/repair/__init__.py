"""Repair: a damaged store becomes a sound one, with everything that any intact byte still holds.

    survey ──► stock ──► plan ──► operation
    reads      decides   says     does

| file | purpose |
|---|---|
| salvage.py | bytes of bad sectors; the intact records of a damaged log, and the holes between them |
| chain.py | the files of one log among each other |
| frames.py | the events in the intact records of the write-ahead log, and the numbers that its holes swallowed |
| segments.py | segment files: intact, damaged in part, or somebody else's |
| oldrows.py | the rows of a catalog that can still be believed |
| readers.py | subscribers and their marks, from the catalog and the acknowledgement log |
| survey.py | everything that is left, as values |
| stock.py | what shall become of it; every seq is accounted for |
| plan.py | `plan_repair`, `apply_repair`, and both at once |
| harvest.py | writing rescued events as new segments |
| amend.py | one transaction that brings the catalog to what was decided |
| quarantine.py | where everything goes that is taken away |
| operation.py | the steps, in an order that can be interrupted anywhere |
| truncate.py | `truncate_bad_tail`: consent to open a store whose log files end too early |

Promise (G9): damaged bytes are never delivered, nothing is deleted without a copy in quarantine, no number is used
twice, and what is lost is named by channel and seq.
"""

from holdfast.store.repair.plan import (
    Action,
    MissingRange,
    RepairPlan,
    RepairReport,
    apply_repair,
    plan_repair,
    repair_store,
)

__all__ = ["Action", "MissingRange", "RepairPlan", "RepairReport", "apply_repair", "plan_repair", "repair_store"]
