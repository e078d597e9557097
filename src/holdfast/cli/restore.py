"""`holdfast restore` and `holdfast verify --remote`: a store out of its tier, and whether the tier is whole.

Promise: a restore writes only into an empty directory, or one that is not there. As of now, the directory goes on with
the tier: `holdfast serve` uses it. As of an earlier time it is a copy to look into: a server refuses it with that tier,
since the tier has gone on.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import make_console, print_place, several, size
from holdfast.cli.extras import read_settings
from holdfast.cli.progress import following_growth
from holdfast.clock import SystemClock, wall_ns_of
from holdfast.config.tier import TierConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest
from holdfast.store.inspect.directory import catalog_of, list_store
from holdfast.tier import Tier
from holdfast.tier.check import TierReport, check_tier
from holdfast.tier.manifest import Entry
from holdfast.tier.opening import open_objects


def run(
    data: Path, *, url: str | None, prefix: str | None, config: Path | None, at: str | None, as_json: bool
) -> ExitCode:
    """Bring a store back into a directory."""
    settings = _settings(url, prefix, config)
    with following_growth("restoring", data, quiet=as_json):
        tier = Tier.connect(
            settings, filesystem=LocalFilesystem(), clock=SystemClock(), chance=random.Random(), until=_until(at)
        )
        try:
            report = tier.restore(data.absolute(), as_of_now=at is None)
        finally:
            tier.close()
    if as_json:
        answer_json("restore", report)
        return ExitCode.DONE
    console = make_console()
    console.print(
        f"restored {several(report.events, 'event')} in {several(report.segments, 'segment')} "
        f"({size(report.bytes)}) of {several(report.channels, 'channel')}, "
        f"{several(report.subscribers, 'subscriber')}, as of manifest entry {report.number}",
        soft_wrap=True,
    )
    console.print(f"[bold green]restored[/]: {escape(str(data))}", soft_wrap=True)
    return ExitCode.DONE


def check(directory: Path, *, url: str | None, prefix: str | None, config: Path | None, as_json: bool) -> ExitCode:
    """Read everything in a tier; NO if anything is damaged, or missing that the directory has only there."""
    settings = _settings(url, prefix, config)
    filesystem = LocalFilesystem()
    contents = catalog_of(filesystem, list_store(filesystem, directory))
    needed = [segment for segment in contents.segments if segment.meta.segment_seq in contents.remote]
    report = check_tier(open_objects(settings, filesystem), workers=settings.concurrency, needed=needed)
    if as_json:
        answer_json("verify", report, ok=report.intact)
    else:
        _show(make_console(), report)
    return ExitCode.DONE if report.intact else ExitCode.NO


def _show(console: Console, report: TierReport) -> None:
    for finding in report.findings:
        place = f"{finding.key}: {finding.reason} (channel {finding.channel}, {finding.first_seq}..{finding.last_seq})"
        print_place(console, "damage", place)
    console.print(
        f"checked {several(report.entries, 'manifest entry', 'manifest entries')}, "
        f"{several(report.segments, 'segment')} ({size(report.checked_bytes)}), {several(report.events, 'event')}",
        soft_wrap=True,
    )
    verdict = "[bold green]intact[/]" if report.intact else f"[bold red]damaged[/] in {len(report.findings)} places"
    console.print(f"{verdict}: {escape(report.url)}", soft_wrap=True)


def _settings(url: str | None, prefix: str | None, config: Path | None) -> TierConfig:
    """From the file, with what the command line says instead."""
    found = read_settings(config).tier if config is not None else TierConfig()
    changed = {name: value for name, value in (("url", url), ("prefix", prefix)) if value is not None}
    settings = TierConfig(**{**{name: getattr(found, name) for name in TierConfig.rows()}, **changed})
    if not settings.url:
        raise BadRequest("no tier is named; give --tier URL, or -c FILE with a section tier")
    return settings


def _until(at: str | None) -> Callable[[Entry], bool]:
    """Which entries count."""
    if at is None:
        return lambda _entry: True
    if at.isascii() and at.isdigit():
        number = int(at)
        return lambda entry: entry.number <= number
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise BadRequest(
            f"--at {at!r} is neither a number of a manifest entry nor a time like 2026-05-01T12:00Z"
        ) from None
    if moment.tzinfo is None:
        raise BadRequest(f"--at {at} has no time zone; write 2026-05-01T12:00Z or 2026-05-01T14:00+02:00")
    time_ns = wall_ns_of(moment)
    return lambda entry: entry.at_ns <= time_ns
