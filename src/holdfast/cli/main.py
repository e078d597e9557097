"""The commands of `holdfast` and their options.

Promise: here are names, options and help texts; what a command does is in its own module, imported when it is used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast import __version__
from holdfast.cli import examples, groups, jobsgroup, pipelinegroup, producing
from holdfast.cli.answer import answering
from holdfast.cli.extras import import_needing
from holdfast.cli.groups import Json
from holdfast.errors import BadRequest

app = typer.Typer(
    name="holdfast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=examples.EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Holdfast: a durable store-and-forward pipeline. Accepted events are never lost."""


@app.command()
def demo(
    *,
    seconds: Annotated[float, typer.Option(min=4, max=3600, help="How long the producers send.")] = 20.0,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Where to put everything: new or empty. Default: a temporary directory."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files, and leave the server running.")] = False,
    seed: Annotated[int | None, typer.Option(help="Repeat the random moments of an earlier run.")] = None,
    as_json: Json = False,
) -> None:
    """See it: producers, a server, Spark and a consumer; a producer and the server are killed, and nothing is lost.

    Two Senders send to a server, one through a slot on disk; an OpenTelemetry client exports logs to it. A Spark
    pipeline writes every event to Parquet and computes volumes per window; a consumer listens. A Sender and the server
    are killed with SIGKILL and started again. At the end every event is looked for in the store, in Parquet and at the
    consumer. Exit code 1 if anything is lost or doubled. Needs the extras `server`, `otlp` and `spark`.
    """
    with answering("demo", as_json=as_json):
        import_needing("server", "holdfast.cli.serve")
        import_needing("otlp", "holdfast.cli.demo.otlpsource")
        run = import_needing("spark", "holdfast.cli.demo.run").run
        raise typer.Exit(run(seconds=seconds, directory=directory, keep=keep, seed=seed, as_json=as_json))


@app.command()
def serve(
    *,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A YAML file with the settings.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="The directory of the store. Default: data.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where producers connect. Default: 127.0.0.1:9000.")
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the admin server is. Default: 127.0.0.1:9001.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen for other machines without TLS and authentication.")
    ] = False,
    truncate_bad_tail: Annotated[
        bool,
        typer.Option("--truncate-bad-tail", help="For this one start: cut log files that end in a damaged record."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the server: producers connect over WebSocket and get an answer when their events are synced to disk.

    Prints one line when it is ready. SIGTERM answers what came in, seals and ends with exit code 0; a second one does
    not wait. SIGHUP reads limits, tokens and certificates again. Exit code 2 if the settings are wrong, 3 if it refuses
    to start (the store is in use or damaged, the address is taken, or it would be open to everyone), 4 if the disk
    fails. Needs the extra `server` of the package.
    """
    with answering("serve", as_json=as_json):
        module = import_needing("server", "holdfast.cli.serve")
        options = module.Options(config, data, listen, admin, insecure, truncate_bad_tail)
        raise typer.Exit(module.run(options, as_json=as_json))


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A log file, segment, catalog or store.")],
    limit: Annotated[int, typer.Option(min=0, help="The most rows a table shows; 0 is all. JSON has all.")] = 20,
    as_json: Json = False,
) -> None:
    """Show what is in a log file, a segment, a catalog, or a whole store directory.

    Works on damaged files and on a store that is in use, and never writes. Exit code 1 if damage was found on the way;
    use `verify` to have every byte checked.
    """
    with answering("inspect", as_json=as_json):
        _require(path)
        raise typer.Exit(_command("inspect")(path, limit=limit, as_json=as_json))


@app.command()
def verify(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a store.")],
    *,
    remote: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Check the store's copy in this object store instead, object by object."),
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="The store's folder there. Default: holdfast.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A YAML file with more of its settings.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every byte of a store: catalog, segments, log, and what they say of each other.

    Never writes. Exit code 1 if anything is damaged, with file and byte of each place. What a crash leaves and the next
    start cleans up is a note, not damage. May be used while a process has the store open.
    """
    with answering("verify", as_json=as_json):
        _require_directory(directory)
        if remote is not None:
            check = import_module("holdfast.cli.restore").check
            raise typer.Exit(check(directory, url=remote, prefix=prefix, config=config, as_json=as_json))
        raise typer.Exit(_command("verify")(directory, as_json=as_json))


@app.command()
def restore(
    *,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where to put the store: new or empty.")],
    tier: Annotated[
        str | None, typer.Option("--tier", metavar="URL", help="The object store: s3://, gs://, az:// or file:///.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="The store's folder there. Default: holdfast.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="A YAML file with the settings of the tier.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="NUMBER|TIME", help="As of this manifest entry, or of this time. Default: now."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring a store back from its object store, checked byte by byte.

    As of now, `holdfast serve` with the same tier goes on with it; that also restores by itself when its data directory
    is empty. As of an earlier time it is a copy to look into, without what was removed since. Exit code 2 if the
    directory is not empty, 3 if the object store refuses us or an object is missing or damaged, 4 if it does not
    answer.
    """
    with answering("restore", as_json=as_json):
        run = _command("restore")
        raise typer.Exit(run(data, url=tier, prefix=prefix, config=config, at=at, as_json=as_json))


@app.command()
def top(
    addr: Annotated[
        str, typer.Option(metavar="URL", help="The admin address of the server.")
    ] = "http://127.0.0.1:9001",
    *,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="A token. Default: HOLDFAST_TOKEN.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    as_json: Json = False,
) -> None:
    """Watch a running server: rates, channels, who is behind. Ends with Ctrl-C; only looks."""
    with answering("top", as_json=as_json):
        raise typer.Exit(_command("top")(addr, token_file=token_file, once=once, as_json=as_json))


@app.command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help='For example: select count(*) from "logs.web"')],
    *,
    addr: Annotated[
        str, typer.Option(metavar="URL", help="The admin address of a running server.")
    ] = "http://127.0.0.1:9001",
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Instead: a store that no process has open.")
    ] = None,
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="A token. Default: HOLDFAST_TOKEN.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a .parquet or .csv file.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="The most rows a table shows; 0 is all.")] = 100,
    as_json: Json = False,
) -> None:
    """Run SQL over channels, including events that came in a moment ago.

    Every channel is a table with its columns, `_seq`, `_committed_id` and `_ingested_at`. All events of the channels it
    names are read into memory; use Spark for more. Needs the extra `query`.
    """
    with answering("query", as_json=as_json):
        run = import_needing("query", "holdfast.cli.query").run
        options = {"addr": addr, "data": data, "token_file": token_file, "output": output, "limit": limit}
        raise typer.Exit(run(sql, **options, as_json=as_json))


@app.command()
def doctor(
    *,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where the store is or will be.")] = Path("data"),
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Check this file of settings too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check whether this machine is fit to run a server, and say what to change.

    Looks at the disk (does a sync really sync, how fast), limits, memory, clock, ports, Java and what is installed.
    Writes one file of 64 MiB to the data directory and removes it. Exit code 1 if something must be changed.
    """
    with answering("doctor", as_json=as_json):
        raise typer.Exit(_command("doctor.run")(data, config=config, as_json=as_json))


app.command()(producing.send)
app.command()(producing.tail)
app.add_typer(producing.slots, name="slots")
app.add_typer(groups.channels, name="channels")
app.add_typer(groups.subscribers, name="subscribers")
app.add_typer(groups.segments, name="segments")
app.add_typer(groups.tokens, name="token")
app.add_typer(pipelinegroup.pipeline, name="pipeline")
app.command()(jobsgroup.compact)
app.command()(jobsgroup.export)
app.command()(jobsgroup.replay)
app.command()(jobsgroup.stats)


@app.command()
def repair(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a store.")],
    *,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without this, say what would be done.")] = False,
    rebuild_catalog: Annotated[
        bool, typer.Option("--rebuild-catalog", help="Write a new catalog, even if the old one seems sound.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Mend a damaged store: rescue what can be read, say exactly what is lost, make it open again.

    Without --apply nothing is changed, and the exit code is 1 if there is something to do. What is taken away goes to
    `quarantine/` in the store and is never deleted. Exit code 3 if a process has the store open.
    """
    with answering("repair", as_json=as_json):
        _require_directory(directory)
        run = _command("repair")
        raise typer.Exit(run(directory, apply=apply, rebuild_catalog=rebuild_catalog, as_json=as_json))


@app.command()
def bench(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which ones, and --quick. Default: all.")
    ] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="A glance, below a minute; figures are rough.")] = False,
    as_json: Json = False,
) -> None:
    """Measure this machine, with its limits beside each figure. Takes minutes.

    The benchmarks are part of the source: it runs those of the working copy that this package is installed from.
    """
    with answering("bench", as_json=as_json):
        raise typer.Exit(_command("bench")(arguments or [], quick=quick, as_json=as_json))


@app.command()
def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    as_json: Json = False,
) -> None:
    """Print a script with which a shell completes commands and options."""
    with answering("completion", as_json=as_json):
        raise typer.Exit(_command("completion")(shell, as_json=as_json))


def _require(path: Path) -> None:
    if not path.exists():
        raise BadRequest(f"{path} does not exist; give the path of a store or of a file in it")


def _require_directory(path: Path) -> None:
    if not path.is_dir():
        raise BadRequest(f"{path} does not exist or is no directory; give that of a store")


def _command(module: str) -> Any:
    """The function behind a command. Imported late: `holdfast --help` need not wait for Arrow."""
    return import_module(f"holdfast.cli.{module}").run


examples.attach(app)

if __name__ == "__main__":
    app()
