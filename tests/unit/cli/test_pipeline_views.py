"""How `holdfast pipeline run` shows its outputs to people."""

from __future__ import annotations

import io

from rich.console import Console

from holdfast.cli.pipeline import LineView, line_of, table_of
from holdfast.spark.pipeline import OutputStatus

BUSY = OutputStatus(
    "lake", "running", batch=7, batches=8, rows=12_345, rows_per_s=2500.0, batch_s=0.5, lag_events=99, state_rows=3,
    state_bytes=2048, restarts=1, error="ValueError: three is odd",
)  # fmt: skip


def console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=200, highlight=False), text


def test_a_line_has_rate_lag_batch_time_and_state() -> None:
    assert line_of(BUSY) == (
        "lake: running, batch 7 in 0.50 s, 12,345 rows, 2,500/s, 99 behind, state 3 rows, 2.0 KiB, 1 restart, "
        "ValueError: three is odd"
    )
    assert line_of(OutputStatus("lake")) == "lake: starting"


def test_a_line_is_printed_only_when_something_changed() -> None:
    out, text = console()
    view = LineView(out)
    for status in (OutputStatus("lake"), OutputStatus("lake"), BUSY, BUSY):
        view.look([status])
    assert text.getvalue().splitlines() == ["lake: starting", line_of(BUSY)]


def test_the_live_table_has_a_row_for_each_output() -> None:
    out, text = console()
    out.print(table_of("trades", [BUSY, OutputStatus("alerts")]))
    lines = text.getvalue().splitlines()
    assert lines[0].strip() == "trades"
    (lake,) = [line.split() for line in lines if line.strip().startswith("lake")]
    assert lake[:8] == ["lake", "running", "7", "12,345", "2,500", "0.50", "s", "99"]
    assert any(line.strip().startswith("alerts") for line in lines)
