"""`holdfast repair`: what is wrong, what would be done, and what is lost; with `--apply`, doing it.

Promise: without `--apply` nothing is changed. Shows what `holdfast.store.repair` planned or did; the last line is the
verdict, and the exit code says the same: DONE if there is nothing to do or it was done, NO if something should be done.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import make_console, make_table, print_place, several
from holdfast.cli.progress import following_files
from holdfast.store.repair import RepairPlan, RepairReport, plan_repair, repair_store


def run(directory: Path, *, apply: bool, rebuild_catalog: bool, as_json: bool) -> ExitCode:
    """Plan a repair, and carry it out if asked to."""
    directory = directory.absolute()
    with following_files("repairing" if apply else "looking at", directory, quiet=as_json) as filesystem:
        if apply:
            report = repair_store(filesystem, directory, rebuild_catalog=rebuild_catalog)
        else:
            report = RepairReport(plan_repair(filesystem, directory, rebuild_catalog=rebuild_catalog), "", (), 0)
    done = apply or not report.plan.needed
    if as_json:
        answer_json("repair", report, ok=done)
    else:
        _show(make_console(), report.plan, report if report.quarantine else None)
    return ExitCode.DONE if done else ExitCode.NO


def _show(console: Console, plan: RepairPlan, report: RepairReport | None) -> None:
    for finding in plan.findings:
        place = f"{_shown(plan, finding.file)}, byte {finding.offset_bytes}: {finding.reason}"
        print_place(console, "damage", place, dump=finding.dump)
    for action in plan.actions:
        verb = "done" if report is not None else "would"
        console.print(f"[bold]{verb}[/] {escape(_shown(plan, action.file))}: {escape(action.text)}", soft_wrap=True)
    _show_missing(console, plan, done=report is not None)
    if not plan.needed:
        console.print(f"[bold green]nothing to repair[/]: {escape(plan.directory)}", soft_wrap=True)
    elif report is None:
        console.print(f"[bold red]damaged[/]: {escape(plan.directory)}", soft_wrap=True)
        console.print("Nothing was changed. Stop here if you have a good copy; `--apply` does what is listed above.")
    else:
        console.print(f"[bold green]repaired[/]: {escape(plan.directory)}", soft_wrap=True)
        console.print(f"What was taken away is in {escape(report.quarantine)}", soft_wrap=True)


def _shown(plan: RepairPlan, file: str) -> str:
    return str(Path(file).relative_to(plan.directory)) if Path(file).is_relative_to(plan.directory) else file


def _show_missing(console: Console, plan: RepairPlan, *, done: bool) -> None:
    if plan.rescued_events:
        rescued = f"{several(plan.rescued_events, 'event')} that only damaged or discarded files hold"
        console.print(f"{rescued} {'were' if done else 'can be'} rescued.")
    if plan.missing:
        table = make_table(
            "channel", "first seq", "last seq", "events", "why", right=("first seq", "last seq", "events")
        )
        for item in plan.missing:
            table.add_row(
                escape(item.channel), str(item.first_seq), str(item.last_seq), f"{item.events:,}", item.reason
            )
        console.print(table)
        console.print(f"{several(plan.lost_events, 'event')} lost for good.")
    for text in plan.uncertain:
        console.print(f"[yellow]unsure[/] {escape(text)}", soft_wrap=True)
