"""Which server a command asks, and with which credential.

Promise: every command with `--addr` takes its token from `--token-file`, or from HOLDFAST_TOKEN.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.consumer.adminclient import ServerAt

TOKEN = "HOLDFAST_TOKEN"  # noqa: S105  # the variable's name


def server_at(addr: str, token_file: Path | str | None) -> ServerAt:
    """The server of `--addr`."""
    return ServerAt(addr, token_of_environment(token_file), str(token_file or ""))


def token_of_environment(token_file: Path | str | None) -> str:
    """The token of the environment, where no file was named."""
    return "" if token_file else os.environ.get(TOKEN, "")
