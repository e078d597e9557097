"""The settings of a server: checked when made, whoever makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import SERVER_SETTINGS, SETTINGS, Kind, ServerConfig, Setting, settings_markdown
from holdfast.config.file import STORE_SECTIONS, ConfigFile
from holdfast.config.passwords import PasswordHash
from holdfast.config.principals import LIMITS_MAX, PrincipalLimits, PrincipalPattern, User
from holdfast.config.server import SERVER_SECTIONS, is_loopback, parse_address
from holdfast.config.table import StoreConfig
from holdfast.errors import InvalidConfig


def refusal(mapping: Any) -> InvalidConfig:
    """How a mapping is refused."""
    with pytest.raises(InvalidConfig) as caught:
        ServerConfig.from_mapping(mapping)
    return caught.value


@pytest.mark.parametrize("row", SERVER_SETTINGS, ids=lambda row: row.key)
def test_every_server_setting_says_its_range_and_why(row: Setting) -> None:
    assert row.allowed_text
    assert row.why
    assert f"| `{row.key}` |" in settings_markdown()


def test_server_and_store_share_no_section() -> None:
    assert not SERVER_SECTIONS & STORE_SECTIONS
    assert len({row.key for row in (*SETTINGS, *SERVER_SETTINGS)}) == len(SETTINGS) + len(SERVER_SETTINGS)


@pytest.mark.parametrize(
    "row", [row for row in SERVER_SETTINGS if row.kind in (Kind.SIZE, Kind.TIME, Kind.COUNT)], ids=lambda row: row.key
)
def test_a_number_out_of_range_names_its_key(row: Setting) -> None:
    name = next(name for name, found in ServerConfig.rows().items() if found is row)
    for value in (row.low - 1, row.high + 1):
        if value == 0 and row.zero:
            continue
        with pytest.raises(InvalidConfig) as caught:
            ServerConfig(**{name: value})  # type: ignore[arg-type]
        assert caught.value.key == row.key


def test_flat_and_nested_keys_mean_the_same() -> None:
    flat = {"server.listen": "localhost:1", "auth.required": "yes", "auth.users": {}, "ingest.max_connections": 5}
    nested = {"server": {"listen": "localhost:1"}, "auth": {"required": True, "users": {}}, "ingest.max_connections": 5}
    assert ServerConfig.from_mapping(flat) == ServerConfig.from_mapping(nested)


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9000", ("127.0.0.1", 9000)), ("[::1]:0", ("::1", 0)), ("host.example:65535", ("host.example", 65535))],
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, key="k") == address


@pytest.mark.parametrize("text", ["", ":", "a", "a:", ":1", "a:b", "a:-1", "a:65536", "::1:5", "a:¹", "a:99999999999"])
def test_anything_else_is_no_address(text: str) -> None:
    assert refusal({"server.listen": text}).key == "server.listen"


def test_port_with_more_digits_than_python_reads_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="host:port"):
        parse_address(f"a:{'9' * 5_000}", key="k")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.1", False),
        ("myhost", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_only_loopback_addresses_are_private(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_token_file_is_in_the_data_directory_by_default() -> None:
    assert ServerConfig(data="d").tokens_path == Path("d/access/tokens.json")
    assert ServerConfig(data="d", auth_tokens="t.json").tokens_path == Path("t.json")


def test_a_program_cannot_make_what_a_file_may_not_say() -> None:
    user = User("a", PasswordHash(1, 1, 1, b"", b""))
    with pytest.raises(InvalidConfig, match="has a name twice"):
        ServerConfig(users=(user, user))
    with pytest.raises(InvalidConfig, match=f"at most {LIMITS_MAX} are allowed"):
        ServerConfig(limits=(PrincipalLimits(PrincipalPattern("*"), ()),) * (LIMITS_MAX + 1))
    with pytest.raises(InvalidConfig, match="has an entry that is not a text"):
        ServerConfig(ingest_origins=(5,))  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="must be at most frame"):
        ConfigFile(ServerConfig(), StoreConfig(frame_bytes_max=1 << 20))
