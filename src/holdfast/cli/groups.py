"""`holdfast channels`, `subscribers`, `segments` and `token`: their commands and options.

Promise: as in main.py, here are names, options and help texts; what a command does is in the module of its group,
imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.answer import answering

channels = typer.Typer(no_args_is_help=True, help="The channels of a store and their limits.")
subscribers = typer.Typer(no_args_is_help=True, help="The subscribers of a store and how far each of them is.")
segments = typer.Typer(no_args_is_help=True, help="The segments of a store and who still needs them.")
tokens = typer.Typer(no_args_is_help=True, help="The tokens with which programs authenticate to a server.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The directory of the store.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The configuration file the server runs with."),
]
Addr = Annotated[
    str | None,
    typer.Option("--addr", metavar="URL", help="The admin address of a running server, in place of --data."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A file with the token for --addr. Default: HOLDFAST_TOKEN."),
]
Limit = Annotated[int, typer.Option(min=0, help="The most rows a table shows; 0 is all. JSON has all.")]

HERE = Path("data")
ROWS = 100


@channels.command("ls")
def channels_ls(data: Data = HERE, config: Config = None, limit: Limit = ROWS, as_json: Json = False) -> None:
    """List the channels: what each holds and who follows it.

    Only looks: works on a store that is in use, and never writes.
    """
    with answering("channels ls", as_json=as_json):
        raise typer.Exit(_group("channels").run_ls(data, config=config, limit=limit, as_json=as_json))


@channels.command("show")
def channels_show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A channel; without it, all limits.")] = None,
    data: Data = HERE,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show a channel: what it holds, its columns, its limits and where each comes from.

    Without NAME, show the tree of limits that the settings make: those for all channels, then
    what each pattern changes. Only looks: works on a store that is in use, and never writes.
    """
    with answering("channels show", as_json=as_json):
        raise typer.Exit(_group("channels").run_show(name, directory=data, config=config, as_json=as_json))


@channels.command("rm")
def channels_rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A channel.")],
    *,
    data: Data = HERE,
    config: Config = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete all events of a channel, also those that subscribers have not confirmed.

    Says who loses what, and counts it. If the channel is written to again, its next event gets the next seq.
    The store must not be in use (exit code 3). Asks first; where nobody can answer, --yes is
    needed (exit code 2). Without --config nothing else is deleted, and no archive script is called.
    """
    with answering("channels rm", as_json=as_json):
        raise typer.Exit(_group("channels").run_rm(name, directory=data, config=config, yes=yes, as_json=as_json))


def _there(group: Any, addr: str | None, token_file: Path | None) -> Any:
    """The server to ask, if one is named."""
    return None if addr is None else group.There(addr, token_file)


@subscribers.command("ls")
def subscribers_ls(
    *,
    data: Data = HERE,
    config: Config = None,
    addr: Addr = None,
    token_file: TokenFile = None,
    limit: Limit = ROWS,
    as_json: Json = False,
) -> None:
    """List the subscribers: mark, gaps, and how far each is behind, per channel.

    Only looks: works on a store that is in use, and never writes.
    """
    with answering("subscribers ls", as_json=as_json):
        group = _group("subscribers")
        there = _there(group, addr, token_file)
        raise typer.Exit(group.run_ls(data, config=config, there=there, limit=limit, as_json=as_json))


@subscribers.command("show")
def subscribers_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A subscriber.")],
    *,
    data: Data = HERE,
    config: Config = None,
    addr: Addr = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Show a subscriber: what it follows, how far it is, and what it lost without having confirmed it.

    Only looks: works on a store that is in use, and never writes.
    """
    with answering("subscribers show", as_json=as_json):
        group = _group("subscribers")
        there = _there(group, addr, token_file)
        raise typer.Exit(group.run_show(name, directory=data, config=config, there=there, as_json=as_json))


@subscribers.command("rm")
def subscribers_rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A subscriber.")],
    *,
    data: Data = HERE,
    config: Config = None,
    addr: Addr = None,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Remove a subscriber for good: it keeps nothing from being deleted any more.

    Says how many events were still owed to it. The store must not be in use (exit code 3); with --addr the server that
    has it does it, and whoever consumes by that name begins anew.
    Deletes no events itself; a store that runs does, once all other subscribers confirmed them.
    """
    with answering("subscribers rm", as_json=as_json):
        group = _group("subscribers")
        there = _there(group, addr, token_file)
        raise typer.Exit(group.run_rm(name, directory=data, config=config, there=there, as_json=as_json))


@subscribers.command("reset")
def subscribers_reset(  # noqa: PLR0913  # each is an option of the command
    name: Annotated[str, typer.Argument(metavar="NAME", help="A subscriber.")],
    *,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="first, new, last, seq:N or time:T.")],
    channel: Annotated[
        str | None, typer.Option(metavar="CHANNEL", help="Only in this channel; without it, in all.")
    ] = None,
    data: Data = HERE,
    config: Config = None,
    addr: Addr = None,
    token_file: TokenFile = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Put a subscriber at another place: back, to get events again, or on, to skip them.

    Says what will be delivered again and what is skipped; nothing is counted as lost. What is not in
    the store any more cannot come again. `seq:N` is the first event it gets; T is as 2026-01-31T12:00:00Z.
    The store must not be in use (exit code 3); with --addr the server that has it does it, and who consumes by that
    name comes back at the new place. Asks first; where nobody can answer, --yes is needed (exit code 2).
    """
    with answering("subscribers reset", as_json=as_json):
        group = _group("subscribers")
        wanted = group.Wanted(name, channel, to)
        if addr is not None:
            there = group.There(addr, token_file)
            raise typer.Exit(group.run_reset_there(wanted, there, yes=yes, as_json=as_json))
        raise typer.Exit(group.run_reset(wanted, directory=data, config=config, yes=yes, as_json=as_json))


@segments.command("ls")
def segments_ls(
    channel: Annotated[str | None, typer.Argument(metavar="CHANNEL", help="Only those of this channel.")] = None,
    *,
    data: Data = HERE,
    config: Config = None,
    limit: Limit = ROWS,
    as_json: Json = False,
) -> None:
    """List the segments: their events, size and times, and who has not confirmed them.

    Only looks: works on a store that is in use, and never writes.
    """
    with answering("segments ls", as_json=as_json):
        run = _group("segments").run_ls
        raise typer.Exit(run(channel, directory=data, config=config, limit=limit, as_json=as_json))


@segments.command("show")
def segments_show(
    number: Annotated[int, typer.Argument(metavar="N", help="The number of a segment.")],
    data: Data = HERE,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show a segment: its events, times and file, and which events each subscriber has not confirmed.

    Only looks: works on a store that is in use, and never writes.
    """
    with answering("segments show", as_json=as_json):
        raise typer.Exit(_group("segments").run_show(number, directory=data, config=config, as_json=as_json))


ServerData = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The directory of the store. Default: data.")
]
ServerFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="The server's configuration file, for `data` and `auth`."),
]


@tokens.command("create")
def token_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The principal that the token stands for.")],
    *,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it holds: 30d, 12h. Without it, for ever.")
    ] = None,
    data: ServerData = None,
    config: ServerFile = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it. It is shown this once; the file has only its hash.

    A server that runs takes it within two seconds. From the first token on, callers without a
    credential are refused. Several tokens may have one NAME: to replace one, make the next, then
    revoke the old one by its id.
    """
    with answering("token create", as_json=as_json):
        run = _group("token").run_create
        raise typer.Exit(run(name, expires=expires, directory=data, config=config, as_json=as_json))


@tokens.command("ls")
def token_ls(data: ServerData = None, config: ServerFile = None, as_json: Json = False) -> None:
    """List the tokens: id, name, state and times. Secrets cannot be shown again."""
    with answering("token ls", as_json=as_json):
        raise typer.Exit(_group("token").run_ls(data, config=config, as_json=as_json))


@tokens.command("revoke")
def token_revoke(
    which: Annotated[str, typer.Argument(metavar="ID|NAME", help="One token by its id, or all of a name.")],
    *,
    data: ServerData = None,
    config: ServerFile = None,
    as_json: Json = False,
) -> None:
    """Revoke tokens for good. A server that runs closes their connections within five seconds."""
    with answering("token revoke", as_json=as_json):
        raise typer.Exit(_group("token").run_revoke(which, directory=data, config=config, as_json=as_json))


@tokens.command("hash-password")
def token_hash_password(as_json: Json = False) -> None:
    """Read a password and print its hash, for `auth.users` in the configuration file.

    Asks for it twice on a terminal; otherwise reads one line from standard input.
    """
    with answering("token hash-password", as_json=as_json):
        raise typer.Exit(_group("token").run_hash_password(as_json=as_json))


def _group(name: str) -> Any:
    """The module behind a group. Imported late: `holdfast --help` need not wait for Arrow."""
    return import_module(f"holdfast.cli.{name}")
