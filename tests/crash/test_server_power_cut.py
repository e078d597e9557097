"""The disk fails and the power goes while a server is answering: every frame it answered is there, once and in order.

The disk is the crash disk, so this is power loss; the server, its loop and its sockets are real. Failing first lets the
threads of the store end as they do in production.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.errors import StoreFailed
from holdfast.testing import CrashFilesystem
from holdfast.wire.replies import Ok
from tests.unit.server.harness import RawClient, RunningServer, arrow_frame

FRAMES = 400


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("seed", range(3))
def test_power_cut_under_a_server_loses_nothing_it_answered(tmp_path: Path, seed: int) -> None:
    disk, answered = CrashFilesystem(seed=seed), -1
    for round_ in range(3):
        with RunningServer(tmp_path, filesystem=disk) as running, running.client() as client:
            first = answered + 1
            for fsn in range(first, first + FRAMES):
                client.send(arrow_frame(fsn, fsn=fsn))
            while answered < first + 20 * round_ + seed:
                reply = client.reply()
                assert isinstance(reply, Ok)
                answered = first + reply.wire_seq
            disk.fail_when(lambda _operation, _path: errno.EIO)
            client.send(arrow_frame(first + FRAMES, fsn=first + FRAMES))
            answered = max([answered, *(first + seq for seq in late_answers(client))])
            running.join()
            assert isinstance(running.failure, StoreFailed)
        disk.stop_failing()
        disk = disk.after_power_cut(seed)
        with Store.open(tmp_path, filesystem=disk) as store:
            rows = [number for batch in store.read("trades", columns=["n"]) for number in batch.column(0).to_pylist()]
        assert rows[: answered + 1] == list(range(answered + 1)), "an answered frame is lost"
        assert rows == list(range(len(rows))), "a frame is doubled or out of order"


def late_answers(client: RawClient) -> list[int]:
    """What was answered before the disk failed and is still on its way."""
    seqs: list[int] = []
    while True:
        try:
            reply = client.reply()
        except (EOFError, ConnectionError, AssertionError):  # the last one: the server closed
            return seqs
        if isinstance(reply, Ok):
            seqs.append(reply.wire_seq)
