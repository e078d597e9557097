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
    SenderHalted,
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
    if isinstance(error, SenderHalted):
        return ExitCode.NO
    return ExitCode.FAILED


_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (CorruptData, "run `holdfast verify` on the store to see everything that is damaged"),
    (AccessRefused, "show a credential that may: --token-file, HOLDFAST_TOKEN, or token= in the connect string"),
    (SenderHalted, "mend the cause, then send again; what is in a slot goes with `holdfast slots drain`"),
    (PermissionError, "run it as the user who owns the store"),
)
"""What to do next, where the error does not say so itself."""


def _message(error: Exception) -> str:
    """One line: what is wrong, and what to do."""
    text = str(error).partition("\n")[0]
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return f"{text}; {advice}"
    if _is_full(error):
        return f"no space left on the disk of the store: {text}; nothing is lost: free space, then repeat"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; check the path and the disk, then repeat"
    return text


def _is_full(error: Exception) -> bool:
    from holdfast.disk.filesystem import is_full  # noqa: PLC0415  # `holdfast --help` need not wait for Arrow

    return isinstance(error, OSError | sqlite3.Error) and is_full(error)


def answer_json(command: str, result: object, *, ok: bool = True) -> None:
    """Print the envelope with a result."""
    print_json(command, {"result": msgspec.to_builtins(result)}, ok=ok)


def print_json(command: str, body: dict[str, Any], *, ok: bool) -> None:
    """Print the envelope."""
    text = msgspec.json.format(msgspec.json.encode({"command": command, "ok": ok, **body}), indent=2)
    sys.stdout.write(text.decode() + "\n")
