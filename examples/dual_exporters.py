"""Two exporters over one store: Parquet files on disk, and a remote endpoint that fails now and then.

    python examples/dual_exporters.py [DIRECTORY]

Each exporter is a subscriber with a cursor of its own. A segment is kept until both have acked it, and evicted then.
What the example shows, in this order:

    1. batches are committed and become segments; both exporters are told
    2. the Parquet exporter writes each segment to a file and acks it
    3. the OTLP exporter posts each segment to a local HTTP server; a refused request is a nack and comes again later,
       an event the server will never take is rejected and kept in the channel `logs.dead`
    4. the process is killed (SIGKILL) while the second exporter is half-way
    5. a new process opens the directory: marks and gap sets are where they were, nothing acked is exported again
    6. the slow exporter finishes; the segments both have acked are evicted

Parquet files are named by the events they hold, so exporting a segment again writes the same file again. The endpoint
sees an event twice if the kill came between its answer and our ack; it can tell by the event's seq.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from holdfast import Store
from holdfast.store.subscribers.subscriber import Lease, Subscriber

SETTINGS = {"segment.target_size": "16KiB", "retention.tick": "20ms", "lease_timeout": "5s"}
CHANNEL = "logs"
PARQUET, OTLP = "parquet_exporter", "otlp_exporter"
BATCHES, EVENTS = 12, 100
POISON = 1042  # the event the endpoint will never take
console = Console(highlight=False, width=110)


# -- the remote endpoint ----------------------------------------------------------------------------------------------


class Endpoint(BaseHTTPRequestHandler):
    """Takes logs as JSON; is overloaded at every third request; refuses one event for good."""

    requests = 0
    taken: Path

    def do_POST(self) -> None:
        """503 is worth another try, 400 is not."""
        events = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Endpoint.requests += 1
        if Endpoint.requests % 3 == 0:
            self.answer(503)
        elif any(event["n"] == POISON for event in events):
            self.answer(400)
        else:
            with Endpoint.taken.open("a") as file:
                file.writelines(f"{event['_seq']}\n" for event in events)
            self.answer(200)

    def answer(self, code: int) -> None:
        """An empty answer."""
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


@contextmanager
def endpoint(directory: Path) -> Iterator[int]:
    """The server, on a port of its own."""
    Endpoint.taken = directory / "taken-by-the-endpoint.txt"
    Endpoint.taken.touch()
    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# -- the exporters ----------------------------------------------------------------------------------------------------


def export_parquet(lease: Lease, directory: Path) -> None:
    """Write a file under a temporary name, rename it, ack. The name says which events it holds."""
    table = pa.Table.from_batches(list(lease.read(system=("_seq",))))
    target = directory / f"{lease.channel}-{lease.first_seq:06d}-{lease.last_seq:06d}.parquet"
    pq.write_table(table, target.with_suffix(".tmp"))
    target.with_suffix(".tmp").rename(target)
    lease.ack()


def export_otlp(reader: Subscriber, lease: Lease, port: int) -> str:
    """Post the events; ack, nack or reject as the answer says."""
    events = [row for part in lease.read(system=("_seq",)) for row in part.to_pylist()]
    status = post(port, events)
    if status == 503:
        lease.nack(delay=0.05)
        return "nack: overloaded, again later"
    if status == 400:
        return isolate(reader, lease, events, port)
    lease.ack()
    return "ack"


def isolate(reader: Subscriber, lease: Lease, events: list[dict[str, int]], port: int) -> str:
    """Some event of the lease is refused for good: ack the others one by one, reject what is left."""
    refused = 0
    for event in events:
        status = post(port, [event])
        while status == 503:
            status = post(port, [event])
        refused += status == 400
        if status == 200:
            reader.ack(lease.channel, event["_seq"])
    lease.reject("the endpoint answered 400")
    return f"ack by event, {refused} rejected"


def post(port: int, events: list[dict[str, int]]) -> int:
    """One request; its status."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", "/v1/logs", json.dumps(events), {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


# -- two lives --------------------------------------------------------------------------------------------------------


def first_life(directory: Path) -> None:
    """Produce, export everything to Parquet and half of it to the endpoint; then the process is killed."""
    store = Store.open(directory / "store", SETTINGS)
    parquet, otlp = (store.subscriber(name, [CHANNEL]) for name in (PARQUET, OTLP))
    for number in range(BATCHES):
        rows = range(number * EVENTS, (number + 1) * EVENTS)
        columns = {"n": pa.array(rows), "body": pa.array([f"log line {n} " + "." * 100 for n in rows])}
        store.commit(CHANNEL, pa.record_batch(columns))
    store.flush()
    console.print(f"{BATCHES * EVENTS} events committed, {store.statistics().segments} segments published")
    for lease in parquet.drain():
        export_parquet(lease, directory / "parquet")
    with endpoint(directory) as port:
        half = store.statistics().segments // 2
        for number, lease in enumerate(otlp.drain()):
            console.print(f"  {OTLP} {lease.first_seq:5}..{lease.last_seq:<5} {export_otlp(otlp, lease, port)}")
            if number == half:
                break
    tell(store, "before the kill")
    os.kill(os.getpid(), signal.SIGKILL)


def second_life(directory: Path) -> int:
    """Open what the first left behind and finish; returns 0 if everything arrived everywhere."""
    with Store.open(directory / "store", SETTINGS) as store:
        parquet, otlp = (store.subscriber(name, [CHANNEL]) for name in (PARQUET, OTLP))
        tell(store, "after the restart")
        for lease in parquet.drain():
            export_parquet(lease, directory / "parquet")
        with endpoint(directory) as port:
            while (due := otlp.poll(1.0)) is not None:
                console.print(f"  {OTLP} {due.first_seq:5}..{due.last_seq:<5} {export_otlp(otlp, due, port)}")
        while store.statistics().retention.evicted_bytes == 0 or any(owed(store)):
            threading.Event().wait(0.02)
        tell(store, "at the end")
        left = [part.num_rows for part in store.read(CHANNEL)]
        dead = [row for part in store.read(f"{CHANNEL}.dead") for row in part.to_pylist()]
    return verdict(directory, left, dead)


def owed(store: Store) -> Iterator[int]:
    """Segments of the channel that are still there, one by one."""
    for part in store.read(CHANNEL, columns=[]):
        yield part.num_rows


def tell(store: Store, moment: str) -> None:
    """Who has confirmed what, and what is still on disk."""
    table = Table("subscriber", "mark", "gap set", "owed", "acked", "nacked", "rejected", title=moment)
    for shown in store.subscribers():
        for lag in shown.channels:
            gaps = ", ".join(f"{first}..{last}" for first, last in lag.gaps) or "-"
            counts = [str(shown.outcomes[name]) for name in ("ack", "nack", "rejected")]
            table.add_row(shown.name, str(lag.mark), gaps, str(lag.events), *counts)
    console.print(table)
    evictions = dict(store.statistics().retention.evictions)
    console.print(f"  {sum(1 for _ in owed(store))} batches of the channel left on disk; evicted so far: {evictions}")


def verdict(directory: Path, left: list[int], dead: list[dict[str, object]]) -> int:
    """Compare what arrived with what was sent."""
    total = BATCHES * EVENTS
    files = sorted((directory / "parquet").glob("*.parquet"))
    stored = [seq for file in files for seq in pq.read_table(file, columns=["_seq"]).column("_seq").to_pylist()]
    taken = [int(line) for line in (directory / "taken-by-the-endpoint.txt").read_text().split()]
    buried = [row["seq"] for row in dead]
    console.print(
        f"\nParquet: {len(stored)} events in {len(files)} files, each once: {len(stored) == len(set(stored))}"
    )
    console.print(
        f"endpoint: {len(set(taken))} events, {len(taken) - len(set(taken))} of them twice; dead letters: {buried}"
    )
    console.print(f"left on disk: {sum(left)} events")
    everything = set(range(1, total + 1))
    whole = sorted(stored) == sorted(everything) and set(taken) | set(buried) == everything and not left
    console.print("nothing was lost" if whole else "SOMETHING IS MISSING")
    return 0 if whole else 1


def main(arguments: list[str]) -> int:
    """Both lives, the first in a process of its own."""
    if arguments[:1] == ["--first-life"]:
        first_life(Path(arguments[1]))
    with tempfile.TemporaryDirectory(prefix="dual-exporters-") as folder:
        directory = Path(arguments[0] if arguments else folder)
        (directory / "parquet").mkdir(parents=True)
        console.print(f"first life, in {directory}")
        first = subprocess.run([sys.executable, __file__, "--first-life", str(directory)], check=False)  # noqa: S603
        console.print(f"\nthe first process ended with {first.returncode} (-9 is SIGKILL); second life")
        return second_life(directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
