"""A Python worker of Spark: made cheap to use again, and not silent.

After each task Spark has a worker look for garbage among all that it ever loaded: some 50 ms of processor time, most of
what a small micro-batch costs in Python. What the first tasks have loaded stays for the worker's life anyway, so it is
put where nobody looks. What comes later is collected as ever.

Spark's Python processes set up no logging, so nobody would see our warnings. There, and only there, they go to standard
error, which Spark hands on: to that of the driver, or into the log of the executor. Where a program has handlers of its
own, these decide.
"""

from __future__ import annotations

import gc
import logging
import sys
from itertools import count

TASKS = 2
"""Tasks until all is loaded that tasks need; the second may write what the first has read."""

_begun = count()


def settle() -> None:
    """Called as each task of ours begins, or each plan."""
    if next(_begun) < TASKS:
        speak()
        gc.freeze()


def speak() -> None:
    """Have the warnings of this process on its standard error, if it is one of Spark's."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    logger = logging.getLogger("holdfast")
    if main is None or not main.name.startswith("pyspark.") or logger.getEffectiveLevel() > logging.WARNING:
        return
    if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s holdfast %(levelname)s %(message)s"))
    handler.addFilter(lambda _record: not logging.getLogger().handlers)
    logger.addHandler(handler)
