"""`holdfast pipeline` for node graphs: run, validate and draw a file with receivers, persistence and exporters.

Promise: `run` prints one line on standard output when it is ready, as `holdfast serve` does, and the console exporter's
lines after it:

    holdfast ready otlp_receiver.grpc=127.0.0.1:4317 admin=http://127.0.0.1:9001

SIGTERM and SIGINT answer what came in, seal and end with 0. Log lines go to standard error. With several cores the
process supervises others (`cores.py`), and does none of the work itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path

from holdfast.cli.answer import ExitCode, answer_json, print_json
from holdfast.cli.cores import CoreOrder, run_cores
from holdfast.dataflow.graph import load, problems
from holdfast.dataflow.picture import picture
from holdfast.dataflow.places import with_doors
from holdfast.dataflow.running import run_graph as run_until_stopped
from holdfast.telemetry import logging_to_stderr

COMMAND = "pipeline"


def run_validate(path: Path, *, as_json: bool) -> ExitCode:
    """Say what is wrong with a graph."""
    found = problems(path)
    if found:
        facts = [
            {"file": str(error.file), "line": error.line, "key": error.key, "reason": error.reason} for error in found
        ]
        if as_json:
            error = {"type": type(found[0]).__name__, "message": str(found[0]), "problems": facts}
            print_json(f"{COMMAND} validate", {"error": error}, ok=False)
        for problem in found:
            sys.stderr.write(f"holdfast: {problem}\n")
        return ExitCode.USAGE
    graph = load(path)
    if as_json:
        answer_json(f"{COMMAND} validate", {"file": str(path), "nodes": list(graph.nodes)})
    else:
        sys.stdout.write(f"{path}: the graph is well: {len(graph.nodes)} nodes.\n")
    return ExitCode.DONE


def run_graph(path: Path, *, as_json: bool) -> ExitCode:
    """Draw a graph."""
    graph = load(path)
    drawn = picture(graph)
    if as_json:
        edges = [[node.name, name] for node in graph.nodes.values() for name in node.destinations]
        answer_json(f"{COMMAND} graph", {"nodes": list(graph.nodes), "edges": edges, "picture": drawn})
    else:
        sys.stdout.write(drawn)
    return ExitCode.DONE


def run_run(path: Path, *, cores: int = 1, as_json: bool) -> ExitCode:
    """Run a graph until a signal."""
    graph = load(path)
    out = sys.stdout

    def say_ready(addresses: Mapping[str, str]) -> None:
        with redirect_stdout(out):
            if as_json:
                answer_json(f"{COMMAND} run", dict(addresses))
            else:
                sys.stdout.write(f"holdfast ready {' '.join(f'{name}={at}' for name, at in addresses.items())}\n")
            sys.stdout.flush()

    with logging_to_stderr():
        if cores > 1:
            return run_cores(graph, cores, say_ready, as_json=as_json)
        with _own_stdout(as_json=as_json):
            run_until_stopped(graph, say_ready)
    return ExitCode.DONE


def run_core(order: CoreOrder) -> ExitCode:
    """Be one of several cores until the supervisor or a signal says otherwise."""
    graph = with_doors(load(Path(order.file)), order.doors)
    with logging_to_stderr(f"core-{order.place.core} "), _own_stdout(as_json=order.as_json):
        run_until_stopped(graph, place=order.place, supervisor=order.link)
    return ExitCode.DONE


def _own_stdout(*, as_json: bool) -> AbstractContextManager[object]:
    """With JSON standard output has one document: the console's lines go elsewhere."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()
