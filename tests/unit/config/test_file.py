"""The configuration file: read whole or refused with file, line and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import GIB, MIB, SECOND
from holdfast.config.file import read
from holdfast.config.server import ServerConfig
from holdfast.config.table import StoreConfig
from holdfast.config.yamltext import DEPTH_MAX, FILE_BYTES_MAX, read_yaml
from holdfast.errors import BadRequest, InvalidConfig
from tests.tidy.tree import ROOT

PAGE = ROOT / "docs" / "reference" / "config-file.md"
SECRET = "hunter2-correct-horse"


def write(directory: Path, text: str) -> Path:
    path = directory / "holdfast.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", [",", "x,,y", "x,", " , x"])
def test_keys_of_events_without_a_name_are_refused(tmp_path: Path, text: str) -> None:
    for prefix, key, line in (("", "dedup_keys", 1), ("channels:\n  trades:\n    ", "channels.trades.dedup_keys", 3)):
        error = refusal(tmp_path, f'{prefix}dedup_keys: "{text}"\n')
        assert (error.key, error.line) == (key, line)
        assert "empty name" in error.reason
    assert read(write(tmp_path, 'dedup_keys: "x, y"\n')).store.dedup_keys == "x, y"


def refusal(directory: Path, text: str, **environ: str) -> InvalidConfig:
    """How a file is refused."""
    with pytest.raises(InvalidConfig) as caught:
        read(write(directory, text), environ=environ)
    return caught.value


# -- what is read -----------------------------------------------------------------------------------------------------


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "---\n", "~"):
        found = read(write(tmp_path, text), environ={})
        assert (found.server, found.store) == (ServerConfig(), StoreConfig())


def test_example_of_the_reference_page_loads(tmp_path: Path) -> None:
    text = re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "backup").write_text(f"{SECRET}\n")
    found = read(write(tmp_path, text[1]), environ={"GRAFANA_PASSWORD": SECRET})
    server, store = found.server, found.store
    assert (server.data, server.listen_address) == ("/var/lib/holdfast", ("0.0.0.0", 9000))
    assert server.tls_cert == str(tmp_path / "tls" / "server.pem")
    assert [user.name for user in server.users] == ["grafana", "backup", "alice"]
    assert all(user.password.verify(SECRET) for user in server.users[:2])
    assert len(server.access) == 5
    assert [item.principal.text for item in server.limits] == ["*", "sensor-*"]
    assert (server.ingest_batch_bytes_max, server.ingest_write_deadline_ns) == (8 * MIB, 10 * SECOND)
    assert (store.retention_size_cap_bytes, store.max_channels) == (200 * GIB, 2000)
    assert [override.pattern.text for override in store.channels] == ["orders.*", "sensors.>"]


def test_words_of_old_yaml_stay_texts(tmp_path: Path) -> None:
    text = "signal: no\nevent_time: 1:30\nverify_crc: no\nmax_msgs: 12\narchive_script: '12'\n"
    store = read(write(tmp_path, text), environ={}).store
    assert (store.signal, store.event_time_column, store.verify_crc) == ("no", "1:30", False)
    assert (store.max_msgs, store.archive_script) == (12, "12")


def test_variables_are_filled_in_and_escaped(tmp_path: Path) -> None:
    text = 'server: {listen: "${HOST}:${PORT}"}\nsignal: "$${x}"\nmax_msgs: ${COUNT}\n'
    found = read(write(tmp_path, text), environ={"HOST": "localhost", "PORT": "1", "COUNT": "7"})
    assert found.server.listen == "localhost:1"
    assert type(found.server.listen) is str
    assert (found.store.signal, found.store.max_msgs) == ("${x}", 7)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = "data: store\ntls: {cert: a.pem, key: b.pem}\nauth.tokens: t.json\naudit: {path: /var/log/a}\n"
    server = read(write(tmp_path, text), environ={}).server
    assert (server.data, server.tls_key) == (str(tmp_path / "store"), str(tmp_path / "b.pem"))
    assert (server.tokens_path, server.audit_path) == (tmp_path / "t.json", "/var/log/a")


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"nothing\.yaml cannot be read: No such file or directory"):
        read(tmp_path / "nothing.yaml")


# -- what is refused --------------------------------------------------------------------------------------------------

BAD = [
    # text, line, key, a part of the reason
    ("retention:\n  size_cap: 5\n", 2, "retention.size_cap", "is outside 1MiB … 1024TiB"),
    ("wal:\n  max_size: lots\n", 2, "wal.max_size", "'lots' is not a number with one of the units"),
    ("wal:\n\n  flush: sometimes\n", 3, "wal.flush", "is not one of commit, interval, bytes"),
    ("sever:\n  listen: a:1\n", 1, "sever", "did you mean server?"),
    ("listen: 127.0.0.1:1\n", 1, "listen", "did you mean server.listen?"),
    ("zzz: 1\n", 1, "zzz", "of the server are access, audit"),
    ("server:\n  lisen: a:1\n", 2, "server.lisen", "did you mean server.listen?"),
    ("server:\n  listen: 9000\n", 2, "server.listen", "9000 is not a text"),
    ("server:\n  listen: localhost\n", 2, "server.listen", "is not host:port"),
    ("server:\n  listen: localhost:70000\n", 2, "server.listen", "a port of 0 to 65535"),
    ("server:\n  admin: ::1:9001\n", 2, "server.admin", "stands in brackets"),
    ("server:\n  role: boss\n", 2, "server.role", "is not one of primary, replica, primary_catchup"),
    ("server: 5\n", 1, "server", "it is a section with the settings server.listen"),
    ("max_msgs: 1\nmax_bytes: 2\nmax_msgs: 3\n", 3, "max_msgs", "is given twice, first in line 1"),
    ("wal: {max_size: 1GiB}\nwal.max_size: 1GiB\n", 1, "wal.max_size", "is given twice, flat and nested"),
    ("wal:\n  rotation_size: 1GiB\n", 2, "wal.max_size", "must be at least twice wal.rotation_size"),
    ("ingest:\n  max_batch_size: 32MiB\n", 2, "ingest.max_batch_size", "must be at most frame.max_size"),
    ("frame.max_size: 1MiB\n", 1, "ingest.max_batch_size", "must be at most frame.max_size"),
    ("ingest: {total_inflight: 1MiB}\n", 1, "ingest.total_inflight", "must be at least ingest.connection_inflight"),
    ("ingest:\n  ping_interval: 1m\n", 2, "ingest.idle_timeout", "must be at least twice ingest.ping_interval"),
    ("ingest:\n  origins: app.example\n", 2, "ingest.origins", "is not a list of texts"),
    ("ingest:\n  origins: ['*']\n", 2, "ingest.origins", "an origin is scheme, host"),
    ("ingest:\n  write_deadline: 5\n", 2, "ingest.write_deadline", "one of the units ns, us, ms, s, m, h, d"),
    ("tls:\n  cert: a.pem\n", 2, "tls.cert", "needs tls.key beside it"),
    ("tls:\n  key: a.pem\n", 2, "tls.key", "needs tls.cert beside it"),
    ("tls:\n  client_ca: a.pem\n", 2, "tls.client_ca", "needs tls.cert and tls.key beside it"),
    ("tls:\n  client_cert: required\n", 2, "tls.client_cert", "required needs tls.client_ca"),
    ("auth:\n  required: maybe\n", 2, "auth.required", "is not one of yes, true, no, false"),
    ("auth:\n  users: [a]\n", 2, "auth.users", "is not a mapping of names to passwords"),
    ("auth:\n  users:\n    a: {}\n", 3, "auth.users.a", "exactly one of password_hash"),
    ("auth:\n  users:\n    a: {pass: x}\n", 3, "auth.users.a.pass", "unknown setting; takes exactly one"),
    ("auth:\n  users:\n    a b: {password_hash: x}\n", 3, "auth.users.a b", "a user's name has letters"),
    ("auth:\n  users:\n    a: {password_hash: md5}\n", 3, "auth.users.a.password_hash", "is not scrypt:"),
    ("auth:\n  users:\n    a: {password_file: no}\n", 3, "auth.users.a.password_file", "No such file"),
    ("access: yes\n", 1, "access", "is not a list of rules"),
    ("access:\n  - {principal: a, allow: publish}\n  - 7\n", 3, "access[1]", "is not a mapping"),
    ("access:\n  - principal: a\n", 2, "access[0]", "needs either allow or deny"),
    ("access:\n  - {principal: a, allow: x, deny: y}\n", 2, "access[0]", "needs either allow or deny"),
    ("access:\n  - allow: publish\n", 2, "access[0]", "needs principal"),
    ("access:\n  - principal: a\n    allow: [write]\n", 3, "access[0].allow", "'write' is not one of publish"),
    ("access:\n  - principal: 5\n    allow: publish\n", 2, "access[0].principal", "5 is not a text"),
    (
        "access:\n  - principal: a\n    allow: publish\n    channels: [a..b]\n",
        4,
        "access[0].channels",
        "a token between dots is empty",
    ),
    ("access:\n  - principal: a\n    alow: publish\n", 3, "access[0].alow", "unknown setting; a rule has"),
    ("limits:\n  a: {connections: -1}\n", 2, "limits.a.connections", "is negative; 0 means unlimited"),
    ("limits:\n  a:\n    conections: 1\n", 3, "limits.a.conections", "did you mean connections?"),
    ("limits:\n  a: 5\n", 2, "limits.a", "is not a mapping"),
    ("channels:\n  a.b:\n    max_ages: 1h\n", 3, "channels.a.b.max_ages", "did you mean max_age?"),
    ("channels:\n  '>.a':\n    max_age: 1h\n", 2, "channels.>.a", "it must be the last token"),
    ("channels:\n  a: {wal.max_size: 1GiB}\n", 2, "channels.a.wal.max_size", "is store-wide"),
    ("data: ''\n", 1, "data", "is empty"),
    ("data: ${NOWHERE}\n", 1, "data", "the environment variable NOWHERE is not set"),
    ("\ndata: ${no such\n", 2, "data", "is not followed by the name of a variable"),
    ("- a\n- b\n", 1, "(file)", "is not a mapping of keys to values"),
    ("a: &x 1\n", 1, "(file)", "anchors and aliases are not allowed"),
    ("max_msgs: 1\nmax_bytes: *x\n", 2, "(file)", "anchors and aliases are not allowed"),
    ("max_msgs: !!int '5'\n", 1, "(file)", "tags are not allowed"),
    ("wal:\n  flush: [commit\n", 3, "(file)", "is not YAML that can be read"),
    ("wal:\n\tflush: commit\n", 2, "(file)", "is not YAML that can be read"),
    ("a: 1\n---\nb: 2\n", 2, "(file)", "is not YAML that can be read"),
    ("? [a, b]\n: 1\n", 1, "(file)", "a key is a text"),
    ("max_msgs: " + "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), 1, "(file)", "is nested deeper than"),
]


@pytest.mark.parametrize(("text", "line", "key", "reason"), BAD, ids=[f"{key}:{reason}" for _, _, key, reason in BAD])
def test_a_bad_file_is_refused_at_its_line(tmp_path: Path, text: str, line: int, key: str, reason: str) -> None:
    error = refusal(tmp_path, text)
    assert (error.line, error.key) == (line, key)
    assert reason in error.reason
    assert str(error) == f"{tmp_path / 'holdfast.yaml'}:{line}: {key}: {error.reason}"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.yaml"
    path.write_bytes(b"max_msgs: 1\nsignal: \xff\n")
    with pytest.raises(InvalidConfig, match=r":2: \(file\): is not UTF-8 text"):
        read(path)
    path.write_bytes(b"signal: \x07\n")
    with pytest.raises(InvalidConfig, match="has characters that YAML does not allow"):
        read(path)
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidConfig, match="at most 1048576 are allowed"):
        read(path)


@pytest.mark.parametrize(
    "text",
    [
        "auth: {users: {a: '%s'}}\n",
        "auth: {users: {a: {password: '%s'}}}\n",
        "auth: {users: {a: {password_hash: '%s'}}}\n",
        "auth: {users: {a: {password_hash: 'scrypt:14:8:1:%s:x'}}}\n",
        "auth: {users: {a: {password: 1, other: '%s'}}}\n",
        "auth: {users: '%s'}\n",
        "auth:\n  users: {a: {password: '%s'\n",
        "auth: {users: {a: ['%s']}}\n",
    ],
)
def test_a_password_in_the_file_never_comes_back(tmp_path: Path, text: str) -> None:
    error = refusal(tmp_path, text % SECRET)
    assert SECRET not in str(error)
    assert SECRET not in repr(error)


@pytest.mark.parametrize(
    "text",
    [
        "max_msgs: ${PASSWORD}\n",
        "wal.flush: ${PASSWORD}\n",
        "server: {role: '${PASSWORD}'}\n",
        "verify_crc: ${PASSWORD}\n",
        "access: ${PASSWORD}\n",
        "access: [{principal: a, allow: '${PASSWORD}'}]\n",
        "limits: {a: {connections: '${PASSWORD}'}}\n",
        "auth: {users: {a: {password_hash: '${PASSWORD}'}}}\n",
        "auth: {users: '${PASSWORD}'}\n",
        "ingest: {origins: ['${PASSWORD}']}\n",
    ],
)
def test_a_value_from_the_environment_never_comes_back(tmp_path: Path, text: str) -> None:
    assert SECRET not in str(refusal(tmp_path, text, PASSWORD=SECRET))


def test_a_long_password_is_refused_without_being_told(tmp_path: Path) -> None:
    error = refusal(tmp_path, "auth: {users: {a: {password: '${P}'}}}", P=SECRET * 100)
    assert error.reason == "a password has 1 to 1024 characters"


def test_settings_kept_in_memory_hide_the_password(tmp_path: Path) -> None:
    found = read(write(tmp_path, "auth: {users: {a: {password: '${P}'}}}"), environ={"P": SECRET})
    assert SECRET not in repr(found)


@given(st.binary(max_size=200) | st.text("ab:{}[]-#&*!|>%@`'\"\n ,?$0", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        document = read_yaml(Path("x.yaml"), data, {})
    except InvalidConfig as refused:
        error = refused
    else:
        assert set(document.values) <= set(document.lines)
        return
    assert error.file == Path("x.yaml")
