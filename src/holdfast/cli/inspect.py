"""`holdfast inspect`: tables of what is in a file.

Promise: shows what `holdfast.store.inspect` found and decides nothing. Long tables show their beginning and their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import count, make_console, make_table, moment, print_place, several, shortened, size
from holdfast.disk.local import LocalFilesystem
from holdfast.store.inspect import inspect_path
from holdfast.store.inspect.catalogs import CatalogView
from holdfast.store.inspect.copies import Damage
from holdfast.store.inspect.directory import StoreView
from holdfast.store.inspect.logs import Content, FloorsContent, FrameContent, LogRecord, LogView, SchemaContent


def run(path: Path, *, limit: int, as_json: bool) -> ExitCode:
    """Show one file or directory; NO if it is damaged."""
    view = inspect_path(LocalFilesystem(), path)
    damaged = not view["intact"] if isinstance(view, dict) else any(not place.torn for place in view.damage)
    if as_json:
        answer_json("inspect", view, ok=not damaged)
    else:
        console = make_console()
        if isinstance(view, LogView):
            _show_log(console, view, limit)
        elif isinstance(view, CatalogView):
            _show_catalog(console, view, limit)
        elif isinstance(view, StoreView):
            _show_store(console, view, limit)
        else:
            _show_segment(console, view)
    return ExitCode.NO if damaged else ExitCode.DONE


def _show_title(console: Console, title: str, facts: Sequence[str]) -> None:
    console.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
    for fact in facts:
        console.print(f"  {escape(fact)}", soft_wrap=True)


def _show_damage(console: Console, places: Sequence[Damage], *, inside: str = "") -> None:
    for place in places:
        file = "" if place.file == inside else f"{place.file}, "
        kind = "torn tail" if place.torn else "damage"
        print_place(console, kind, f"{file}byte {place.offset_bytes}: {place.reason}", dump=place.dump)
    if places and all(place.torn for place in places):
        console.print("A torn tail is what a crash leaves: it was never accepted, and the next start cuts it off.")


# ----------------------------------------------------------------------------------------------------------------- logs


def _show_log(console: Console, view: LogView, limit: int) -> None:
    facts = []
    if view.header is not None:
        head = view.header
        ended = "closed in order" if view.closed else "not closed: in use, rotated, or its process was killed"
        facts = [
            f"file {head.number} of log {head.name!r} of store {head.store_id}",
            f"begins at position {head.start_position}; {size(view.size_bytes)}, "
            f"{size(view.end_offset)} of it used by {several(len(view.records), 'record')}; {ended}",
        ]
        if head.weak:
            facts.append("answers were given before the sync (wal.flush is not `commit`)")
    _show_title(console, f"{view.file}: log file", facts)
    if view.records:
        _show_records(console, view.records, limit)
    _show_damage(console, view.damage, inside=view.file)


def _show_records(console: Console, records: Sequence[LogRecord], limit: int) -> None:
    numbers = ("byte", "position", "size", "synced to")
    table = make_table("byte", "position", "kind", "size", "synced to", "holds", right=numbers)
    head, left_out, tail = shortened(records, limit)
    for part in (head, tail):
        for record in part:
            table.add_row(
                str(record.offset_bytes),
                str(record.position),
                record.kind,
                size(record.size_bytes),
                str(record.synced),
                escape(_holds(record.content)),
            )
        if part is head and left_out:
            table.add_row("…", "", "", "", "", f"{count(left_out)} more records; --limit 0 shows all")
    console.print(table)


def _holds(content: Content | None) -> str:
    if isinstance(content, FloorsContent):
        seqs = ", ".join(f"{name} {next_seq}" for name, next_seq in content.next_seqs.items())
        return f"next: committed_id {content.next_committed_id}" + (f"; seq {seqs}" if seqs else "")
    if isinstance(content, SchemaContent):
        columns = ", ".join(f"{name} {kind}" for name, kind in content.columns.items())
        return f"{content.channel} #{content.schema_id}: {columns}"
    return _frame(content) if isinstance(content, FrameContent) else ""


def _frame(frame: FrameContent) -> str:
    entries = ", ".join(f"{entry.channel} {entry.first_seq}..{entry.last_seq}" for entry in frame.entries)
    rows = sum(entry.rows for entry in frame.entries)
    identity = frame.identity or {}
    who = f"; slot {_short(identity['slot_id'])} fsn {identity['fsn']}" if "fsn" in identity else ""
    who = f"; guid {_short(identity['guid'])}" if "guid" in identity else who
    return f"{entries}; {several(rows, 'row')}, committed_id {frame.first_committed_id}{who}"


def _short(identity: str | int) -> str:
    return f"{str(identity)[:8]}…"


# ------------------------------------------------------------------------------------------------------------- segments


def _show_segment(console: Console, view: dict[str, Any]) -> None:
    title = f"{view['file']}: segment"
    if not view["intact"]:
        _show_title(console, title, [size(view["size_bytes"])])
        print_place(console, "damage", f"byte {view['damage']['offset_bytes']}: {view['damage']['reason']}")
        return
    facts = [
        f"number {view['segment_seq']} of store {view['store_id']}; channel {view['channel']!r}",
        f"{count(view['rows'])} events, seq {view['first_seq']}..{view['last_seq']}, "
        f"committed_id {view['first_committed_id']}..{view['last_committed_id']}",
        f"came in {moment(view['first_ingested_at_ns'])} to {moment(view['last_ingested_at_ns'])}",
    ]
    if view["first_event_time_ns"] is not None:
        facts.append(f"happened {moment(view['first_event_time_ns'])} to {moment(view['last_event_time_ns'])}")
    facts += [
        f"{size(view['size_bytes'])} in {several(len(view['batch_rows']), 'batch', 'batches')}; "
        f"intact, CRC32C {view['own_crc32c']}",
        f"brought by {several(view['runs'], 'frame')}, of {several(len(view['slots']), 'slot')}, "
        f"{several(view['guids'], 'GUID')}",
    ]
    _show_title(console, title, facts)
    table = make_table("column", "type", "null")
    for column in view["columns"]:
        table.add_row(escape(column["name"]), escape(column["type"]), "yes" if column["nullable"] else "no")
    console.print(table)


# -------------------------------------------------------------------------------------------------------------- catalog


def _show_catalog(console: Console, view: CatalogView, limit: int) -> None:
    facts = [f"{key}: {value}" for key, value in view.meta.items()]
    rows = ", ".join(f"{table} {count(number)}" for table, number in view.rows.items())
    _show_title(console, f"{view.file}: catalog", [*facts, f"rows: {rows}"])
    channels = make_table("channel", "id", "next seq", "columns", right=("id", "next seq"))
    for channel in view.channels[: limit or None]:
        columns = ", ".join(f"{name} {kind}" for name, kind in channel["columns"].items())
        channels.add_row(
            escape(channel["name"]), str(channel["channel_id"]), count(channel["next_seq"]), escape(columns)
        )
    console.print(channels)
    if view.segments:
        _show_segments(console, view.segments, limit)
    _show_damage(console, view.damage, inside=view.file)


def _show_segments(console: Console, segments: Sequence[dict[str, Any]], limit: int) -> None:
    numbers = ("segment", "first seq", "last seq", "events", "size")
    table = make_table("segment", "channel", "first seq", "last seq", "events", "size", "crc32c", right=numbers)
    head, left_out, tail = shortened(segments, limit)
    for part in (head, tail):
        for row in part:
            table.add_row(
                str(row["segment_seq"]),
                escape(row["channel"]),
                count(row["first_seq"]),
                count(row["last_seq"]),
                count(row["rows"]),
                size(row["size_bytes"]),
                row["crc32c"],
            )
        if part is head and left_out:
            table.add_row("…", f"{count(left_out)} more; --limit 0 shows all")
    console.print(table)


# ---------------------------------------------------------------------------------------------------------------- store


def _show_store(console: Console, view: StoreView, limit: int) -> None:
    owner = f"open in process {view.holder_pid}" if view.holder_pid is not None else "not open in any process"
    _show_title(console, f"{view.directory}: store", [f"store {view.store_id or 'unknown'}; {owner}"])
    numbers = ("first seq", "last seq", "segments", "in segments", "size", "only in the log")
    table = make_table("channel", *numbers, right=numbers)
    head, left_out, tail = shortened(view.channels, limit)
    for part in (head, tail):
        for channel in part:
            table.add_row(
                escape(channel.name),
                count(channel.first_seq),
                count(channel.next_seq - 1),
                count(channel.segments),
                count(channel.segment_events),
                size(channel.segment_bytes),
                count(channel.log_events),
            )
        if part is head and left_out:
            table.add_row(f"… {count(left_out)} more; --limit 0 shows all")
    console.print(table)
    logs = make_table("log file", "size", "records", "frames", "closed", right=("size", "records", "frames"))
    for log in view.logs:
        name = str(Path(log.file).relative_to(view.directory))
        logs.add_row(name, size(log.size_bytes), count(log.records), count(log.frames), "yes" if log.closed else "no")
    console.print(logs)
    odd = {
        "unfinished": view.unfinished,
        "set aside": view.set_aside,
        "archived": view.archived,
        "unknown": view.unknown,
    }
    for kind, files in odd.items():
        for file in files:
            print_place(console, kind, file)
    _show_damage(console, view.damage)
