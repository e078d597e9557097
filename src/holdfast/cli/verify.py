"""`holdfast verify`: findings and the verdict.

Promise: shows what `holdfast.store.verify` found. The last line is the verdict; the exit code says the same.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import make_console, print_place, several, size
from holdfast.cli.progress import following_files
from holdfast.store.verify import VerifyReport, verify_store


def run(directory: Path, *, as_json: bool) -> ExitCode:
    """Check a store; NO if anything is damaged."""
    with following_files("verifying", directory, quiet=as_json) as filesystem:
        report = verify_store(filesystem, directory)
    if as_json:
        answer_json("verify", report, ok=report.intact)
    else:
        _show(make_console(), report)
    return ExitCode.DONE if report.intact else ExitCode.NO


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
        advice = "Nothing was changed. Make a copy of the directory, then `holdfast repair` says what can be mended."
        console.print(f"{verdict}\n{advice}", soft_wrap=True)
    else:
        console.print(f"[bold green]intact[/]: {escape(report.directory)}", soft_wrap=True)
