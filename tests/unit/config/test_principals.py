"""Patterns of principals, rules, limits, users and the hashes of their passwords."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.passwords import hash_password, parse_hash
from holdfast.config.principals import (
    FromEnvironment,
    PrincipalPattern,
    is_principal_name,
    read_limits,
    read_rules,
    read_users,
)
from holdfast.errors import InvalidConfig


def test_password_that_did_not_change_is_not_hashed_again(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    raw = {"app": {"password_file": str(secret)}, "web": {"password": FromEnvironment("battery", "${WEB}")}}
    first, again = read_users(raw), read_users(raw)
    assert [one.password is other.password for one, other in zip(first, again, strict=True)] == [True, True]
    secret.write_text("another horse\n")
    app, web = read_users(raw)
    assert app.password != first[0].password
    assert app.password.verify("another horse")
    assert web.password is first[1].password


@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", max_size=8))
def test_a_star_stands_for_any_characters(pattern: str, name: str) -> None:
    assert PrincipalPattern.parse(pattern).matches(name) is fnmatch.fnmatchcase(name, pattern)


def test_only_a_star_is_special_in_a_pattern() -> None:
    assert PrincipalPattern.parse("a.[b]?").matches("a.[b]?")
    assert not PrincipalPattern.parse("a.b").matches("axb")


def test_many_stars_take_no_long_time() -> None:
    assert not PrincipalPattern.parse("*a" * 63 + "*b").matches("a" * 128)


@pytest.mark.parametrize("text", ["", "x" * 129, "a\nb"])
def test_a_pattern_has_bounded_printable_text(text: str) -> None:
    with pytest.raises(ValueError, match="a principal has 1 to 128 printable characters"):
        PrincipalPattern.parse(text)


def test_narrower_patterns_come_later() -> None:
    found = read_limits({"app-1": {}, "*": {}, "app-*": {}, "a*": {}})
    assert [item.principal.text for item in found] == ["*", "a*", "app-*", "app-1"]


@pytest.mark.parametrize(
    ("name", "good"), [("app-1", True), ("a@b.example", True), ("-a", False), ("a b", False), ("anonymous", False)]
)
def test_names_of_principals_are_plain_and_not_that_of_everyone(name: str, good: bool) -> None:
    assert is_principal_name(name) is good


def test_a_rule_without_channels_means_all() -> None:
    (rule,) = read_rules([{"principal": "*", "allow": "*"}])
    assert rule.verbs == {"publish", "consume", "sync", "admin"}
    assert rule.decides("anyone", "publish", "a.b.c")
    assert rule.decides("anyone", "admin", "")


def test_the_whole_server_is_meant_by_all_channels_only() -> None:
    (rule,) = read_rules([{"principal": "a", "allow": ["admin"], "channels": ["*", "orders.>"]}])
    assert rule.decides("a", "admin", "orders.eu")
    assert not rule.decides("a", "admin", "")


def test_a_password_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("p w\r\n")
    users = read_users(
        {"a": {"password": FromEnvironment("p w", "${P}")}, "b": {"password_file": str(tmp_path / "secret")}}
    )
    assert [user.password.verify("p w") for user in users] == [True, True]


def test_the_same_password_read_again_is_the_same_user(tmp_path: Path) -> None:
    def read(password: str) -> object:
        (tmp_path / "secret").write_text(password)
        return read_users(
            {
                "a": {"password": FromEnvironment(password, "${P}")},
                "b": {"password_file": str(tmp_path / "secret")},
            }
        )

    assert read("one") == read("one")
    assert read("one") != read("two")


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"x" * 5000])
def test_a_password_file_with_no_password_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(InvalidConfig) as caught:
        read_users({"a": {"password_file": str(tmp_path / "secret")}})
    assert caught.value.key == "auth.users.a.password_file"


def test_a_hash_survives_being_written() -> None:
    made = hash_password("sesame")
    assert parse_hash(made.text) == made
    assert parse_hash(made.text).verify("sesame")
    assert not parse_hash(made.text).verify("Sesame")
    assert "sesame" not in made.text + repr(made)


def test_the_same_password_never_has_the_same_hash() -> None:
    assert hash_password("x").text != hash_password("x").text


def test_a_hash_is_what_rfc_7914_says() -> None:
    # section 12: scrypt("pleaseletmein", "SodiumChloride", n=16384, r=8, p=1), its first 32 bytes
    known = parse_hash("scrypt:14:8:1:U29kaXVtQ2hsb3JpZGU=:cCO9yzr9c0hGHAbNgf046/2o+7qQT44+qbVD9lRdofI=")
    assert known.digest.hex().startswith("7023bdcb3afd7348461c06cd81fd38eb")
    assert known.verify("pleaseletmein")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "scrypt:14:8:1:AAAAAAAAAAAAAAAA",
        "bcrypt:14:8:1:AAAA:AAAA",
        "scrypt:a:8:1:AAAA:AAAA",
        "scrypt:30:8:1:AAAAAAAAAAAAAAAA:AAAA",
        "scrypt:14:999999999999:1:AAAAAAAAAAAAAAAA:AAAA",
        "scrypt:14:8:0:AAAAAAAAAAAAAAAA:AAAA",
        "scrypt:14:8:1:????:AAAA",
        "scrypt:14:8:1:AAAA:AAAA",
    ],
)
def test_a_text_that_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not scrypt|has parameters|has a salt"):
        parse_hash(text)
