"""`python -m bench.plots RESULTS.json DIRECTORY`: the curves of `growth`, a picture each, for the page on performance.

Needs the dependency group `bench` (matplotlib).
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "holdfast"  # the same curve is the same file

from matplotlib import pyplot as plt  # noqa: E402 - only after the backend is chosen


def main(results: Path, directory: Path) -> None:
    """Draw every curve the results have."""
    curves: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in json.loads(results.read_text(encoding="utf-8"))["results"]:
        if result["bench"] == "growth":
            curves[result["also"]["curve"]].append(result)
    directory.mkdir(parents=True, exist_ok=True)
    for curve, points in curves.items():
        path = directory / f"growth-{re.sub('[^a-z]+', '-', curve.lower())}.svg"
        _draw(curve, points, path)
        print(path)


def _draw(curve: str, points: list[dict[str, Any]], path: Path) -> None:
    x = [point["also"]["x"] for point in points]
    others = [name for name in points[0]["also"] if name not in {"curve", "x"}]
    lines = {points[0]["unit"]: [point["figure"] for point in points]}
    lines |= {name: [point["also"][name] for point in points] for name in others}
    figure, axes = plt.subplots(1, len(lines), figsize=(3.2 * len(lines), 2.6), layout="constrained")
    for axis, (name, y) in zip([axes] if len(lines) == 1 else axes, lines.items(), strict=True):
        axis.plot(x, y, marker="o", color="#1f6feb")
        axis.set_xscale("log")
        axis.set_ylim(0, max(y) * 1.2)
        axis.set_xlabel(curve)
        axis.set_title(name, fontsize=10)
        axis.grid(visible=True, alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
