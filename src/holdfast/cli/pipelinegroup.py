"""The command group `pipeline` and its options; what they do is in pipeline.py, imported when it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.answer import answering
from holdfast.cli.extras import import_needing
from holdfast.cli.groups import Json
from holdfast.errors import BadRequest

pipeline = typer.Typer(no_args_is_help=True, help="Pipelines: channels in, steps, outputs out, run by Spark.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A YAML file with a pipeline, or with a node graph.")]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where Spark runs: local[*], spark://…, k8s://…, yarn. Default: the file's."),
]


@pipeline.command("run")
def pipeline_run(
    file: File,
    *,
    master: Master = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where Prometheus finds figures. Default: the file's.")
    ] = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Read what is there now and end, whatever the file says.")
    ] = False,
    cores: Annotated[
        int, typer.Option(min=1, max=256, metavar="N", help="Processes that share a node graph and its ports.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Run a pipeline until its queries end or a signal comes.

    Shows rows per second, lag, batch time and state of each output: a live table on a terminal, lines elsewhere.
    A query that fails is started again from its checkpoint, as `restart` in the file says. SIGTERM finishes the
    batches in hand and ends with exit code 0; a second one does not wait. Exit code 2 if the pipeline is wrong, 4
    if a query failed for good or Spark did not start. Needs the extra `spark` of the package.
    """
    with answering("pipeline run", as_json=as_json):
        if (graphs := _node_graphs(file)) is not None:
            raise typer.Exit(graphs.run_run(file, cores=cores, as_json=as_json))
        if cores > 1:
            raise BadRequest(f"{file} has no nodes; --cores is for node graphs, and --master says where Spark runs")
        module = import_needing("spark", "holdfast.cli.pipeline")
        raise typer.Exit(module.run_run(file, master=master, metrics=metrics, once=available_now, as_json=as_json))


@pipeline.command("validate")
def pipeline_validate(
    file: File,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Start Spark and have its analyser look too; sources must be there.")
    ] = False,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Say everything that is wrong with a pipeline, with file, line and key. Starts nothing, changes nothing.

    Exit code 2 if anything is wrong. Needs the extra `spark` of the package.
    """
    with answering("pipeline validate", as_json=as_json):
        if (graphs := _node_graphs(file)) is not None:
            raise typer.Exit(graphs.run_validate(file, as_json=as_json))
        module = import_needing("spark", "holdfast.cli.pipeline")
        raise typer.Exit(module.run_validate(file, plan=plan, master=master, as_json=as_json))


@pipeline.command("graph")
def pipeline_graph(file: File, as_json: Json = False) -> None:
    """Draw a pipeline. Starts nothing. Needs the extra `spark` of the package."""
    with answering("pipeline graph", as_json=as_json):
        if (graphs := _node_graphs(file)) is not None:
            raise typer.Exit(graphs.run_graph(file, as_json=as_json))
        raise typer.Exit(import_needing("spark", "holdfast.cli.pipeline").run_graph(file, as_json=as_json))


def _node_graphs(file: Path) -> Any:
    """The commands for node graphs, if the file is one: it has `nodes`, and needs no Spark."""
    if not import_needing("server", "holdfast.dataflow.graph").is_graph_file(file):
        return None
    return import_needing("otlp", "holdfast.cli.nodegraph")
