"""The whole pipeline in one process, on virtual time, from one seed.

| file | purpose |
|---|---|
| timeline.py | virtual time: what happens when; event loops and threads of processes |
| network.py | connections that are slow, cut, silent, or half there |
| scene.py | what all parts of a run share; processes with a disk |
| producer.py | a producer: slot, ring and connection loop are real |
| serving.py | the server: store, tier, ingest and delivery are real |
| reader.py | a consumer: the session is real |
| world.py | the cast of a seed, what goes wrong, the verdict |
| __main__.py | runs seeds, prints the trace of one |
"""

from __future__ import annotations

from holdfast.testing.simulation.world import NotSettled, Result, World, simulate

__all__ = ["NotSettled", "Result", "World", "simulate"]
