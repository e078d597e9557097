"""Modules that need an extra of the package: imported by the command that needs them; if not installed, how to."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.errors import BadRequest


def import_needing(extra: str, module: str) -> Any:
    """The module; `BadRequest` with the command to run if what it stands on is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("holdfast"):
            raise
        raise BadRequest(f'{error.name} is not installed; run: pip install "holdfast[{extra}]"') from error


def read_settings(path: Path) -> Any:
    """The `ConfigFile` of a server and its store."""
    return import_needing("server", "holdfast.config.file").read(path)
