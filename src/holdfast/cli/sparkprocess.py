"""The process of a Spark node: `holdfast pipeline run`, which ends when the graph that started it is gone.

    python -m holdfast.cli.sparkprocess '{"pipeline": "landing.yaml", "link": 7}'

is what it is started with; nobody else calls it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import msgspec
import typer

from holdfast.cli.answer import answering
from holdfast.cli.pipeline import run_run

GRACE_S = 30.0
"""How long the batch in hand may take once the graph is gone; it is done again at the next start."""


class SparkOrder(msgspec.Struct, frozen=True):
    """Which pipeline, and the descriptor whose end says that the graph is gone."""

    pipeline: str
    link: int


def main() -> int:
    """Run the pipeline."""
    order = msgspec.json.decode(sys.argv[1], type=SparkOrder)
    threading.Thread(target=_watch, args=(socket.socket(fileno=order.link),), daemon=True).start()
    try:
        with answering("pipeline run", as_json=False):
            return run_run(Path(order.pipeline), master=None, metrics=None, once=False, as_json=False)
    except typer.Exit as ending:
        return ending.exit_code


def _watch(link: socket.socket) -> None:
    """The graph says nothing: what can be read is the end. A batch that cannot end without the graph is given up."""
    link.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
