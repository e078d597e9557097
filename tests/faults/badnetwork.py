"""A network that loses, doubles, delays and reorders packets, or swallows them, between two real kernels' TCP stacks.

    namespace A ── tun ──► this process: each packet is judged ──► tun ── namespace B
       10.77.x.1                                                     10.77.x.2

Two network namespaces, each with a TUN device whose packets come to a thread here. Nothing of the machine's own network
is touched, and no kernel module for faults is needed. Processes enter a namespace by `nsenter`: `ip netns exec` would
give them mounts of their own, which keep filesystems alive that another test cuts off.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
from dataclasses import dataclass
from types import TracebackType

from holdfast.clock import NS_PER_S, SystemClock

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_BYTES_MAX = 65536


@dataclass(frozen=True)
class Weather:
    """What happens to packets; shares are of 1."""

    lost: float = 0.0
    doubled: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """More than the time between packets means that they overtake each other."""
    deaf: tuple[int, ...] = ()
    """Sides whose packets go nowhere: (0,) is half a partition, (0, 1) a whole one."""


FINE = Weather()
PARTED = Weather(deaf=(0, 1))


class BadNetwork:
    """Two namespaces and the way between them."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.weather = FINE
        self.packets = self.lost = 0
        self.namespaces = (f"{name}a", f"{name}b")
        subnet = chance.randrange(1, 250)
        self.addresses = (f"10.77.{subnet}.1", f"10.77.{subnet}.2")
        self._name = name
        self._chance = chance
        self._clock = SystemClock()
        self._fds: list[int] = []
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="bad-network")

    def enter(self, side: int) -> list[str]:
        """What stands before a command that runs on a side."""
        return ["nsenter", f"--net=/run/netns/{self.namespaces[side]}"]

    def __enter__(self) -> BadNetwork:
        for side, (namespace, address) in enumerate(zip(self.namespaces, self.addresses, strict=True)):
            device = f"{self._name}{side}"
            _ip("netns", "add", namespace)
            self._fds.append(_open_tun(device))
            _ip("link", "set", device, "netns", namespace)
            _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", device)
            _ip("-n", namespace, "link", "set", device, "up")
            _ip("-n", namespace, "link", "set", "lo", "up")
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        os.write(self._stop_writer, b"x")
        self._thread.join(30)
        for fd in (*self._fds, self._stop_reader, self._stop_writer):
            os.close(fd)
        for namespace in self.namespaces:
            _ip("netns", "del", namespace)

    def _carry(self) -> None:
        waiting: list[tuple[int, int, int, bytes]] = []
        while True:
            pause_s = max(0.0, (waiting[0][0] - self._clock.monotonic_ns()) / NS_PER_S) if waiting else None
            ready, _, _ = select.select([*self._fds, self._stop_reader], [], [], pause_s)
            if self._stop_reader in ready:
                return
            for fd in ready:
                packet = os.read(fd, PACKET_BYTES_MAX)
                for due_ns in self._judge(self._fds.index(fd)):
                    heapq.heappush(waiting, (due_ns, self.packets, 1 - self._fds.index(fd), packet))
            now_ns = self._clock.monotonic_ns()
            while waiting and waiting[0][0] <= now_ns:
                _, _, side, packet = heapq.heappop(waiting)
                os.write(self._fds[side], packet)

    def _judge(self, side: int) -> list[int]:
        """When a packet of that side arrives: never, once, or twice."""
        weather, chance = self.weather, self._chance
        self.packets += 1
        if side in weather.deaf or chance.random() < weather.lost:
            self.lost += 1
            return []
        copies = 2 if chance.random() < weather.doubled else 1
        now_ns = self._clock.monotonic_ns()
        return [now_ns + int((weather.delay_s + chance.random() * weather.jitter_s) * NS_PER_S) for _ in range(copies)]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _open_tun(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd
