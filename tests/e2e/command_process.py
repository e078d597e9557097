"""`holdfast` with any arguments, in a process out of a nursery: the command line is built once, not in every child."""

from __future__ import annotations

from collections.abc import Sequence

from typer.main import get_command

from holdfast.cli.main import app

COMMAND = get_command(app)


def main(arguments: Sequence[str]) -> None:
    """What the installed program does."""
    COMMAND(list(arguments))
