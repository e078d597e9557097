"""What the proof runs went through, written down as they end, and printed as the tables of docs/proof.md.

    python -m tests.faults.figures

A test calls `note` once, at its end, with the counts of its run; `lacking` is called where a machine lacks what a test
needs. Each is one line of JSON in `build/proof/`, a file for each area. The last line of a claim and profile counts.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from holdfast.clock import SystemClock

FOLDER = Path(__file__).parents[2] / "build" / "proof"


def note(area: str, claim: str, *, profile: str = "quick", **counts: int | float | str) -> None:
    """Write down what a run went through; it has passed."""
    _append(area, {"claim": claim, "profile": profile, "counts": counts})


def lacking(area: str, what: str, test: str) -> None:
    """Write down what this machine lacks for a test."""
    _append(area, {"lacks": what, "test": test})


def _append(area: str, line: dict[str, object]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    day = datetime.fromtimestamp(SystemClock().wall_ns() / 1e9, UTC).date().isoformat()
    with (FOLDER / f"{area}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"day": day, **line}) + "\n")


def lines() -> list[dict[str, object]]:
    """Every line there is, oldest first in each area."""
    return [
        {"area": path.stem, **json.loads(text)}
        for path in sorted(FOLDER.glob("*.jsonl"))
        for text in path.read_text(encoding="utf-8").splitlines()
    ]


def tables(found: list[dict[str, object]]) -> str:
    """Markdown: what passed with which counts, then what was skipped for want of something."""
    passed: dict[tuple[object, ...], dict[str, object]] = {}
    skipped: dict[object, set[object]] = {}
    for line in found:
        if "lacks" in line:
            skipped.setdefault(line["lacks"], set()).add(line["test"])
        else:
            passed[line["area"], line["claim"], line["profile"]] = line
    out = ["| what held | profile | went through | run of |", "|---|---|---|---|"]
    for (_, claim, profile), line in passed.items():
        counts = line["counts"]
        assert isinstance(counts, dict)
        out.append(f"| {claim} | {profile} | {', '.join(map(_told, counts.items()))} | {line['day']} |")
    if skipped:
        out += ["", "| a machine without | skips |", "|---|---|"]
        out += [
            f"| {what} | {len(tests)}: {', '.join(f'`{test}`' for test in sorted(map(str, tests)))} |"
            for what, tests in sorted(skipped.items(), key=str)
        ]
    return "\n".join(out) + "\n"


def _told(count: tuple[str, object]) -> str:
    name, value = count
    shown = f"{value:,}" if isinstance(value, int) else str(value)
    return f"{shown} {name.replace('_', ' ')}"


if __name__ == "__main__":
    sys.stdout.write(tables(lines()))
