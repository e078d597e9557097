"""`holdfast query`: SQL over channels, including what is not sealed yet.

Promise: no event is changed, added or lost. A server is only asked. A data directory is opened as a start does, with
recovery and sealing, so nobody else may have it open; repair a damaged one before. Each channel that the query
names is read once, as of now, with `_seq`, `_committed_id` and `_ingested_at`. A name with a dot or a dash stands in
double quotes. The result goes to the terminal, or to a Parquet or CSV file, which is whole or not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datafusion
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import count, make_console, make_table, several
from holdfast.cli.serverat import token_of_environment
from holdfast.errors import BadRequest
from holdfast.model.jsonvalues import as_json_value
from holdfast.reading import channels, read

SYSTEM = ("_seq", "_committed_id", "_ingested_at")
_NAME = re.compile(r'"((?:[^"]|"")+)"|([A-Za-z_][A-Za-z0-9_]*)')
_WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    ".parquet": arrow_parquet.write_table,
    ".csv": arrow_csv.write_csv,
}


def run(
    sql: str, *, addr: str, data: Path | None, token_file: str, output: Path | None, limit: int, as_json: bool
) -> ExitCode:
    """Run one query and show or write its rows."""
    if output is not None and output.suffix not in _WRITERS:
        raise BadRequest(f"--output {output} is neither .parquet nor .csv")
    place: dict[str, Any] = {"path": data}
    if data is None:
        place = {"addr": addr, "token": Path(token_file) if token_file else token_of_environment(None)}
    result = _result(sql, place)
    if output is not None:
        _write(result, output)
    if as_json:
        rows = [] if output is not None else [as_json_value(row) for row in result.to_pylist()]
        answer_json("query", {"rows": rows, "count": result.num_rows, "output": str(output) if output else None})
        return ExitCode.DONE
    console = make_console()
    if output is not None:
        console.print(f"{several(result.num_rows, 'row')} written to {escape(str(output))}", soft_wrap=True)
        return ExitCode.DONE
    numbers = [
        field.name for field in result.schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    ]
    table = make_table(*result.schema.names, right=numbers)
    for row in result.slice(0, limit or None).to_pylist():
        table.add_row(*("" if value is None else escape(str(as_json_value(value))) for value in row.values()))
    console.print(table)
    more = f", {count(limit)} are shown" if 0 < limit < result.num_rows else ""
    console.print(f"[dim]{several(result.num_rows, 'row')}{more}[/]")
    return ExitCode.DONE


def _result(sql: str, place: dict[str, Any]) -> pa.Table:
    context = datafusion.SessionContext()
    named = {match[1].replace('""', '"') if match[1] else match[2] for match in _NAME.finditer(sql)}
    known = channels(**place)
    for name in sorted(named & set(known)):
        events = read(name, system=SYSTEM, **place).table
        context.register_record_batches(f'"{name}"', [events.combine_chunks().to_batches() or _nothing(events.schema)])
    try:
        return context.sql(sql).to_arrow_table()
    except Exception as error:  # what the engine raises has no class of its own
        names = ", ".join(known[:20]) or "none"
        text = " ".join(str(error).split())[:400]
        raise BadRequest(f'the query cannot be run: {text}; channels are {names}; a.b is written "a.b"') from None


def _nothing(schema: pa.Schema) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([], schema=schema)]


def _write(result: pa.Table, output: Path) -> None:
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        _WRITERS[output.suffix](result, unfinished)
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
