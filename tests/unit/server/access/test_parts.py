"""Buckets, bindings, the audit log and exposure."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.server import ServerConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Unprotected
from holdfast.server.access import AuditLog, check_exposure
from holdfast.server.access import audit as audit_module
from holdfast.server.access.audit import EVENTS_AT_ONCE, EVENTS_PER_SECOND, AuditFile, moment
from holdfast.server.access.bindings import Bindings
from holdfast.server.access.bucket import Bucket
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.tidy.tree import PACKAGE, ROOT

DIRECTORY = Path("/data/access")


# -- buckets ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 5), st.integers(0, 2000)), max_size=30), st.booleans())
def test_a_bucket_never_lets_more_through_than_its_rate(
    rate: int, steps: list[tuple[float, int]], patient: bool
) -> None:
    clock = ManualClock()
    bucket = Bucket(clock, rate)
    taken = waited = 0.0
    for pause, count in steps:
        clock.advance(pause)
        waited += pause
        wait = bucket.take(count)
        taken += count
        if patient:
            clock.advance(wait)
            waited += wait
            assert taken <= rate * (1 + waited) + 1


def test_a_bucket_without_a_rate_never_waits() -> None:
    bucket = Bucket(ManualClock(), 0)
    assert bucket.take(10**9) == 0
    assert bucket.try_take(10**9)


def test_a_bucket_refuses_when_it_must_not_wait() -> None:
    clock = ManualClock()
    bucket = Bucket(clock, 2, burst=3)
    assert [bucket.try_take() for _ in range(4)] == [True, True, True, False]
    clock.advance(0.5)
    assert [bucket.try_take() for _ in range(2)] == [True, False]


# -- bindings ---------------------------------------------------------------------------------------------------------


def test_bindings_come_in_pages_and_can_be_released() -> None:
    bindings = Bindings(CrashFilesystem(seed=0), DIRECTORY, ManualClock())
    assert bindings.page(after=b"", limit=10) == []
    assert bindings.release(b"x" * 16) is None
    for number in range(5):
        assert bindings.bind(bytes([number]) * 16, "a") == "a"
    page = bindings.page(after=bytes([1]) * 16, limit=2)
    assert [item.slot_id[0] for item in page] == [2, 3]
    assert bindings.release(bytes([2]) * 16) == "a"
    assert bindings.bind(bytes([2]) * 16, "b") == "b"


@pytest.mark.guarantee("G12")
def test_a_power_cut_never_gives_a_slot_to_another() -> None:
    for call in range(1, 60):
        disk = CrashFilesystem(seed=call)
        disk.makedir(Path("/data"))
        disk.sync_dir(Path("/"))
        disk.cut_at(disk.calls + call)
        bound = False
        with suppress(PowerCut):
            bindings = Bindings(disk, DIRECTORY, ManualClock())
            bindings.bind(b"s" * 16, "a")
            bound = True
            bindings.bind(b"t" * 16, "a")
            return
        for seed in range(3):
            again = Bindings(disk.after_power_cut(seed), DIRECTORY, ManualClock())
            assert not bound or again.bind(b"s" * 16, "b") == "a"
    pytest.fail("binding never came to its end")


def test_bindings_forgotten_in_memory_are_found_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.access.bindings.KNOWN_MAX", 2)
    bindings = Bindings(CrashFilesystem(seed=0), DIRECTORY, ManualClock())
    for number in range(6):
        bindings.bind(bytes([number]) * 16, "a")
    assert len(bindings._owners) == 2
    assert bindings.bind(bytes(16), "b") == "a"


# -- the audit log ----------------------------------------------------------------------------------------------------


def test_an_audit_line_is_one_json_object() -> None:
    lines: list[bytes] = []
    audit = AuditLog(lines.append, ManualClock())
    audit.write("access.refused", principal='a"\n{', verb="publish", channel="", peer=None, count=3, flag=True)
    (line,) = lines
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.000Z",
        "event": "access.refused",
        "principal": 'a"\n{',
        "verb": "publish",
        "count": 3,
        "flag": True,
    }


def test_values_that_peers_choose_are_cut() -> None:
    lines: list[bytes] = []
    AuditLog(lines.append, ManualClock()).write("x", principal="p" * 10_000)
    assert len(json.loads(lines[0])["principal"]) == 256


def test_a_flood_of_one_event_is_bounded_and_counted() -> None:
    lines: list[bytes] = []
    clock = ManualClock()
    audit = AuditLog(lines.append, clock)
    for _ in range(1000):
        audit.write("authentication.failed")
    audit.write("connection.open")
    assert len(lines) == EVENTS_AT_ONCE + 1
    clock.advance(1)
    audit.write("authentication.failed")
    assert json.loads(lines[-1])["left_out"] == 1000 - EVENTS_AT_ONCE
    assert audit.suppressed == 1000 - EVENTS_AT_ONCE
    for _ in range(1000):
        audit.write("authentication.failed")
    assert len(lines) <= EVENTS_AT_ONCE + 2 + EVENTS_PER_SECOND


def test_a_log_that_cannot_be_written_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    def sink(_line: bytes) -> None:
        if broken:
            raise OSError(28, "No space left on device")

    audit = AuditLog(sink, ManualClock())
    for _ in range(3):
        audit.write("x")
    assert (audit.lines, audit.failures) == (0, 3)
    assert len([record for record in caplog.records if "server.audit.fail" in record.message]) == 1
    broken = False
    audit.write("x")
    assert audit.lines == 1


def test_audit_file_is_replaced_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    sink = AuditFile(LocalFilesystem(), path, bytes_max=100)
    for number in range(10):
        sink(b"%030d\n" % number)
    sink.close()
    assert path.read_bytes() == b"%030d\n" % 9
    assert path.with_name("audit.log.1").read_bytes() == b"".join(b"%030d\n" % number for number in (6, 7, 8))


def test_audit_file_is_continued_and_may_be_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"old\n")
    sink = AuditFile(LocalFilesystem(), path, bytes_max=1000)
    sink(b"new\n")
    assert path.read_bytes() == b"old\nnew\n"
    path.rename(tmp_path / "moved")
    sink.close()
    sink(b"newest\n")
    sink.close()
    assert path.read_bytes() == b"newest\n"


def test_moments_are_iso_times_in_utc() -> None:
    assert moment(1_700_000_000_123_999_999) == "2023-11-14T22:13:20.123Z"


def test_reference_page_lists_every_audit_event() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "server").rglob("*.py"))
    written = set(re.findall(r'(?:audit\.write\(|yield )"([a-z]+\.[a-z]+)"', sources))
    page = (ROOT / "docs" / "reference" / "access.md").read_text(encoding="utf-8")
    table = page[page.index("## The audit log") :]
    listed = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }
    assert listed == written
    assert all(name in (audit_module.__doc__ or "") for name in written)


# -- exposure ---------------------------------------------------------------------------------------------------------

SAFE = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("key", ["listen", "admin"])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.1", "myhost"])
def test_a_public_address_needs_tls_and_authentication(key: str, host: str) -> None:
    for tls, auth_on in ((False, False), (True, False), (False, True)):
        config = ServerConfig(**{key: f"{host}:1"}, **(SAFE if tls else {}))  # type: ignore[arg-type]
        with pytest.raises(Unprotected) as caught:
            check_exposure(config, insecure=False, auth_on=auth_on)
        assert (caught.value.key, caught.value.address) == (f"server.{key}", f"{host}:1")
        assert ("TLS is off" in str(caught.value), "authenticate" in str(caught.value)) == (not tls, not auth_on)
        (warning,) = check_exposure(config, insecure=True, auth_on=auth_on)
        assert f"server.{key} {host}:1 can be reached from other machines" in warning
    safe = ServerConfig(**{key: f"{host}:1"}, **SAFE)  # type: ignore[arg-type]
    assert check_exposure(safe, insecure=False, auth_on=True) == ()


def test_loopback_addresses_need_nothing() -> None:
    config = ServerConfig(listen="localhost:1", admin="[::1]:2")
    assert check_exposure(config, insecure=False, auth_on=False) == ()
