"""A filesystem in a file, whose power is cut: the kernel throws away what it had not written, as a machine does.

`FS_IOC_SHUTDOWN` without a flush of the journal stops the filesystem at that instant. Every later call gives EIO, and
what was neither synced nor written back by chance is not in the image. Mounting it again replays the journal.

A sync that is under way at that instant may still return success although its data is gone: of files with reserved
space, ext4 forgets the error. On a machine without power nobody sees that answer. So a test counts what was said before
the cut, and nothing that was said after it.

A frozen filesystem is the other way to stop: nothing fails, nothing goes on, and nobody is told for how long.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from holdfast.clock import SystemClock
from tests.e2e.served import PATIENCE_S

FS_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
SIZE_BYTES = {"ext4": 256 << 20, "xfs": 320 << 20}  # XFS makes none below 300 MiB
_MAKE = {"ext4": ("mkfs.ext4", "-qF", "-O", "64bit"), "xfs": ("mkfs.xfs", "-qf")}


class LoopDisk:
    """One image, mounted until the block ends."""

    def __init__(self, directory: Path, kind: str, *, size_bytes: int = 0) -> None:
        self.kind = kind
        self.mount_point = directory / f"{kind}-mount"
        self._image = directory / f"{kind}.img"
        self._mounted = False
        self.mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_bytes or SIZE_BYTES[kind])
        subprocess.run([*_MAKE[kind], str(self._image)], check=True, capture_output=True)

    def mount(self) -> None:
        """Mount it; a journal is replayed."""
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.mount_point)], check=True)
        self._mounted = True
        (self.mount_point / "mounted").touch()  # fails where the filesystem of before is still held by somebody

    def cut(self) -> None:
        """The power goes: nothing that is not written yet ever will be."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Every write waits until the block ends; not even SIGKILL ends a process that waits so.

        A process of its own thaws the filesystem when its pipe is closed: by this block, or by the end of the test's
        process, whatever ended it.
        """
        thaw = subprocess.Popen(
            ["sh", "-c", 'read _; exec fsfreeze --unfreeze "$0"', str(self.mount_point)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            subprocess.run(["fsfreeze", "--freeze", str(self.mount_point)], check=True)
            yield
        finally:
            thaw.communicate(timeout=PATIENCE_S)
        assert thaw.returncode == 0, "the filesystem is still frozen"

    def unmount(self) -> None:
        """Every process that had files here must have ended; the kernel may take a moment to see that."""
        clock = SystemClock()
        give_up_ns = clock.monotonic_ns() + int(PATIENCE_S * 1e9)
        while True:
            ended = subprocess.run(["umount", str(self.mount_point)], capture_output=True, text=True, check=False)
            if ended.returncode == 0:
                self._mounted = False
                return
            assert clock.monotonic_ns() < give_up_ns, ended.stderr

    def after_power_is_back(self) -> None:
        """As a machine that starts again."""
        self.unmount()
        self.mount()

    def __enter__(self) -> LoopDisk:
        self.mount()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._mounted:  # lazily: a process that a failed test left behind must not keep the mount point
            subprocess.run(["umount", "--lazy", str(self.mount_point)], check=True)


__all__ = ["LoopDisk"]
