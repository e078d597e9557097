"""`holdfast completion`: the script with which a shell completes commands and options.

It asks the command itself, so that it knows what the installed version knows.
"""

from __future__ import annotations

import sys

from typer.completion import get_completion_script  # type: ignore[attr-defined]  # documented by --show-completion

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.errors import BadRequest

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HOLDFAST_COMPLETE"


def run(shell: str, *, as_json: bool) -> ExitCode:
    """Print the script."""
    if shell not in SHELLS:
        raise BadRequest(f"{shell!r} is not one of {', '.join(SHELLS)}")
    script = get_completion_script(prog_name="holdfast", complete_var=VARIABLE, shell=shell)
    if as_json:
        answer_json("completion", {"shell": shell, "script": script})
    else:
        sys.stdout.write(script + "\n")
    return ExitCode.DONE
