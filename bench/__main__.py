"""`python -m bench`: run benchmarks and show what they found."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import (
    acks,
    commit,
    commit_async,
    consume,
    growth,
    ingest,
    memory,
    otap,
    otlp,
    peers,
    read,
    seal,
    sender,
    spark,
    startup,
    sync,
    threads32,
    tier,
)
from bench.figures import HISTORY, Result, conditions, filesystem_of, markdown, remember, table
from bench.workload import ROOT, Bench

BENCHES = {"commit": commit.run, "commit_async": commit_async.run, "threads32": threads32.run, "seal": seal.run,
           "read": read.run, "startup": startup.run, "memory": memory.run, "acks": acks.run,
           "ingest": ingest.run, "sender": sender.run, "tier": tier.run, "spark": spark.run,
           "otlp": otlp.run, "otap": otap.run, "sync": sync.run, "consume": consume.run, "peers": peers.run,
           "growth": growth.run}  # fmt: skip
SCRATCH = ROOT / "build"
"""On the disk of the working copy, and not tracked; a system's own place for temporary files may be in memory."""


def main(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help=f"any of {', '.join(BENCHES)}")] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="a glance, below a minute; figures are rough")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the results here")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="print the body of the performance page")] = False,
    keep: Annotated[bool, typer.Option("--keep", help=f"add the results to {HISTORY.relative_to(ROOT)}")] = False,
    directory: Annotated[Path, typer.Option("--dir", help="measure on the disk of this directory")] = SCRATCH,
) -> None:
    """Measure, with the limits of this machine beside each figure."""
    chosen = names or list(BENCHES)
    unknown = [name for name in chosen if name not in BENCHES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(BENCHES)}")
    if quick and keep:
        raise typer.BadParameter("the figures of --quick are rough and are not kept: leave out one of the two",
                                 param_hint="--keep")  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    errors = Console(stderr=True)
    if filesystem_of(directory.resolve()) == "tmpfs":
        errors.print(
            f"{directory} is in memory, where a sync costs nothing: no ratio will mean anything", style="yellow"
        )
    if {"consume", "ingest", "peers", "sender"} & set(chosen):
        for peer in peers.absent():
            errors.print(f"not installed, and left out: {peer}", style="yellow")
    found_conditions = conditions(directory.resolve())
    results = _run(chosen, directory.resolve(), errors, quick=quick)
    if json_file is not None:
        found = {"quick": quick, "conditions": found_conditions, "results": [result.as_json() for result in results]}
        json_file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if keep:
        remember(HISTORY, found_conditions, results)
    if as_markdown:
        print(markdown(found_conditions, results))
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(table(results))


def _run(names: list[str], directory: Path, errors: Console, *, quick: bool) -> list[Result]:
    results: list[Result] = []
    for name in names:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="bench-", dir=directory) as scratch, errors.status(name):
            results += BENCHES[name](Bench(Path(scratch), quick))
        errors.print(f"{name}: {time.perf_counter() - started:.0f} s")
    return results


if __name__ == "__main__":
    typer.run(main)
