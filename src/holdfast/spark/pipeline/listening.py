"""Spark's progress reports, handed to a board."""

from __future__ import annotations

import json

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from holdfast.spark.pipeline.board import Board


class BoardListener(StreamingQueryListener):
    """Listens for the queries of one pipeline, which are known by their names."""

    def __init__(self, board: Board, outputs_by_query: dict[str, str]) -> None:
        self._board = board
        self._outputs = outputs_by_query

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """After a batch is in Spark's commit log, and now and then without one."""
        output = self._outputs.get(event.progress.name or "")
        if output is not None:
            self._board.report(output, json.loads(event.progress.json))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Whoever starts a query says so on the board."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Whoever watches the query says why on the board."""
