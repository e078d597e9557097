"""A Python worker of Spark, made cheap to use again.

After each task Spark has a worker look for garbage among all that it ever loaded: some 50 ms of processor time, most of
what a small micro-batch costs in Python. What the first tasks have loaded stays for the worker's life anyway, so it is
put where nobody looks. What comes later is collected as ever.
"""

from __future__ import annotations

import gc
from itertools import count

TASKS = 2
"""Tasks until all is loaded that tasks need; the second may write what the first has read."""

_begun = count()


def settle() -> None:
    """Called as each task of ours begins, or each plan."""
    if next(_begun) < TASKS:
        gc.freeze()
