"""What the parts of a simulation share: time, chance, the network, the history, the trace, and processes with disks."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from holdfast.clock import NS_PER_S
from holdfast.testing.crashdisk import CrashFilesystem, PowerCut
from holdfast.testing.history import Crash, Happening, Restart
from holdfast.testing.simulation.network import PING, End, Network
from holdfast.testing.simulation.timeline import Process, Timeline

SILENT_S = 2.0
"""After so much silence a client asks whether the server lives; after twice as much it gives up."""


class Scene:
    """One run."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.timeline = Timeline()
        self.clock = self.timeline.clock
        self.network = Network(self.timeline, random.Random(self.chance.random()))
        self.history: list[Happening] = []
        self.network.mark = lambda: len(self.history)
        self.faults: Counter[str] = Counter()
        self.sessions = count(1)
        self.trouble = True
        """Whether things still go wrong."""
        self.lines: list[str] = []
        self._tracing = tracing
        self._digest = hashlib.sha256()

    def note(self, who: str, what: str) -> None:
        """A line of the trace."""
        line = f"{self.timeline.now_ns / NS_PER_S:10.4f} {who:<10} {what}"
        self._digest.update(line.encode())
        if self._tracing:
            self.lines.append(line)

    def happened(self, who: str, *happenings: Happening) -> None:
        """Lines of the history."""
        for happening in happenings:
            self.history.append(happening)
            self.note(who, str(happening))

    @property
    def trace_hash(self) -> str:
        """The same for two runs that went the same way."""
        return self._digest.hexdigest()

    def injected(self, kind: str, who: str, detail: str = "") -> None:
        """Count a fault."""
        self.faults[kind] += 1
        self.note(who, f"! {kind} {detail}".rstrip())


class Machine(Process):
    """A process with a disk of its own; what it does may end with the power."""

    def __init__(self, name: str, scene: Scene) -> None:
        super().__init__(name, scene.timeline)
        self.scene = scene
        self.chance = random.Random(scene.chance.random())
        self.disk = CrashFilesystem(seed=self.chance.randrange(1 << 30))

    def act(self, action: Callable[..., object], *args: Any) -> None:
        """Do something now. What a life leaves behind after its end, whatever it raises, is nobody's business."""
        life = self.life
        try:
            action(*args)
        except PowerCut:
            if self.life == life:
                self.lose_power()
        except Exception:
            if self.life == life:
                raise

    def restart(self, after_s: float) -> None:
        """Begin another life."""
        self.later(after_s, self.start)

    def start(self) -> None:
        """What a life begins with; sets `alive`."""
        raise NotImplementedError

    def started(self) -> None:
        """It runs."""
        self.alive = True
        self.scene.happened(self.name, Restart(self.name))

    def kill(self) -> None:
        """SIGKILL: what was written stays, as far as the power does."""
        self._die("killed")
        self.disk = self.disk.after_kill()

    def lose_power(self) -> None:
        """What was not synced may be gone."""
        self._die("power")
        self.disk = self.disk.after_power_cut(self._state_of_disk())

    def _state_of_disk(self) -> int:
        return self.chance.choice((0, 0, 1, self.chance.randrange(2, 1 << 30)))

    def _die(self, how: str) -> None:
        self.scene.happened(self.name, Crash(self.name, how))
        self.scene.network.died(self, silently=how == "power")
        self.end_life()
        self.forget()
        self.restart(0.05 + self.chance.random() * (1.0 if self.scene.trouble else 0.1))

    def forget(self) -> None:
        """Drop what was in memory."""


class Client(Machine):
    """A machine with one connection at a time, which notices when the server has fallen silent."""

    def __init__(self, name: str, scene: Scene) -> None:
        super().__init__(name, scene)
        self.end: End | None = None
        self._heard_at_ns = 0

    @property
    def said_at(self) -> int | None:
        """How many lines the history had when the server sent what is being received."""
        return self.end.sent_at if self.end is not None else None

    def hold(self, end: End) -> None:
        """Use a connection."""
        self.end = end
        self._heard_at_ns = self.timeline.now_ns
        end.received = self._hear
        end.ended = self._lost
        self.later(SILENT_S / 2, self._listen, end)

    def _hear(self, message: bytes) -> None:
        self._heard_at_ns = self.timeline.now_ns
        if message not in (PING, b"pong"):
            self.received(message)

    def _listen(self, end: End) -> None:
        if end is not self.end:
            return
        silent_s = (self.timeline.now_ns - self._heard_at_ns) / NS_PER_S
        if silent_s >= 2 * SILENT_S:
            end.close()
            self._lost(None, "the server is silent")
            return
        if silent_s >= SILENT_S:
            end.send(PING)
        self.later(SILENT_S / 2, self._listen, end)

    def _lost(self, code: int | None, reason: str) -> None:
        self.end = None
        self.scene.note(self.name, f"lost the connection: {code} {reason}")
        self.lost(code, reason)

    def hang_up(self, reason: str) -> None:
        """End the connection."""
        if self.end is not None:
            end, self.end = self.end, None
            end.close()
            self.later(0.0, self.lost, None, reason)

    def received(self, message: bytes) -> None:
        """A message of the server."""
        raise NotImplementedError

    def lost(self, code: int | None, reason: str) -> None:
        """The connection is gone."""
        raise NotImplementedError

    def forget(self) -> None:
        self.end = None
