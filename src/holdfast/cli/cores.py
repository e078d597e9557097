"""A node graph on several cores: the supervisor's process, and the order that it gives to each core.

    python -m holdfast.cli.cores '{"file": …, "place": {"core": 1, "cores": 2}, "doors": …, "link": 7}'

is what a core is started with; nobody else calls it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module

import msgspec
import typer

from holdfast.cli.answer import ExitCode, answering
from holdfast.dataflow.cores import Supervisor
from holdfast.dataflow.coresadmin import CoresAdmin
from holdfast.dataflow.graph import Graph
from holdfast.dataflow.persistence import Settings
from holdfast.dataflow.places import Place, Reservation
from holdfast.dataflow.plugins import NodeKind
from holdfast.dataflow.running import read_by_spark
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import InvalidConfig
from holdfast.store.ground import make_directory
from holdfast.store.retention.sharedroom import prepare_room

LOCK_NAME = "cores.lock"
"""Below `path` of a persistence node: held by the supervisor."""


class CoreOrder(msgspec.Struct, frozen=True):
    """What a core is told."""

    file: str
    place: Place
    doors: dict[str, dict[str, str]]
    link: int
    as_json: bool = False


def run_cores(graph: Graph, cores: int, say_ready: Callable[[Mapping[str, str]], None], *, as_json: bool) -> ExitCode:
    """Supervise so many cores until a signal."""
    with ExitStack() as held:
        reservation = Reservation(graph)
        held.callback(reservation.close)
        _prepare_stores(graph, cores, held)

        def command(place: Place, link: int) -> Sequence[str]:
            order = CoreOrder(str(graph.file), place, reservation.doors, link, as_json)
            return [sys.executable, "-m", __name__, msgspec.json.encode(order).decode()]

        with asyncio.Runner() as runner:
            code = runner.run(_supervise(graph, cores, command, say_ready))
    return ExitCode(code) if code in list(ExitCode) else ExitCode.FAILED


def _prepare_stores(graph: Graph, cores: int, held: ExitStack) -> None:
    filesystem = LocalFilesystem()
    for node in graph.of_kind(NodeKind.PROCESSOR):
        settings = node.settings
        assert isinstance(settings, Settings)
        if (fault := settings.too_small_for(cores)) is not None:
            key = f"nodes.{node.name}.config.retention.size_cap"
            raise InvalidConfig(key=key, reason=fault, file=graph.file, line=graph.lines.get(key, 0))
        make_directory(filesystem, settings.room_path.parent)
        held.callback(filesystem.lock(settings.room_path.parent / LOCK_NAME).release)
        if settings.store.retention_size_cap_bytes:
            prepare_room(filesystem, settings.room_path, {*range(cores), *settings.cores_there(filesystem)})


async def _supervise(
    graph: Graph,
    cores: int,
    command: Callable[[Place, int], Sequence[str]],
    say_ready: Callable[[Mapping[str, str]], None],
) -> int:
    supervisor = Supervisor(cores, command)
    admin = CoresAdmin(graph.admin_addr, supervisor) if graph.admin_addr else None

    async with asyncio.TaskGroup() as tasks:

        def all_ready(addresses: Mapping[str, str]) -> None:
            if any(node.settings.reads_stores for node in graph.nodes.values()):
                readers = read_by_spark(graph)
                supervisor.before_end, supervisor.at_once = readers.stop, readers.kill
                readers.start(tasks, list(supervisor.admin_urls().values()))
            say_ready({**addresses, "admin": admin.url} if admin is not None else addresses)

        if admin is not None:
            tasks.create_task(admin.serve())
        code = await supervisor.run(all_ready)
        if admin is not None:
            admin.stop()
    return code


def main() -> int:
    """Be a core."""
    order = msgspec.json.decode(sys.argv[1], type=CoreOrder)
    try:
        with answering("pipeline run", as_json=False):
            code: int = import_module("holdfast.cli.nodegraph").run_core(order)
    except typer.Exit as ending:
        return ending.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main())
