"""`holdfast serve`: settings, the store, the server, signals, and how it ends.

Promise: one line on standard output when it is ready, and nothing else there:

    holdfast ready data=ws://127.0.0.1:9000 admin=http://127.0.0.1:9001

SIGTERM and SIGINT drain, seal and end with 0; a second one does not wait for connections. SIGHUP reads the file of
settings again (reloading.py). Exit codes: 2 the settings are wrong, 3 refused to start (in use, damaged, unprotected,
no address), 4 the disk failed. Log lines and the audit log go to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.extras import import_needing
from holdfast.cli.reloading import Reloader
from holdfast.clock import SystemClock
from holdfast.config.file import ConfigFile, read
from holdfast.console import attach as attach_console
from holdfast.delivery import attach_delivery
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import HoldfastError, InvalidConfig
from holdfast.server.access import Gatekeeper, ReloadableTls, check_exposure
from holdfast.server.admin import build, serve_admin
from holdfast.server.interpreter import serve_many
from holdfast.server.server import Parts, Server
from holdfast.store.store import Store
from holdfast.sync import attach as attach_sync
from holdfast.telemetry import event, logging_to_stderr
from holdfast.tier import Tier

if sys.platform == "win32":
    new_event_loop = asyncio.new_event_loop
else:
    from uvloop import new_event_loop


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; it wins over the file."""

    config: Path | None = None
    data: Path | None = None
    listen: str | None = None
    admin: str | None = None
    insecure: bool = False
    truncate_bad_tail: bool = False

    def settings(self) -> ConfigFile:
        """The settings of now: defaults, file, command line."""
        found = read(self.config) if self.config is not None else ConfigFile()
        if found.otlp is not None:
            found = _otlp().with_otlp(found)
        server = replace(
            found.server,
            data=str(self.data or found.server.data),
            listen=self.listen or found.server.listen,
            admin=self.admin or found.server.admin,
        )
        return replace(found, server=server, store=found.sync.keeping(found.store))


def run(options: Options, *, as_json: bool) -> ExitCode:
    """Serve until a signal; the exit code of the process."""
    settings = options.settings()
    _raise_descriptor_limit()
    try:
        with logging_to_stderr(), ExitStack() as open_parts:
            parts = _open(settings, options, open_parts)
            serve_many()
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(_serve(settings, parts, options, as_json=as_json))
    except InvalidConfig as error:  # found when the setting was used
        raise settings.placed(error) from None
    return ExitCode.DONE


def _open(settings: ConfigFile, options: Options, open_parts: ExitStack) -> Parts:
    """What the server is made of; cheap refusals come before the store is recovered."""
    config, clock, filesystem = settings.server, SystemClock(), LocalFilesystem()
    if Path(config.data).exists() and not Path(config.data).is_dir():
        raise InvalidConfig(key="data", reason=f"{config.data} is a file; give a directory, which may be new")
    tls = ReloadableTls(config) if config.has_tls else None
    gatekeeper = Gatekeeper(config, clock, filesystem)
    open_parts.callback(gatekeeper.close)
    auth_on = gatekeeper.auth_on and not (settings.sync.enabled and settings.sync.auth == "none")
    for sentence in check_exposure(config, insecure=options.insecure, auth_on=auth_on):
        event("server.exposed", level=logging.WARNING, what=sentence)
    tier = _connect_tier(settings, filesystem, clock)
    store = Store.open(
        config.data,
        settings.store,
        filesystem=filesystem,
        clock=clock,
        truncate_bad_tail=options.truncate_bad_tail,
        source=tier,
    )
    open_parts.callback(store.close)
    gatekeeper.check_audit()
    if tier is not None:
        open_parts.callback(_close_tier, store, tier)
        tier.attach(store.port)
    return Parts(store, gatekeeper, clock, tls, insecure=options.insecure, tier=tier)


def _connect_tier(settings: ConfigFile, filesystem: LocalFilesystem, clock: SystemClock) -> Tier | None:
    """The object store of the settings; an empty data directory is filled from it."""
    if not settings.tier.url:
        return None
    tier = Tier.connect(settings.tier, filesystem=filesystem, clock=clock, chance=random.Random())
    tier.restore_if_empty(Path(settings.server.data).absolute(), keep_bytes=settings.store.retention_local_bytes)
    return tier


def _close_tier(store: Store, tier: Tier) -> None:
    """What is accepted gets into the object store now, if that goes quickly; otherwise at the next start."""
    try:
        if tier.failure is None:
            store.flush()
    except HoldfastError as error:
        event("server.tier.incomplete", level=logging.WARNING, reason=error)
    finally:
        tier.close()


async def _serve(settings: ConfigFile, parts: Parts, options: Options, *, as_json: bool) -> None:
    config = settings.server
    server = Server(config, parts)
    otlp = _otlp_doors(server, settings)
    delivery = attach_delivery(server)
    sync = attach_sync(server, settings.sync) if settings.sync.enabled else None
    app = build(server.state)
    attach_console(app, server.state)
    admin = serve_admin(app, config, tls=parts.tls)
    host, port = await server.start()
    s = "s" if config.has_tls else ""
    admin_host, _ = config.admin_address
    urls = {"data": f"ws{s}://{_shown(host)}:{port}", "admin": f"http{s}://{_shown(admin_host)}:{admin.port}"}
    reloader = Reloader(server, sync, settings, options.settings)
    _on_signals(_actions(server, reloader))
    failure = None
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(admin.serve())
            reloading = tasks.create_task(reloader.run())
            try:
                urls |= await otlp.start(tasks) if otlp is not None else {}
                failure = await server.run(on_ready=lambda: _say_ready(urls, as_json=as_json))
            finally:
                reloading.cancel()
                admin.stop(now=failure is not None)
                if otlp is not None:
                    await otlp.stop()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    delivery.close()
    if sync is not None:
        sync.close()
    if failure is not None:
        raise failure


def _otlp_doors(server: Server, settings: ConfigFile) -> Any:
    """The receiver of the section `otlp`."""
    if settings.otlp is None:
        return None
    return _otlp().OtlpDoors(server, _otlp().read_section(settings))


def _otlp() -> Any:
    """Imported where it is asked for, since it stands on gRPC."""
    return import_needing("otlp", "holdfast.dataflow.serving")


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _say_ready(urls: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        answer_json("serve", urls)
    else:
        sys.stdout.write(f"holdfast ready {' '.join(f'{name}={url}' for name, url in urls.items())}\n")
    sys.stdout.flush()


# -- signals ----------------------------------------------------------------------------------------------------------


def _on_signals(actions: dict[int, Callable[[], None]]) -> None:
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(actions[signal.SIGINT]))
        return
    for number, act in actions.items():
        loop.add_signal_handler(number, act)


def _actions(server: Server, reloader: Reloader) -> dict[int, Callable[[], None]]:
    stops: dict[int, Callable[[], None]] = {signal.SIGTERM: server.stop, signal.SIGINT: server.stop}
    if sys.platform != "win32":
        stops[signal.SIGHUP] = reloader.ask
    return stops


# -- the process ------------------------------------------------------------------------------------------------------


def _raise_descriptor_limit() -> None:
    """A connection is a descriptor, and the usual soft limit is 1024."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  # not on every system

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
