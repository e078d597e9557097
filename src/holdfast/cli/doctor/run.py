"""The command: all checks, a table, the verdict. Exit code 1 if something is bad."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import make_console, make_table, several
from holdfast.cli.doctor.disk import check_disk
from holdfast.cli.doctor.finding import Finding
from holdfast.cli.doctor.software import check_settings, check_software
from holdfast.cli.doctor.system import check_system
from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem

_STYLES = {"good": "green", "note": "yellow", "bad": "bold red"}


def run(directory: Path, *, config: Path | None, as_json: bool) -> ExitCode:
    """Check this machine."""
    settings, ports = check_settings(config) if config is not None else (None, {})
    found: list[Finding] = [
        *check_software(),
        *([settings] if settings is not None else []),
        *check_system(ports=ports),
        *check_disk(directory.absolute(), filesystem=LocalFilesystem(), clock=SystemClock()),
    ]
    bad = sum(item.state == "bad" for item in found)
    code = ExitCode.NO if bad else ExitCode.DONE
    if as_json:
        answer_json("doctor", {"directory": str(directory), "findings": found}, ok=not bad)
        return code
    console = make_console()
    table = make_table("check", "", "found", "what to do")
    for item in found:
        state = f"[{_STYLES[item.state]}]{item.state}[/]"
        table.add_row(item.check, state, escape(item.found), escape(item.advice))
    console.print(table)
    notes = sum(item.state == "note" for item in found)
    verdict = f"[bold red]{several(bad, 'thing')} must be changed[/]" if bad else "[bold green]fit to run a server[/]"
    console.print(f"{verdict}, {several(notes, 'note')}")
    return code
