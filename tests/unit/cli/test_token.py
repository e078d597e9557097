"""What `holdfast token` does to the token file, and what it prints."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.clock import SystemClock
from holdfast.config.passwords import parse_hash
from holdfast.config.server import ServerConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.server.access import AuditLog, Gatekeeper


def call(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["token", *map(str, arguments)], input=stdin)


def call_json(*arguments: object) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["result"]


def name_of(data: Path, secret: str) -> str:
    """The principal that a server would see."""
    gatekeeper = Gatekeeper(
        ServerConfig(data=str(data)),
        SystemClock(),
        LocalFilesystem(),
        audit=AuditLog(lambda _line: None, SystemClock()),
    )
    return gatekeeper.authenticate({"authorization": f"Bearer {secret}"}).name


def test_a_token_is_printed_once_and_works(tmp_path: Path) -> None:
    made = call("create", "app-1", "--expires", "30d", "--data", tmp_path)
    assert made.exit_code == 0
    secret = made.stdout.strip()
    assert secret.startswith("hf_")
    assert secret not in made.stderr
    assert "It is not shown again." in made.stderr
    assert name_of(tmp_path, secret) == "app-1"
    listed = call("ls", "--data", tmp_path)
    assert "app-1" in listed.stdout
    assert secret not in listed.stdout
    path = tmp_path / "access" / "tokens.json"
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_revoked_token_is_listed_as_such(tmp_path: Path) -> None:
    first, second = (call_json("create", name, "--data", tmp_path) for name in ("a", "b"))
    assert (first["state"], first["expires_at_ns"], first["token"][:3]) == ("live", None, "hf_")
    revoked = call_json("revoke", first["id"], "--data", tmp_path)["revoked"]
    assert [item["id"] for item in revoked] == [first["id"]]
    listed = call_json("ls", "--data", tmp_path)["tokens"]
    assert [(item["name"], item["state"]) for item in listed] == [("a", "revoked"), ("b", "live")]
    assert call("revoke", "b", "--data", tmp_path).stdout == f"revoked token {second['id']} of b\n"


def test_there_may_be_no_tokens_yet(tmp_path: Path) -> None:
    assert call_json("ls", "--data", tmp_path / "none")["tokens"] == []
    assert "0 tokens" in call("ls", "--data", tmp_path / "none").stdout
    assert not (tmp_path / "none").exists()


def test_the_servers_own_file_says_where_tokens_are(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text("data: store\nauth: {tokens: secrets/t.json}\n")
    made = call_json("create", "a", "-c", config)
    assert made["file"] == str(tmp_path / "secrets" / "t.json")
    config.write_text("data: store\n")
    assert call_json("create", "a", "-c", config)["file"] == str(tmp_path / "store" / "access" / "tokens.json")
    elsewhere = call_json("create", "a", "-c", config, "--data", tmp_path / "other")  # as `serve` would be started
    assert elsewhere["file"] == str(tmp_path / "other" / "access" / "tokens.json")
    assert [token["name"] for token in call_json("ls", "-c", config, "--data", tmp_path / "other")["tokens"]] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "a b"], "token name 'a b' is not allowed"),
        (["create", "a", "--expires", "soon"], "--expires: 'soon' is not a number with one of the units"),
        (["create", "a", "--expires", "1ms"], "--expires: 1ms is outside 1s … 36500d"),
        (["create", "a", "--expires", "-5d"], "--expires: -5d is outside"),
        (["revoke", "nobody"], "there is no token 'nobody' to revoke"),
        (["ls", "-c", "nothing.yaml"], "nothing.yaml cannot be read"),
    ],
)
def test_bad_usage_exits_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = call(*arguments, "--data", tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_bad_configuration_exits_with_2_and_its_line(tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text("data: store\nserver: {lisen: a}\n")
    result = call("ls", "-c", config)
    assert result.exit_code == 2
    assert f"{config}:2: server.lisen: unknown setting; did you mean server.listen?" in result.stderr


def test_a_damaged_file_exits_with_3(tmp_path: Path) -> None:
    call("create", "a", "--data", tmp_path)
    path = tmp_path / "access" / "tokens.json"
    path.write_bytes(path.read_bytes()[:-20])
    for arguments in (["ls"], ["create", "b"], ["revoke", "a"]):
        result = call(*arguments, "--data", tmp_path)
        assert result.exit_code == 3
        assert "tokens.json is damaged at byte" in result.stderr


def test_a_password_is_hashed_and_not_shown() -> None:
    result = call("hash-password", stdin="open sesame\n")
    assert result.exit_code == 0
    assert parse_hash(result.stdout.strip()).verify("open sesame")
    assert "sesame" not in result.output
    assert call("hash-password", stdin="\n").exit_code == 2
