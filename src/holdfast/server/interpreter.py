"""How Python itself is set up in a process that serves: whose turn it is, and when it looks for garbage."""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = 0.0005
"""How long the event loop may keep other threads from running Python. After a sync the committer waits for its turn,
and all producers with it: a tenth of Python's default gave half as many frames again."""
GARBAGE_OBJECTS = 20_000
"""New objects between two looks for cycles. A burst of frames has thousands alive, and no cycles."""


def serve_many() -> None:
    """For the whole process, once everything is loaded: what is there by now is not looked at again."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GARBAGE_OBJECTS)
    gc.freeze()
