"""`holdfast verify`: findings and the verdict.

Promise: shows what `holdfast.store.verify` found. The last line is the verdict; the exit code says the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import make_console, print_place, several, size
from holdfast.disk.local import LocalFilesystem
from holdfast.store.verify import VerifyReport, verify_store


def run(directory: Path, *, as_json: bool) -> ExitCode:
    """Check a store; NO if anything is damaged."""
    console = make_console(quiet=as_json)
    moving = console.is_terminal and not as_json
    with console.status("verifying") if moving else nullcontext() as status:
        report = verify_store(LocalFilesystem(), directory, on_file=lambda path: _follow(status, path))
    if as_json:
        answer_json("verify", report, ok=report.intact)
    else:
        _show(console, report)
    return ExitCode.DONE if report.intact else ExitCode.NO


def _follow(status: Status | None, path: Path) -> None:
    if status is not None:
        status.update(escape(f"verifying {path.name}"))


def _show(console: Console, report: VerifyReport) -> None:
    for finding in report.findings:
        file = Path(finding.file)
        shown = file.relative_to(report.directory) if file.is_relative_to(report.directory) else file
        at = f", byte {finding.offset_bytes}" if finding.severity == "damage" or finding.offset_bytes else ""
        print_place(console, finding.severity, f"{shown}{at}: {finding.reason}", dump=finding.dump)
    console.print(
        f"checked {several(report.files, 'file')} ({size(report.checked_bytes)}): "
        f"{several(report.segments, 'segment')}, "
        f"{several(report.records, 'log record')}, {several(report.events, 'event')}",
        soft_wrap=True,
    )
    damaged = sum(finding.severity == "damage" for finding in report.findings)
    if damaged:
        verdict = f"[bold red]damaged[/] in {several(damaged, 'place')}: {escape(report.directory)}"
        advice = "Nothing was changed. Keep a copy of the directory before anything else is tried."
        console.print(f"{verdict}\n{advice}", soft_wrap=True)
    else:
        console.print(f"[bold green]intact[/]: {escape(report.directory)}", soft_wrap=True)
