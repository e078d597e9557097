"""Exactly once while driver, Python workers and server are killed with SIGKILL. Process death, not power loss."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pyarrow.dataset as ds
import pytest

from holdfast import Store
from holdfast.spark.tables import read_manifest
from tests.e2e.served import ServedProcess, free_port
from tests.tidy.tree import ROOT

KILLS_QUICK, KILLS_LONG = 3, 20
EVENTS_PER_POST = 10
PATIENCE_S = 240.0
STARTS_MAX = 3


def ask(admin: str, method: str, path: str, body: bytes | None = None, **headers: str) -> object:
    """The data of an answer; `OSError` while the server is away."""
    connection = http.client.HTTPConnection(urlsplit(admin).netloc, timeout=30)
    try:
        connection.request(method, f"/api/v1/{path}", body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer["data"]
    finally:
        connection.close()


class Feeder:
    """Posts events until told to stop; a post that failed is repeated under its key, so that each is stored once."""

    def __init__(self, admin: str) -> None:
        self._admin = admin
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder")
        self.events = 0

    def _run(self) -> None:
        while not self._end.wait(0.2):
            try:
                self._post()
            except OSError:
                continue

    def _post(self) -> None:
        rows = [{"n": n} for n in range(self.events + 1, self.events + EVENTS_PER_POST + 1)]
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"post-{self.events}"}
        ask(self._admin, "POST", "channels/events/events", json.dumps(rows).encode(), **headers)
        self.events += EVENTS_PER_POST

    def __enter__(self) -> Feeder:
        self._post()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)


class Driver:
    """One driver process with all that it starts."""

    def __init__(self, admin: str, folder: Path, *options: str) -> None:
        command = [sys.executable, str(ROOT / "tests" / "spark" / "driver_process.py"), admin, str(folder), *options]
        self._errors = (folder / "driver.stderr").open("ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=folder)
        self._watch = threading.Timer(PATIENCE_S, self.kill)
        self._watch.start()

    def batches(self, count: int) -> list[str]:
        """Waits until so many more micro-batches are written."""
        assert self.process.stdout is not None
        found: list[str] = []
        while len(found) < count and (line := self.process.stdout.readline()):
            found += [line] if line.startswith("batch ") else []
        return found

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and its Python workers, at once."""
        family = psutil.Process(self.process.pid)
        for process in [family, *family.children(recursive=True)]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.wait()

    def kill_workers(self) -> int:
        """SIGKILL to the Python workers of tasks and of planning; how many there were."""
        workers = 0
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if "pyspark.daemon" in process.cmdline():
                    process.kill()
                    workers += 1
            except psutil.NoSuchProcess:
                continue
        return workers

    def wait(self) -> int:
        """Its exit code."""
        self._watch.cancel()
        code = self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()
        return code


@contextmanager
def driving(admin: str, folder: Path, *options: str, batches: int) -> Iterator[Driver]:
    """A driver that has written so many batches.

    One that Spark gives up while it starts, because Python workers do not come within ten seconds on a busy machine, is
    one death more.
    """
    for _ in range(STARTS_MAX):
        driver = Driver(admin, folder, *options)
        try:
            if len(driver.batches(batches)) == batches:
                yield driver
                return
        finally:
            driver.kill()
    raise AssertionError((folder / "driver.stderr").read_text())


def wait_until_published(admin: str, events: int) -> None:
    pause = threading.Event()
    while True:
        found = ask(admin, "GET", "channels/events")
        assert isinstance(found, dict)
        if found["published_seq"] >= events:
            return
        pause.wait(0.1)


@pytest.mark.guarantee("G8")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kills", "storage"),
    [
        (KILLS_QUICK, "server"),
        pytest.param(KILLS_LONG, "server", marks=pytest.mark.long),
        pytest.param(KILLS_QUICK, "tier", marks=pytest.mark.long),
    ],
)
def test_every_copy_holds_every_event_once_whatever_is_killed(tmp_path: Path, kills: int, storage: str) -> None:
    """With `tier` executors read objects, and the server only for what is not uploaded yet."""
    config, tier = tmp_path / "serve.yaml", f"file://{tmp_path}/bucket"
    (tmp_path / "bucket").mkdir()
    options = [f"tier={tier}"] if storage == "tier" else []
    config.write_text("segment.max_open_duration: 200ms\n" + (f"tier.url: {tier}\n" if options else ""))
    admin = ("--admin", f"127.0.0.1:{free_port()}")
    with ServedProcess(tmp_path / "data", "-c", str(config), *admin, port=free_port()) as served:
        with Feeder(served.admin) as feeder:
            for number in range(kills):
                with driving(served.admin, tmp_path, *options, batches=1 + number % 3) as driver:
                    if number % 3 == 1:
                        served.kill()
                        served.start()
                        assert len(driver.batches(3)) == 3, "the query outlives the server"
                    if number % 3 == 2:
                        assert driver.kill_workers()
                        driver.batches(2)  # it goes on, or ends because planning was hit; both are well
        wait_until_published(served.admin, feeder.events)
        last = Driver(served.admin, tmp_path, *options, "available-now")
        last.batches(10**6)
        assert last.wait() == 0, (tmp_path / "driver.stderr").read_text()
        subscribers = ask(served.admin, "GET", "subscribers")
    assert isinstance(subscribers, list)
    marks = {item["name"]: [lag["mark"] for lag in item["channels"]] for item in subscribers}
    assert marks == {name: [feeder.events] for name in ("copy", "lake", "table")}
    everything = list(range(1, feeder.events + 1))
    table = read_manifest(tmp_path / "table")
    assert sorted(ds.dataset(table.files).to_table()["n"].to_pylist()) == everything
    with Store.open(tmp_path / "data") as store:
        assert [n for batch in store.read("copy") for n in batch.column("n").to_pylist()] == everything
    found = ds.dataset(tmp_path / "out", format="parquet", partitioning="hive").to_table().column("n").to_pylist()
    assert sorted(found) == everything
    assert len(list((tmp_path / "out").iterdir())) > kills
