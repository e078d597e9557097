"""The real PyPI client `questdb` at a server whose store takes nothing: it is told, keeps what it has, and goes on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import CrashFilesystem
from tests.unit.server.harness import RunningServer
from tests.unit.server.test_ingest import CAPPED, confirm_everything

questdb = pytest.importorskip("questdb")

from tests.conformance.test_questdb_client import (  # noqa: E402 - it needs the client
    FAST,
    PATIENCE_MS,
    close_quietly,
    flush,
    flush_and_wait,
    open_sender,
    put,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of many connections in a short time
NOT_WRITABLE = (questdb.SenderErrorCategory.NotWritable, questdb.SenderErrorPolicy.RetriableOther)


def test_full_store_is_not_writable_and_the_client_goes_on_when_there_is_room(tmp_path: Path) -> None:
    errors: list[Any] = []
    settings = {"ingest.write_deadline": "1s", "ingest.max_batch_size": "512KiB"}
    with RunningServer(tmp_path, settings, store=CAPPED) as running:
        lazy = running.store.subscriber("lazy")
        sender = open_sender(running.port, FAST, error_handler=errors.append)
        sent, last = 0, -1
        while not errors:
            put(sender, sent, pad="x" * 100_000)
            last = flush(sender)
            sent += 1
            assert sent < 100, "3 MiB of room were never full"
            while not errors and not sender.await_acked_fsn(last, 50):
                pass
        kept = running.rows("trades")
        assert kept == list(range(sent - 1)), "what was acknowledged is there, what was refused is not"
        confirm_everything(lazy)
        assert sender.await_acked_fsn(last, PATIENCE_MS)
        put(sender, sent)
        flush_and_wait(sender)
        sender.close()
        assert {(found.category, found.applied_policy) for found in errors} == {NOT_WRITABLE}
        assert "retention.size_cap" in errors[0].message
        assert "lazy" in errors[0].message  # later ones may come while room is made, and lazy keeps nothing any more
        assert running.rows("trades")[-2:] == [sent - 1, sent]


def test_failed_store_is_not_writable_until_another_process_takes_it(tmp_path: Path) -> None:
    errors: list[Any] = []
    disk = CrashFilesystem()
    with RunningServer(tmp_path, filesystem=disk) as running:
        sender = open_sender(running.port, FAST, error_handler=errors.append)
        put(sender, 1)
        flush_and_wait(sender)
        disk.fail_when(lambda _operation, path: errno.EIO if "wal" in path.parts else None)
        put(sender, 2)
        after = flush(sender)
        for _ in range(PATIENCE_MS // 50):
            assert not sender.await_acked_fsn(after, 50)
            if errors:
                break
        assert (errors[0].category, errors[0].applied_policy) == NOT_WRITABLE
        close_quietly(sender)
