"""Retention: what goes, when, and how every loss is told.

| file | purpose |
|---|---|
| timekeeping.py | a time of day that does not believe jumps of the wall clock |
| evict.py | the one way a segment goes: told first, then deleted or archived |
| partitions.py | what the partitions of a `limits` channel still need |
| tiered.py | which local copies go because the tier has them, and what goes from the tier |
| sharedroom.py | the size cap of several stores, shared by their processes |
| keeper.py | what goes: confirmed, then old, then over a channel's limit, then over the size cap |

Precedence: confirmed first, then age, then channel limits, then the size cap. Under `backpressure` the size cap deletes
confirmed data only; everything else waits.
"""
