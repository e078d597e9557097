"""Fakes that we ship, for our tests and for those of programs that embed Holdfast.

Promise: each stands in for one seam of Holdfast, keeps that seam's contract (the same suite runs over the real part and
the fake), and is deterministic: what it leaves to chance comes from a seed.

| file | purpose |
|---|---|
| clock.py | `ManualClock`: time that moves only when told to |
| history/ | what happened in a run, and the one checker that says whether it may have |
| simulation/ | the whole pipeline in one process, on virtual time, from one seed |
| crashdisk.py | `CrashFilesystem`: a disk in memory with power cuts, kills, I/O errors and a full disk |
| objects.py | `MemoryObjects`, `FaultyObjects`: an object store in memory, and faults in front of any |
| platter.py | what that disk holds, and what a power cut leaves of it |
"""

from __future__ import annotations

from holdfast.testing.clock import ManualClock
from holdfast.testing.crashdisk import CrashFilesystem, PowerCut

__all__ = ["CrashFilesystem", "ManualClock", "PowerCut"]
