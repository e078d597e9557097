"""What was sent and answered, as the writer's pipe says.

Promise: an answer is in the ledger only if it was read from the pipe. Frames are answered in the order in which they
were sent, so the first frame without an answer is the one to go on with. Thread-safe: the pipe's reader writes, the
demo reads.
"""

from __future__ import annotations

import threading

import numpy as np

from holdfast.cli.demo.check import AcceptedRows
from holdfast.cli.demo.events import ROWS, first_id
from holdfast.cli.demo.writer import Answered, Closed, Message, Opened, Sent

EVENTS_PER_FRAME = sum(ROWS.values())


class Ledger:
    """The memory of the demo over all lives of the writer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first_seqs: dict[str, list[int]] = {channel: [] for channel in ROWS}
        self.sent_fsn = 0
        """The highest frame that was ever handed over."""
        self.resent = 0
        self.duplicates = 0

    @property
    def answered_fsn(self) -> int:
        """All frames up to here have an answer."""
        with self._lock:
            return len(next(iter(self._first_seqs.values())))

    def note(self, message: Message) -> None:
        """Enter one line of the pipe."""
        with self._lock:
            if isinstance(message, Sent):
                self.resent += message.fsn <= self.sent_fsn
                self.sent_fsn = max(self.sent_fsn, message.fsn)
            elif isinstance(message, Answered):
                self._note_answer(message)
            else:
                assert isinstance(message, Opened | Closed)

    def _note_answer(self, answer: Answered) -> None:
        expected = len(next(iter(self._first_seqs.values()))) + 1
        if answer.fsn != expected:
            raise ChildProcessError(f"the writer answered frame {answer.fsn}, expected was frame {expected}")
        self.duplicates += answer.duplicate
        for channel, first_seqs in self._first_seqs.items():
            first_seqs.append(answer.first_seqs.get(channel, 0))

    def sent_events(self, channel: str) -> int:
        """How many different events of a channel were ever handed over; their ids are 1 to this."""
        return self.sent_fsn * ROWS[channel]

    def accepted(self, channel: str) -> AcceptedRows:
        """Ids of accepted events and the seqs that the receipts gave them."""
        with self._lock:
            first_seqs = np.array(self._first_seqs[channel], dtype=np.int64)
        frames = np.arange(1, len(first_seqs) + 1, dtype=np.int64)
        rows = np.arange(ROWS[channel], dtype=np.int64)
        first_ids = first_id(channel, 1) + (frames - 1) * ROWS[channel]
        return AcceptedRows((first_ids[:, None] + rows).ravel(), (first_seqs[:, None] + rows).ravel())
