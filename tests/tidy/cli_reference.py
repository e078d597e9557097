"""Prints the page `docs/reference/cli.md` from the commands themselves.

python -m tests.tidy.cli_reference > docs/reference/cli.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from holdfast.cli.main import app

_HEAD = """# The command line

Printed by `python -m tests.tidy.cli_reference`; a test compares.

Exit codes: 0 done; 1 the answer is no (for example, `verify` found damage); 2 bad usage or configuration; 3 refused to
start; 4 input/output failure.
"""


def cli_markdown() -> str:
    """The page."""
    root: Any = typer.main.get_command(app)
    return _HEAD + "".join(_command(name, command) for name, command in commands("holdfast", root))


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command that is shown, with its full name."""
    if not command.hidden:
        yield name, command
        for child in getattr(command, "commands", {}).values():
            yield from commands(f"{name} {child.name}", child)


def _command(name: str, command: Any) -> str:
    arguments = [item for item in command.params if item.param_type_name == "argument" and not item.hidden]
    options = [item for item in command.params if item.param_type_name == "option" and not _is_noise(item)]
    words = [_name(item) if item.required else f"[{_name(item)}]" for item in arguments]
    usage = [name, *(["[OPTIONS]"] if options else []), *words, *(["COMMAND"] if hasattr(command, "commands") else [])]
    text = "\n".join(line.strip() for line in (command.help or "").replace("\b", "").strip().splitlines())
    rows = "".join(_row(item) for item in [*arguments, *options])
    epilog = [line.strip() for line in (command.epilog or "").splitlines() if line.strip()]
    shown = "\n".join(f"    {line}" for line in epilog[1:]) if epilog[:1] == ["Examples:"] else ""
    examples = f"\nExamples:\n\n{shown}\n" if shown else ""
    table = f"\n| argument or option | default | meaning |\n|---|---|---|\n{rows}" if rows else ""
    return f"\n## {name}\n\n    {' '.join(usage)}\n\n{text}\n{table}{examples}"


def _is_noise(option: Any) -> bool:
    return option.hidden or bool({"--install-completion", "--show-completion"} & set(option.opts))


def _name(item: Any) -> str:
    if item.param_type_name == "argument":
        return str(item.metavar or item.name.upper())
    return ", ".join([*item.opts, *item.secondary_opts])


def _row(item: Any) -> str:
    flags = {True: "yes", False: "no"}
    value = flags[item.default] if isinstance(item.default, bool) else item.default
    default = "required" if item.required else "" if value is None else f"`{value}`"
    meaning = " ".join((item.help or "").replace("|", "\\|").split())
    return f"| `{_name(item)}` | {default} | {meaning} |\n"


if __name__ == "__main__":
    print(cli_markdown(), end="")  # noqa: T201
