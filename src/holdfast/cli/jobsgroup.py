"""The commands `compact`, `export`, `replay` and `stats` and their options; what they do is in jobs.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.answer import answering
from holdfast.cli.extras import import_needing
from holdfast.cli.groups import Json, TokenFile

Channel = Annotated[str, typer.Argument(metavar="CHANNEL", help="A channel.")]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The directory of the store. Default: data. With --addr: where files of the server are read directly.",
    ),
]
Addr = Annotated[
    str | None, typer.Option(metavar="URL", help="The admin address of a running server: http://127.0.0.1:9001.")
]
Start = Annotated[
    str | None,
    typer.Option("--from", metavar="POS", help='earliest, a time with its zone, or JSON by channel: {"t": 17}.'),
]
End = Annotated[
    str | None, typer.Option("--to", metavar="POS", help="latest, a time with its zone, or JSON; not included.")
]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Have Spark do it: local[*], spark://… Without it, this process does."),
]


@dataclass(frozen=True)
class Place:
    """Where a store is."""

    data: Path | None
    addr: str | None
    token_file: Path | None


@dataclass(frozen=True)
class Shape:
    """How exported files look."""

    form: str
    sort_by: str
    metadata: bool
    merge_schema: bool


@dataclass(frozen=True)
class Sending:
    """How a replay sends."""

    identity: str
    frame_size: str


def compact(
    channel: Channel,
    *,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="The directory of the store. Default: data.")
    ] = None,
    addr: Addr = None,
    token_file: TokenFile = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="With --data: the store's configuration file.")
    ] = None,
    target_size: Annotated[str, typer.Option(metavar="SIZE", help="How large new segments are at most.")] = "128MiB",
    event_span: Annotated[
        str, typer.Option(metavar="TIME", help="How far event times in a new segment may be apart: 1h. 0 is any.")
    ] = "0",
    as_json: Json = False,
) -> None:
    """Make large segments out of small ones. No event, no number and no mark changes; rows are never reordered.

    With --addr the server does it beside its work; with --data the store must not be in use (exit code 3). What is
    handed out to a subscriber, or is not in the tier yet, is left for the next time.
    """
    with answering("compact", as_json=as_json):
        run = _jobs().run_compact
        place = Place(data, addr, token_file)
        raise typer.Exit(run(place, channel, target=target_size, span=event_span, config=config, as_json=as_json))


def export(  # noqa: PLR0913  # each is an option of the command
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="A channel, several with commas, or a glob.")],
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Where files go: DIR/CHANNEL/part-….parquet.")],
    *,
    data: Data = None,
    addr: Addr = None,
    token_file: TokenFile = None,
    start: Start = None,
    end: End = None,
    form: Annotated[str, typer.Option("--format", help="parquet, or delta: the files as a Delta table.")] = "parquet",
    sort_by: Annotated[str, typer.Option(metavar="COLUMN", help="Order the rows of each file by a column.")] = "",
    metadata: Annotated[bool, typer.Option("--metadata", help="Add _seq and the other system columns.")] = False,
    merge_schema: Annotated[
        bool,
        typer.Option(
            "--merge-schema",
            help="Go on although the channel has other columns than the files that are there; readers must merge them.",
        ),
    ] = False,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Write the events of channels, or a range of them, to Parquet files that any reader opens.

    Files are complete or not there. The same command goes on where it was interrupted, and later exports what came
    since. All files of a channel have the same columns. Reads what is in segments. Needs the extra `spark` of the
    package; starts Spark only with --master.
    """
    with answering("export", as_json=as_json):
        run = _jobs().run_export
        place = Place(data, addr, token_file)
        shape = Shape(form, sort_by, metadata, merge_schema)
        raise typer.Exit(run(place, channel, target, span=(start, end), master=master, shape=shape, as_json=as_json))


def replay(  # noqa: PLR0913  # each is an option of the command
    channel: Channel,
    *,
    to_addr: Annotated[str, typer.Option(metavar="URL", help="The admin address of the server that gets the events.")],
    to_channel: Annotated[str, typer.Option(metavar="NAME", help="The channel there.")],
    to_token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A file with the token there.")] = None,
    data: Data = None,
    addr: Addr = None,
    token_file: TokenFile = None,
    start: Start = None,
    end: End = None,
    identity: Annotated[
        str, typer.Option(metavar="TEXT", help="Which replay this is. Default: the source, its channel, the target.")
    ] = "",
    frame_size: Annotated[
        str,
        typer.Option(metavar="SIZE", help="What is sent as one, at most; below ingest.max_batch_size of the target."),
    ] = "8MiB",
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Send the events of a channel, or a range of them, to another channel or server. Each is stored once.

    The same command goes on where it was interrupted, and later sends what came since; repeats are recognised by the
    target without a time limit. Another --identity is another replay, which stores everything again.
    """
    with answering("replay", as_json=as_json):
        module = _jobs()
        target = module.Target(to_addr, to_channel, token_file=str(to_token_file or ""))
        place = Place(data, addr, token_file)
        raise typer.Exit(
            module.run_replay(
                place,
                channel,
                target,
                span=(start, end),
                sending=Sending(identity, frame_size),
                master=master,
                as_json=as_json,
            )
        )


def stats(
    channel: Annotated[
        str, typer.Argument(metavar="CHANNEL", help="A channel, several with commas, or a glob. Default: all.")
    ] = "*",
    *,
    data: Data = None,
    addr: Addr = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Show what channels consist of: segments, their sizes, and how many are small."""
    with answering("stats", as_json=as_json):
        raise typer.Exit(_jobs().run_stats(Place(data, addr, token_file), channel, as_json=as_json))


def _jobs() -> Any:
    return import_needing("spark", "holdfast.cli.jobs")
