"""`holdfast send`, `holdfast tail` and `holdfast slots`: their commands and options.

Promise: as in main.py, here are names, options and help texts; what a command does is in the modules `send`,
`tail` and `slots`, imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.answer import answering
from holdfast.cli.groups import Json

slots = typer.Typer(no_args_is_help=True, help="The slots of senders: what they hold, and sending it.")

Conf = Annotated[
    str | None,
    typer.Option(
        "--conf", metavar="CONF", help="A connect string. Default: HOLDFAST_CONF, or ws::addr=127.0.0.1:9000;"
    ),
]
Timeout = Annotated[
    float | None, typer.Option(min=0, help="The most seconds to wait for the server's answers. Default: for ever.")
]
STANDARD_INPUT = Path("-")


def send(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="Where the events go.")],
    file: Annotated[
        Path, typer.Argument(metavar="[FILE|-]", help="What to send; - is standard input.")
    ] = STANDARD_INPUT,
    *,
    conf: Conf = None,
    kind: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="ndjson, csv, parquet or arrow. Default: by the file's name."),
    ] = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Send a file, or lines from standard input, to a channel of a server.

    Ends when the server has accepted everything: then it is synced to the server's disk. With `sf_dir` in the connect
    string what is not accepted in time stays in the slot, and `holdfast slots drain` sends it. Exit code 1 if the
    server refused events, or did not answer in time; 2 if the file cannot be read as what it should be.
    """
    with answering("send", as_json=as_json):
        options = {"conf": conf, "kind": kind, "timeout_s": timeout, "as_json": as_json}
        raise typer.Exit(_module("send").run(channel, file, **options))


def tail(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="Whose events to print.")],
    *,
    conf: Conf = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="POSITION", help="first, new, last, seq:N or time:T. Default: new; first with --durable."
        ),
    ] = None,
    durable: Annotated[
        str,
        typer.Option(metavar="NAME", help="Keep the place on the server under this name, and go on there next time."),
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="End after so many events; 0 is never.")] = 0,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="End when nothing came for so many seconds. Default: never.")
    ] = None,
    meta: Annotated[bool, typer.Option("--meta", help="Add _seq, _committed_id and _ingested_at.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an error as a JSON document too; events are JSON anyway.")
    ] = False,
) -> None:
    """Print the events of a channel as they come, one JSON object per line.

    An event is confirmed under --durable once it is printed.
    """
    with answering("tail", as_json=as_json):
        options = {"start": start, "durable": durable, "limit": limit, "timeout_s": timeout, "meta": meta}
        raise typer.Exit(_module("tail").run(channel, conf=conf, **options))


@slots.command("ls")
def slots_ls(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The `sf_dir` of senders.")], as_json: Json = False
) -> None:
    """List the slots in a directory: what each holds, who owns it, what was refused.

    Only looks: works while senders use them, and never writes. Reads the slots of QuestDB clients too. Exit code 1 if
    one is damaged.
    """
    with answering("slots ls", as_json=as_json):
        raise typer.Exit(_module("slots").run_ls(directory, as_json=as_json))


@slots.command("show")
def slots_show(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="One slot, or one directory of its `rejected/`.")],
    limit: Annotated[int, typer.Option(min=0, help="The most frames a table shows; 0 is all. JSON has all.")] = 20,
    as_json: Json = False,
) -> None:
    """Show a slot: its segments, its frames and what is in them, and the frames that servers refused.

    Only looks. Exit code 1 if the slot is damaged.
    """
    with answering("slots show", as_json=as_json):
        raise typer.Exit(_module("slots").run_show(directory, limit=limit, as_json=as_json))


@slots.command("drain")
def slots_drain(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An `sf_dir`, one slot, or one refused span.")],
    *,
    conf: Conf = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Send what slots hold, and empty them.

    Each slot is locked while it is sent; slots in use or marked `.failed` are left alone. A refused span of a slot's
    `rejected/` is a slot too, so it can be sent again once its reason is gone. Exit code 1 if something is left.
    """
    with answering("slots drain", as_json=as_json):
        raise typer.Exit(_module("slots").run_drain(directory, conf=conf, timeout_s=timeout, as_json=as_json))


@slots.command("export")
def slots_export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="One slot, or one directory of its `rejected/`.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write: new or empty.")],
    as_json: Json = False,
) -> None:
    """Write what a slot still has to send as Arrow files, one per channel and set of columns.

    Only reads the slot. Exit code 1 if it is damaged, or a frame cannot be read.
    """
    with answering("slots export", as_json=as_json):
        raise typer.Exit(_module("slotexport").run(directory, folder, as_json=as_json))


def _module(name: str) -> Any:
    """Imported late: `holdfast --help` need not wait for Arrow."""
    return import_module(f"holdfast.cli.{name}")
