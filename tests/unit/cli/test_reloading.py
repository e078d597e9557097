"""SIGHUP: beside the loop, and all or nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.reloading import Reloader
from holdfast.config.file import ConfigFile, read
from holdfast.config.sync import SyncConfig
from holdfast.errors import InvalidConfig
from holdfast.sync import SyncDesk
from tests.unit.server.harness import LOOP_THREAD, PATIENCE_S, RunningServer
from tests.unit.server.watched import WatchedFilesystem
from tests.unit.sync.served import SyncServer


@contextmanager
def reloading(
    running: RunningServer, settings: Callable[[], ConfigFile], *, sync: SyncDesk | None = None
) -> Iterator[Callable[[], None]]:
    """What SIGHUP does."""

    async def run() -> None:
        reloader = Reloader(running.server, sync, ConfigFile(server=running.config), settings)
        asked.append(reloader.ask)
        ready.set()
        await reloader.run()

    asked: list[Callable[[], None]] = []
    ready = threading.Event()
    task = asyncio.run_coroutine_threadsafe(run(), running.loop)
    assert ready.wait(PATIENCE_S)

    def hang_up() -> None:
        running.loop.call_soon_threadsafe(asked[0])

    try:
        yield hang_up
    finally:
        task.cancel()


def test_settings_and_their_files_are_read_beside_the_loop(tmp_path: Path) -> None:
    disk, readers = WatchedFilesystem(), []
    with RunningServer(tmp_path, access_filesystem=disk) as running:

        def settings() -> ConfigFile:
            readers.append(threading.current_thread().name)
            return ConfigFile(server=replace(running.config, ingest_connections_max=7))

        disk.touched_by.clear()
        with reloading(running, settings) as hang_up:
            hang_up()
            running.until(lambda: running.server.state.config.ingest_connections_max == 7)
    assert len(readers) == 1
    assert LOOP_THREAD not in {*readers, *disk.touched_by}


def test_others_go_on_while_settings_are_read(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    with RunningServer(tmp_path) as running:

        def settings() -> ConfigFile:
            begun.set()
            assert go_on.wait(PATIENCE_S)
            return ConfigFile(server=replace(running.config, ingest_connections_max=7))

        with reloading(running, settings) as hang_up:
            hang_up()
            assert begun.wait(PATIENCE_S)
            running.client().close()
            go_on.set()
            running.until(lambda: running.server.state.config.ingest_connections_max == 7)


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("bad", ["schema", "tokens"])
def test_settings_are_taken_as_a_whole_or_not_at_all(tmp_path: Path, bad: str) -> None:
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "note.json").write_text("{}")
    sync = {"sync.validation": "model", "sync.schemas": str(schemas)}
    reads: list[int] = []
    with SyncServer(tmp_path / "data", sync) as running:
        changes = {"auth_tokens": str(tmp_path / "bad.json")} if bad == "tokens" else {}
        (tmp_path / "bad.json").write_text("{")
        (schemas / "note.json").write_text("{" if bad == "schema" else '{"required": ["title"]}')

        def settings() -> ConfigFile:
            reads.append(1)
            server = replace(running.config, ingest_connections_max=7, **changes)  # type: ignore[arg-type]
            return ConfigFile(server=server, sync=SyncConfig.from_mapping({**sync, "sync.model_version": 2}))

        with reloading(running, settings, sync=running.desk) as hang_up:
            hang_up()
            running.until(lambda: len(reads) == 1)
            hang_up()
            running.until(lambda: len(reads) == 2)  # so the first is over
            assert running.ask(lambda: running.server.state.config) is running.config
            assert running.ask(lambda: running.desk.config) is running.sync_config
            assert running.ask(lambda: running.gatekeeper.config) is running.config


@pytest.mark.parametrize("bad", ["an error that nobody foresaw", "a schema that is too deep"])
def test_server_goes_on_whatever_is_in_a_file_that_is_reloaded(
    tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "note.json").write_text("{}")
    with SyncServer(tmp_path / "data", {"sync.validation": "model", "sync.schemas": str(schemas)}) as running:

        def settings() -> ConfigFile:
            server = replace(running.config, ingest_connections_max=7)
            return ConfigFile(server=server, sync=running.sync_config)

        def broken() -> ConfigFile:
            if bad == "an error that nobody foresaw":
                raise ValueError("embedded null byte")
            (schemas / "note.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
            return settings()

        answers = [broken, settings]

        def next_answer() -> ConfigFile:
            return answers.pop(0)()

        with reloading(running, next_answer, sync=running.desk) as hang_up:
            hang_up()
            running.until(lambda: "server.reload.refuse" in caplog.text)
            assert running.ask(lambda: running.server.state.config) is running.config
            (schemas / "note.json").write_text("{}")
            hang_up()
            running.until(lambda: running.server.state.config.ingest_connections_max == 7)


def test_settings_of_sync_that_need_a_restart_do_not_count_before(tmp_path: Path) -> None:
    with SyncServer(tmp_path / "data") as running:
        new = SyncConfig.from_mapping({"sync.auth": "none", "sync.model_version": 2})
        assert running.ask(lambda: running.desk.take(running.desk.prepare(new))) == ["sync.auth"]
        assert running.ask(lambda: running.desk.access.config.auth) == "server"


def test_refusal_of_what_is_found_later_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.yaml"
    path.write_text("server:\n  role: primary\ntls:\n  cert: a\n  key: b\n")
    placed = read(path).placed(InvalidConfig(key="tls.cert", reason="is none"))
    assert str(placed) == f"{path}:4: tls.cert: is none"
    assert read(path).placed(placed) is placed
