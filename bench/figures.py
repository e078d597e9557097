"""What a result is, and how results are shown: a table for people, JSON for programs, Markdown for the page."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.table import Table

from bench.workload import ROOT

HISTORY = ROOT / "docs" / "performance-history.jsonl"


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure, or its ratio to the limit, must reach (`at_least`) or stay below."""

    bound: float
    at_least: bool = True
    of_ratio: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '<'} {shown(self.bound)}{' ×' if self.of_ratio else ''}"


@dataclass(frozen=True, slots=True)
class Result:
    """One measured figure with its limit beside it."""

    bench: str
    case: str
    figure: float
    unit: str
    limit: float | None = None
    limit_is: str = ""
    target: Target | None = None
    also: Mapping[str, float | str] = field(default_factory=dict)
    """Further figures of the same measurement."""

    @property
    def ratio(self) -> float | None:
        """The figure as a part of the limit."""
        return self.figure / self.limit if self.limit else None

    @property
    def passed(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        value = self.ratio if self.target.of_ratio else self.figure
        assert value is not None, "a target on a ratio needs a limit"
        return value >= self.target.bound if self.target.at_least else value < self.target.bound

    def as_json(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        return {"bench": self.bench, "case": self.case, "figure": self.figure, "unit": self.unit, "limit": self.limit,
                "limit_is": self.limit_is, "ratio": self.ratio, "target": str(self.target) if self.target else None,
                "passed": self.passed, "also": dict(self.also)}  # fmt: skip

    def cells(self) -> list[str]:
        """One row of a table."""
        limit = f"{shown(self.limit)} ({self.limit_is})" if self.limit is not None else ""
        ratio = f"{self.ratio:.2f}" if self.ratio is not None else ""
        verdict = {None: "", True: "yes", False: "no"}[self.passed]
        also = ", ".join(
            f"{name} {value if isinstance(value, str) else shown(value)}" for name, value in self.also.items()
        )
        return [self.bench, self.case, f"{shown(self.figure)} {self.unit}", limit, ratio,
                str(self.target) if self.target else "", verdict, also]  # fmt: skip


HEADINGS = ("benchmark", "case", "figure", "limit", "ratio", "target", "met", "also")


def shown(value: float) -> str:
    """Three significant digits, thousands apart."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(results: Sequence[Result]) -> Table:
    """For the terminal."""
    drawn = Table(title="holdfast bench", title_justify="left")
    for heading in HEADINGS:
        drawn.add_column(heading, justify="right" if heading in {"figure", "ratio"} else "left")
    for result in results:
        style = {None: "", True: "green", False: "red"}[result.passed]
        drawn.add_row(*result.cells(), style=style, end_section=result is _last_of(results, result.bench))
    return drawn


def _last_of(results: Sequence[Result], bench: str) -> Result:
    return [result for result in results if result.bench == bench][-1]


def markdown(conditions: Mapping[str, str], results: Sequence[Result]) -> str:
    """The body of the page on performance."""
    lines = ["| condition | |", "|---|---|", *(f"| {name} | {value} |" for name, value in conditions.items())]
    for bench in dict.fromkeys(result.bench for result in results):
        rows = [result.cells()[1:] for result in results if result.bench == bench]
        kept = [
            n for n, heading in enumerate(HEADINGS[1:]) if heading in {"case", "figure"} or any(row[n] for row in rows)
        ]
        lines += ["", f"## {bench}", "", _line([HEADINGS[1:][n] for n in kept]), _line(["---"] * len(kept))]
        lines += [_line([row[n] for n in kept]) for row in rows]
    return "\n".join(lines)


def remember(history: Path, conditions: Mapping[str, str], results: Sequence[Result]) -> None:
    """Add a run to the history: a line for each figure, with its limit and what both were measured on."""
    run = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": conditions["commit"],
        "load": conditions["load at the start"],
        "processor": conditions["processor"],
        "filesystem": conditions["filesystem"],
    }
    with history.open("a", encoding="utf-8") as file:
        for result in results:
            found = {"bench": result.bench, "case": result.case, "figure": _rounded(result.figure), "unit": result.unit,
                     "limit": _rounded(result.limit), "limit_is": result.limit_is, "ratio": _rounded(result.ratio),
                     "also": {name: _rounded(value) for name, value in result.also.items()}}  # fmt: skip
            file.write(json.dumps(run | found, ensure_ascii=False) + "\n")


def _rounded(value: float | str | None) -> float | str | None:
    return round(value, 3) if isinstance(value, float) else value


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def conditions(directory: Path) -> dict[str, str]:
    """What the figures depend on, found before the first is measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "commit": _commit(),
        "processor": f"{os.cpu_count()} × {_processor()}",
        "memory": f"{memory / 2**30:.0f} GiB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "filesystem": filesystem_of(directory),
        "Python": platform.python_version(),
        "pyarrow": pa.__version__,
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }


def _commit() -> str:
    """Of the working copy, with `-dirty` where more than the history was changed; `unknown` where git cannot say."""
    git = ("git", "--no-optional-locks", "-C", str(ROOT))
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        status = [*git, "status", "--porcelain", "--", ".", f":(exclude){HISTORY.relative_to(ROOT)}"]
        changed = subprocess.run(status, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def filesystem_of(directory: Path) -> str:
    """The kind of filesystem a directory is on, `unknown` where the system does not say."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    kinds = {fields[1]: fields[2] for fields in map(str.split, mounts.read_text(encoding="utf-8").splitlines())}
    return next(kinds[str(path)] for path in (directory, *directory.parents) if str(path) in kinds)
