"""`python -m bench.plots RESULTS.json [DIRECTORY]`: the curves of `growth`, a picture each, for the performance page.

Plain SVG, written here. The colours are of middle brightness and there is no background, so that a picture can be read
on light and on dark pages. What changes by more than a factor of `LOG_FROM` has a logarithmic scale; there the dashed
line is what would grow in proportion.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from bench.figures import shown
from bench.workload import ROOT

WIDTH, HEIGHT = 250, 190
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 30, 40
LOG_FROM = 5.0
LINE, INK, GRID = "#3b82f6", "#808890", "#80889055"
IMAGES = ROOT / "docs" / "images"

Point = tuple[float, float]
_CASE = re.compile(r"(?P<curve>.+): (?P<x>[\d,]+)(, .*)?")


class Axis(NamedTuple):
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        """Where a value is."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.is_log else (self.low, self.high)
        part = ((math.log10(value) if self.is_log else value) - low) / (high - low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Powers of ten, or quarters."""
        if not self.is_log:
            return [self.low + (self.high - self.low) * part / 4 for part in range(5)]
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        return [10.0**power for power in range(first, last + 1)]


def main(results: Path, directory: Path = IMAGES) -> None:
    """Draw every curve the results have."""
    curves: dict[str, dict[str, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for result in json.loads(results.read_text(encoding="utf-8"))["results"]:
        found = _CASE.fullmatch(result["case"]) if result["bench"] == "growth" else None
        if found is not None:
            figures = {result["unit"]: result["figure"], **result["also"]}
            for name, y in figures.items():
                curves[found["curve"]][name].append((int(found["x"].replace(",", "")), y))
    directory.mkdir(parents=True, exist_ok=True)
    for curve, panels in curves.items():
        path = directory / f"growth-{re.sub('[^a-z]+', '-', curve.partition(',')[0].lower())}.svg"
        path.write_text(_drawn(curve, panels), encoding="utf-8")
        print(path)


def _drawn(curve: str, panels: dict[str, list[Point]]) -> str:
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{INK}">',
        f"<title>{escape(curve)}</title>",
    ]
    for number, (name, points) in enumerate(panels.items()):
        parts += [f'<g transform="translate({WIDTH * number} 0)">', *_panel(curve, name, points), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(curve: str, name: str, points: Sequence[Point]) -> Iterator[str]:
    x_axis = Axis(points[0][0], points[-1][0], LEFT, WIDTH - RIGHT, is_log=True)
    y_axis = _upward([y for _, y in points])
    bottom = HEIGHT - BOTTOM
    yield _text(LEFT, TOP - 14, name, weight="600")
    for tick in y_axis.ticks():
        y = y_axis.at(tick)
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield _text(LEFT - 6, y + 4, shown(tick), anchor="end")
    for x, _ in points:
        yield _text(x_axis.at(x), bottom + 15, shown(x) if x < 10_000 else f"{shown(x / 1000)}k", anchor="middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, bottom + 31, curve.partition(",")[0], anchor="middle")
    if y_axis.is_log and points[-1][1] > points[0][1]:
        yield f'<path d="{_in_proportion(points[0], x_axis, y_axis)}" stroke="{INK}" stroke-dasharray="3 4"/>'
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in points]
    yield f'<path d="M{"L".join(f"{x} {y}" for x, y in places)}" fill="none" stroke="{LINE}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x}" cy="{y}" r="3" fill="{LINE}"/>'


def _upward(values: Sequence[float]) -> Axis:
    """From zero, or over whole powers of ten."""
    start, end = HEIGHT - BOTTOM, TOP
    if max(values) > LOG_FROM * min(values) > 0:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return Axis(10.0**low, 10.0**high, start, end, is_log=True)
    return Axis(0.0, _round_up(max(values) * 1.1), start, end, is_log=False)


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if power * step >= value)


def _in_proportion(first: Point, x_axis: Axis, y_axis: Axis) -> str:
    """Up from the first point until it leaves the picture."""
    x = min(x_axis.high, first[0] * y_axis.high / first[1])
    return f"M{x_axis.at(first[0])} {y_axis.at(first[1])}L{x_axis.at(x)} {y_axis.at(first[1] * x / first[0])}"


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x}" y="{round(y, 1)}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
