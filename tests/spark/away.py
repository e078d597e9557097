"""A server, or an object store, that is away for a moment and comes back to a port that nobody took meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conformance.s3servers import rclone_at
from tests.e2e.served import free_port
from tests.unit.server.admin.running import WAIT_S, Running


def lasting() -> dict[str, str]:
    """Settings of a server that will come back to its port."""
    return {"server.admin": f"127.0.0.1:{free_port()}"}


@contextmanager
def back_once_missed(directory: Path, port: int) -> Iterator[Future[Running]]:
    """The server of a store that is away, and comes back to its port when somebody has asked for it in vain."""

    def come_back() -> Running:
        with listener:
            listener.accept()[0].close()
        return Running(directory, {"server.admin": f"127.0.0.1:{port}"}).__enter__()

    listener = socket.create_server(("127.0.0.1", port))
    listener.settimeout(WAIT_S)
    with ThreadPoolExecutor(1) as threads:
        back = threads.submit(come_back)
        try:
            yield back
        finally:
            if back.exception() is None:
                back.result().__exit__()


@contextmanager
def objects_back_once_missed(port: int, folder: Path) -> Iterator[None]:
    """The objects of a folder over S3, at a port where somebody has asked for them in vain before."""
    with ExitStack() as held, socket.create_server(("127.0.0.1", port)) as listener, ThreadPoolExecutor(1) as threads:
        listener.settimeout(WAIT_S)

        def come_back() -> None:
            with listener:
                listener.accept()[0].close()
            held.enter_context(rclone_at(port, folder))

        back = threads.submit(come_back)
        yield
        back.result()
