"""The token file: secrets by their hashes only, replaced as a whole, damage is told and never believed."""

from __future__ import annotations

import json
import re
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, CorruptData, InvalidName, LimitReached, Locked, UnsupportedFormat
from holdfast.server.access import tokens
from holdfast.server.access.tokens import Token, TokenFile, TokenTable, changes, digest_of
from holdfast.testing import CrashFilesystem, PowerCut

PATH = Path("/data/access/tokens.json")

VECTOR = (
    b'{"version":1,"bytes":164,"crc32c":"e50b10c4","tokens":[{"id":"3fa9c2d1","name":"app-1",'
    b'"sha256":"4a71ac21a33d4e53e7c2a4d2b3e4b0a3c6ffdfa0c1e2d44ccff7f5b6f8d14a11","created_at_ns":1,"expires_at_ns":2,'
    b'"revoked_at_ns":0}]}\n'
)
"""Version 1, kept for ever."""


def make(filesystem: CrashFilesystem | None = None) -> TokenFile:
    return TokenFile(filesystem or CrashFilesystem(seed=0), PATH)


def test_a_token_is_32_random_bytes_and_only_its_hash_is_kept() -> None:
    disk = CrashFilesystem(seed=0)
    token, secret = make(disk).create("app-1", now_ns=1)
    assert re.fullmatch(r"hf_[A-Za-z0-9_-]{43}", secret)
    assert token.sha256 == digest_of(secret)
    assert secret.encode() not in disk.read_bytes(PATH)
    assert secret[3:].encode() not in disk.read_bytes(PATH)
    assert make().create("app-1", now_ns=1)[1] != secret


def test_a_token_is_found_by_its_secret_only() -> None:
    file = make()
    first, secret = file.create("app", now_ns=1)
    file.create("app", now_ns=1)
    table = TokenTable(file.read() or ())
    assert table.find(secret) == first
    for wrong in ("", "hf_", secret[:-1], secret + "A", secret.upper(), first.sha256, first.id, "hf_\udcff"):
        assert table.find(wrong) is None


def test_a_token_lives_until_it_expires_or_is_revoked() -> None:
    token = Token(id="a", name="b", sha256="", created_at_ns=1, expires_at_ns=10)
    assert [token.state(now_ns) for now_ns in (1, 9, 10, 11)] == ["live", "live", "expired", "expired"]
    file = make()
    made, _ = file.create("app", now_ns=1)
    file.revoke(made.id, now_ns=5)
    assert [item.state(6) for item in file.read() or ()] == ["revoked"]


def test_revoking_a_name_revokes_all_of_its_tokens() -> None:
    file = make()
    for name in ("a", "b", "a"):
        file.create(name, now_ns=1)
    assert len(file.revoke("a", now_ns=2)) == 2
    assert [token.state(3) for token in file.read() or ()] == ["revoked", "live", "revoked"]
    with pytest.raises(BadRequest, match="there is no token 'a' to revoke"):
        file.revoke("a", now_ns=3)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "é", "x" * 129])
def test_a_token_has_a_plain_name(name: str) -> None:
    with pytest.raises(InvalidName):
        make().create(name, now_ns=1)


def test_no_file_means_no_tokens() -> None:
    assert make().read() is None


def test_file_of_version_1_is_read_for_ever() -> None:
    (token,) = make().decode(VECTOR)
    assert (token.id, token.name, token.created_at_ns, token.expires_at_ns) == ("3fa9c2d1", "app-1", 1, 2)


def test_file_is_written_as_version_1_says() -> None:
    disk = CrashFilesystem(seed=0)
    make(disk).create("app", now_ns=1)
    image = disk.read_bytes(PATH)
    envelope = json.loads(image)
    raw = image[image.index(b"[") : image.rindex(b"]") + 1]
    assert (envelope["version"], envelope["bytes"]) == (1, len(raw))


@pytest.mark.guarantee("G12")
def test_every_torn_file_is_refused() -> None:
    for length in range(len(VECTOR) - 1):  # the last byte is a line end
        with pytest.raises(CorruptData, match=r"tokens\.json is damaged at byte"):
            make().decode(VECTOR[:length])


@pytest.mark.guarantee("G12")
def test_every_flipped_bit_is_refused_or_changes_nothing() -> None:
    good = make().decode(VECTOR)
    for position in range(len(VECTOR)):
        for bit in range(8):
            damaged = bytearray(VECTOR)
            damaged[position] ^= 1 << bit
            with suppress(CorruptData, UnsupportedFormat):
                assert make().decode(bytes(damaged)) == good


def test_a_newer_file_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedFormat, match="format version 2; this release reads up to 1"):
        make().decode(VECTOR.replace(b'"version":1', b'"version":2'))


def test_tokens_that_make_no_sense_are_refused() -> None:
    raw = b'[{"id":5}]'
    image = b'{"version":1,"bytes":%d,"crc32c":"%s","tokens":%s}' % (
        len(raw),
        tokens._checksum(1, raw).encode(),
        raw,
    )
    with pytest.raises(CorruptData, match="the tokens make no sense"):
        make().decode(image)


def test_a_file_larger_than_all_tokens_is_refused() -> None:
    disk = CrashFilesystem(seed=0)
    disk.write_bytes(PATH, b" " * (tokens.FILE_BYTES_MAX + 1))
    with pytest.raises(CorruptData, match="at most 5120000 make sense"):
        make(disk).read()


def test_dead_tokens_give_way_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 3)
    file = make()
    for name in ("a", "b", "c"):
        file.create(name, now_ns=1)
    with pytest.raises(LimitReached):
        file.create("d", now_ns=1)
    file.revoke("b", now_ns=2)
    file.create("d", now_ns=3)
    assert [token.name for token in file.read() or ()] == ["a", "c", "d"]


def test_two_changes_at_once_do_not_mix() -> None:
    disk = CrashFilesystem(seed=0)
    file = make(disk)
    file.create("a", now_ns=1)
    lock = disk.lock(PATH.with_name("tokens.json.lock"))
    with pytest.raises(Locked):
        file.create("b", now_ns=1)
    lock.release()
    file.create("b", now_ns=1)
    assert len(file.read() or ()) == 2


@pytest.mark.guarantee("G12")
def test_a_power_cut_leaves_the_old_file_or_the_new_one() -> None:
    for call in range(1, 40):
        disk = CrashFilesystem(seed=call)
        file = make(disk)
        file.create("a", now_ns=1)
        before = file.read()
        disk.cut_at(disk.calls + call)
        done = False
        with suppress(PowerCut):
            file.revoke("a", now_ns=2)
            done = True
        for seed in range(4):
            left = make(disk.after_power_cut(seed))
            state = left.read()
            assert state is not None
            assert (state[0].state(3) == "revoked") if done else (state == before or state[0].state(3) == "revoked")
            if not done:
                left.revoke("a", now_ns=2) if state == before else left.create("b", now_ns=2)
        if done:
            return
    pytest.fail("revoking never came to its end")


def test_file_and_directory_are_the_owners_alone(tmp_path: Path) -> None:
    file = TokenFile(LocalFilesystem(), tmp_path / "data" / "access" / "tokens.json")
    file.create("a", now_ns=1)
    file.revoke("a", now_ns=1)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]


def test_differences_of_two_readings_are_told_for_the_audit_log() -> None:
    old = Token(id="1", name="a", sha256="x", created_at_ns=1)
    gone = Token(id="2", name="b", sha256="y", created_at_ns=1)
    fresh = Token(id="3", name="c", sha256="z", created_at_ns=1)
    revoked = Token(id="1", name="a", sha256="x", created_at_ns=1, revoked_at_ns=5)
    found = [(name, token.id) for name, token in changes(TokenTable([old, gone]), TokenTable([revoked, fresh]))]
    assert found == [("token.revoked", "1"), ("token.created", "3"), ("token.removed", "2")]
