"""How a command ends: its exit code, its error line, its JSON envelope.

Promise: with `--json`, standard output is one document, also when the command fails:

    {"command": "verify", "ok": true, "result": {...}}
    {"command": "verify", "ok": false, "error": {"type": "Locked", "message": "..."}}

`ok` is false whenever the exit code is not 0. Errors also go to standard error, as one line without a traceback.
An exception that is none of those below is a bug and keeps its traceback.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import msgspec
import typer

from holdfast.errors import (
    AccessRefused,
    BadRequest,
    CannotListen,
    CorruptData,
    DamagedData,
    HoldfastError,
    Locked,
    TierMismatch,
    TierRefused,
    Unprotected,
)


class ExitCode(IntEnum):
    """What a program that calls us can rely on."""

    DONE = 0
    NO = 1
    USAGE = 2
    REFUSED = 3
    FAILED = 4


REFUSALS = (AccessRefused, CannotListen, DamagedData, Locked, TierMismatch, TierRefused, Unprotected)
"""What is not done although it was asked for correctly: exit code 3."""


@contextmanager
def answering(command: str, *, as_json: bool) -> Iterator[None]:
    """Turn what a command raises into its error line and exit code."""
    try:
        yield
    except (HoldfastError, OSError, sqlite3.Error) as error:
        message = _message(error)
        if as_json:
            print_json(command, {"error": {"type": type(error).__name__, "message": message}}, ok=False)
        sys.stderr.write(f"holdfast: {message}\n")
        raise typer.Exit(exit_code(error)) from error


def exit_code(error: BaseException) -> ExitCode:
    """Which of the five it is."""
    if isinstance(error, BadRequest):
        return ExitCode.USAGE
    if isinstance(error, REFUSALS):
        return ExitCode.REFUSED
    return ExitCode.FAILED


def _message(error: Exception) -> str:
    """One line: what is wrong, and what to do where the error does not say so itself."""
    text = str(error).partition("\n")[0]
    if isinstance(error, CorruptData):
        return f"{text}; run `holdfast verify` on the store to see everything that is damaged"
    if isinstance(error, AccessRefused):
        return f"{text}; show a credential that may: --token-file, HOLDFAST_TOKEN, or token= in the connect string"
    if isinstance(error, PermissionError):
        return f"{text}; run it as the user who owns the store"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path and the disk, then repeat"
    return text


def answer_json(command: str, result: object, *, ok: bool = True) -> None:
    """Print the envelope with a result."""
    print_json(command, {"result": msgspec.to_builtins(result)}, ok=ok)


def print_json(command: str, body: dict[str, Any], *, ok: bool) -> None:
    """Print the envelope."""
    text = msgspec.json.format(msgspec.json.encode({"command": command, "ok": ok, **body}), indent=2)
    sys.stdout.write(text.decode() + "\n")
