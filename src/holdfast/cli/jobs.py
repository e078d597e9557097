"""`holdfast compact`, `export`, `replay` and `stats`: jobs over channels, with their progress.

Promise: a job that was interrupted is started again with the same command and goes on. Progress is a bar on a terminal,
nothing elsewhere; the result is printed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.channels import print_table
from holdfast.cli.display import count, make_console, make_table, several, size
from holdfast.cli.jobsgroup import Place, Sending, Shape
from holdfast.cli.picture import CHANGE_NOTHING, read_config
from holdfast.cli.progress import make_progress
from holdfast.cli.serverat import server_at, token_of_environment
from holdfast.config.values import parse_size, parse_time
from holdfast.errors import BadRequest, InvalidConfig
from holdfast.spark.access import channel_key
from holdfast.spark.jobs import compact_directory, compact_server, export, figures, replay
from holdfast.spark.jobs.replaying import Target
from holdfast.spark.options import SourceOptions, is_glob, read_address, read_options
from holdfast.store.compaction import Compaction, CompactionPolicy

Advance = Callable[[int, int, str], None]


_FLAGS = {
    "path": "--data",
    "addr": "--addr",
    "tokenFile": "--token-file",
    "channel": "CHANNEL",
    "startingOffsets": "--from",
    "endingOffsets": "--to",
}
"""How commands call the options of a source."""


def _options(place: Place, channel: str, **more: str | None) -> SourceOptions:
    """A source, as the options of the command say it."""
    named = {
        "path": str(place.data) if place.data is not None else "",
        "addr": place.addr or "",
        "tokenFile": str(place.token_file) if place.token_file is not None else "",
        "token": token_of_environment(place.token_file) if place.addr else "",
        "channel": channel,
        **{key: value or "" for key, value in more.items()},
    }
    if not place.addr:
        named["path"] = str(_directory(place))
    try:
        return read_options({key: value for key, value in named.items() if value}).check_batch()
    except InvalidConfig as error:
        raise BadRequest(f"{_FLAGS.get(error.key, error.key)} {error.reason}") from None


def _directory(place: Place) -> Path:
    directory = place.data or Path("data")
    if not directory.exists():
        raise BadRequest(f"{directory} does not exist; give --data, or --addr of a running server")
    return directory


def _address(flag: str, text: str) -> str:
    try:
        return read_address(text)
    except InvalidConfig as error:
        raise BadRequest(f"{flag} {error.reason}") from None


def _size(flag: str, text: str) -> int:
    try:
        found = parse_size(text)
    except ValueError as error:
        raise BadRequest(f"{flag} {error}") from None
    if found < 1:
        raise BadRequest(f"{flag} {text!r} is no size above 0")
    return found


@contextmanager
def _progress(what: str, *, as_json: bool) -> Iterator[Advance]:
    with make_progress(BarColumn(), TaskProgressColumn(), quiet=as_json) as bar:
        task = bar.add_task(escape(what), total=None)
        yield lambda done, total, text: bar.update(
            task, completed=done, total=total or None, description=f"{escape(what)} {text}"
        )


def run_compact(place: Place, channel: str, *, target: str, span: str, config: Path | None, as_json: bool) -> ExitCode:
    """Small segments become large ones."""
    _check_compact(place, channel, config)
    try:
        policy = CompactionPolicy(_size("--target-size", target), parse_time(span))
    except ValueError as error:
        raise BadRequest(f"--event-span {error}") from None
    with _progress(f"compacting {channel}", as_json=as_json) as advance:

        def on_step(done: Compaction) -> None:
            advance(done.segments_before, 0, f"{count(done.segments_before)} segments became {done.segments_after}")

        if place.addr is not None:
            there = server_at(_address("--addr", place.addr), place.token_file)
            server = Target(there.addr, channel, token=there.token, token_file=there.token_file)
            done = compact_server(server, policy, on_step=on_step)
        else:
            settings = read_config(config, without=CHANGE_NOTHING)
            done = compact_directory(_directory(place), channel, policy, config=settings, on_step=on_step)
    if as_json:
        answer_json("compact", {"channel": channel, **_facts(done)})
    else:
        left = f"; {several(done.left, 'group')} left for later" if done.left else ""
        became = f"{several(done.segments_before, 'segment')} became {count(done.segments_after)}"
        sizes = f"{size(done.bytes_before)} became {size(done.bytes_after)}"
        make_console().print(f"{escape(channel)}: {became}, {sizes}, {several(done.events, 'event')}{left}.")
    return ExitCode.DONE


def _check_compact(place: Place, channel: str, config: Path | None) -> None:
    """One channel of one store; nothing that is given is passed over."""
    if place.addr is not None and place.data is not None:
        raise BadRequest("--data and --addr are both given; give --addr if the server runs, and --data if it does not")
    if place.addr is not None and config is not None:
        raise BadRequest("--config goes with --data; a server at --addr has its own settings")
    if is_glob(channel) or "," in channel:
        raise BadRequest(f"{channel!r} is not one channel; compact takes one by its name")


def _facts(done: Compaction) -> dict[str, int]:
    return {
        "segments_before": done.segments_before,
        "segments_after": done.segments_after,
        "bytes_before": done.bytes_before,
        "bytes_after": done.bytes_after,
        "events": done.events,
        "left": done.left,
    }


def run_export(
    place: Place,
    channel: str,
    target: Path,
    *,
    span: tuple[str | None, str | None],
    master: str | None,
    shape: Shape,
    as_json: bool,
) -> ExitCode:
    """Events to Parquet files."""
    if shape.form not in ("parquet", "delta"):
        raise BadRequest(f"--format {shape.form!r} is neither parquet nor delta")
    start, end = span
    options = _options(
        place, channel, startingOffsets=start, endingOffsets=end, includeMetadata="true" if shape.metadata else None
    )
    with _progress(f"exporting {channel}", as_json=as_json) as advance:
        done = export(
            options,
            target.absolute(),
            master=master,
            sort_by=shape.sort_by,
            delta=shape.form == "delta",
            merge_schema=shape.merge_schema,
            on_part=lambda done, parts: advance(done.files, parts, f"{count(done.events)} events"),
        )
    if as_json:
        answer_json("export", {"channel": channel, "target": str(target), **vars(done)})
    else:
        amount = f"{several(done.events, 'event')} in {several(done.files, 'new file')}, {size(done.bytes)}"
        make_console().print(f"{escape(channel)}: {amount}, in {escape(str(target))}.", soft_wrap=True)
    return ExitCode.DONE


def run_replay(
    place: Place,
    channel: str,
    target: Target,
    *,
    span: tuple[str | None, str | None],
    sending: Sending,
    master: str | None,
    as_json: bool,
) -> ExitCode:
    """Events to another channel or server."""
    start, end = span
    _address("--to-addr", target.addr)
    options = _options(place, channel, startingOffsets=start, endingOffsets=end)
    with _progress(f"replaying {channel}", as_json=as_json) as advance:
        done = replay(
            options,
            target,
            identity=sending.identity,
            frame_bytes=_size("--frame-size", sending.frame_size),
            master=master,
            on_part=lambda done, parts: advance(done.parts, parts, f"{count(done.events)} events"),
        )
    if as_json:
        answer_json("replay", {"channel": channel, "addr": target.addr, "target": target.channel, **vars(done)})
    else:
        there = f", of which {count(done.repeated)} were there already" if done.repeated else ""
        text = f"{channel}: {several(done.events, 'event')} are in {target.channel} at {target.addr}{there}."
        make_console().print(escape(text), soft_wrap=True)
    return ExitCode.DONE


def run_stats(place: Place, channel: str, *, as_json: bool) -> ExitCode:
    """What channels consist of."""
    rows = figures(_options(place, channel))
    if as_json:
        answer_json("stats", {"channels": [vars(row) for row in rows]})
        return ExitCode.DONE
    numbers = ("events", "segments", "small", "size", "smallest", "median", "largest", "columns")
    table = make_table("channel", *numbers, right=numbers)
    for row in rows:
        sizes = (size(row.bytes), size(row.smallest_bytes), size(row.median_bytes), size(row.largest_bytes))
        amounts = (count(row.events), count(row.segments), count(row.small_segments))
        table.add_row(escape(channel_key(row.server, row.channel)), *amounts, *sizes, count(row.columns))
    console = make_console()
    print_table(console, table)
    small = sum(row.small_segments for row in rows)
    if small > len(rows):
        console.print(f"{several(small, 'segment')} below 8 MiB: `holdfast compact CHANNEL` puts them together.")
    return ExitCode.DONE
