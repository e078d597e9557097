"""Who a sync client is, and what it may: signed tokens, claims, rules."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from holdfast.config.sync import SyncConfig
from holdfast.errors import InvalidConfig, Unauthenticated
from holdfast.sync.access import ConnectionAccess, SyncAccess
from holdfast.wire.sync import AuthFailed, Greeting, Identity

NOW_MS = 1_700_000_000_000
SECRET = "a shared secret of more than thirty-two characters"
CLAIMS = {"exp": NOW_MS // 1000 + 60, "client_id": "A"}


class NoTokens:
    """A server that knows nobody."""

    def sign_in(self, token: str) -> Any:
        raise Unauthenticated(reason="the token is unknown")

    def note_failure(self, reason: str) -> None:
        pass


def access(tmp_path: Path, key: str = SECRET, algorithm: str = "HS256", **more: Any) -> ConnectionAccess:
    file = tmp_path / "key"
    file.write_text(key)
    settings = {"sync.auth": "jwt", "sync.jwt_key_file": str(file), "sync.jwt_algorithms": [algorithm], **more}
    return SyncAccess(SyncConfig.from_mapping(settings)).for_connection(NoTokens())


def pem(key: Any) -> tuple[str, str]:
    """Private and public key as text."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


def sign(claims: dict[str, Any], key: str = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, key, algorithm=algorithm)


def shown(judge: ConnectionAccess, token: str, client_id: str = "A", *, now_ms: int = NOW_MS) -> Identity:
    return judge.authenticate(Greeting(token, client_id), now_ms=now_ms)


def test_shared_secret_signs_a_client_in(tmp_path: Path) -> None:
    identity = shown(access(tmp_path), sign({**CLAIMS, "user_id": "u1", "partitions": ["team-*"]}))
    assert (identity.client_id, identity.user_id, identity.partitions) == ("A", "u1", ("team-*",))
    assert identity.expires_at_ms == NOW_MS + 60_000


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_public_keys_sign_a_client_in(tmp_path: Path, algorithm: str) -> None:
    key = rsa.generate_private_key(65537, 2048) if algorithm == "RS256" else ec.generate_private_key(ec.SECP256R1())
    private, public = pem(key)
    judge = access(tmp_path, public, algorithm)
    assert shown(judge, sign(CLAIMS, private, algorithm)).client_id == "A"
    with pytest.raises(AuthFailed):
        shown(judge, sign(CLAIMS))


@pytest.mark.parametrize(
    "claims",
    [
        {"client_id": "A"},
        {**CLAIMS, "client_id": "B"},
        {"exp": CLAIMS["exp"]},
        {**CLAIMS, "exp": NOW_MS // 1000},
        {**CLAIMS, "nbf": NOW_MS // 1000 + 1},
        {**CLAIMS, "exp": float("inf")},
        {**CLAIMS, "exp": float("nan")},
        {**CLAIMS, "exp": 1e300},
        {**CLAIMS, "exp": True},
        {**CLAIMS, "nbf": float("nan")},
        {**CLAIMS, "partitions": "P1"},
        {**CLAIMS, "partitions": [1]},
    ],
)
def test_tokens_that_do_not_hold_are_refused(tmp_path: Path, claims: dict[str, Any]) -> None:
    with pytest.raises(AuthFailed):
        shown(access(tmp_path), sign(claims))


def test_forged_and_foreign_tokens_are_refused_without_repeating_them(tmp_path: Path) -> None:
    good = sign(CLAIMS)
    unsigned = jwt.encode(CLAIMS, "", algorithm="none")
    for token in (good[:-4] + "AAAA", unsigned, sign(CLAIMS, "another secret of many, many characters"), "x", ""):
        with pytest.raises(AuthFailed) as caught:
            shown(access(tmp_path), token)
        assert not token or len(token) < 5 or token not in str(caught.value)
    with pytest.raises(AuthFailed, match="too long"):
        shown(access(tmp_path), "x" * 20_000)


def test_public_key_is_no_shared_secret(tmp_path: Path) -> None:
    _, public = pem(rsa.generate_private_key(65537, 2048))
    judge = access(tmp_path, public, "RS256")
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "HS256"}, CLAIMS)
    )
    for secret in (public, public.strip()):
        signature = hmac.digest(secret.encode(), head + b"." + body, "sha256")
        token = b".".join((head, body, base64.urlsafe_b64encode(signature).rstrip(b"="))).decode()
        with pytest.raises(AuthFailed, match="InvalidAlgorithm"):
            shown(judge, token)


def test_audience_and_issuer_are_asked_for_when_set(tmp_path: Path) -> None:
    judge = access(tmp_path, **{"sync.jwt_audience": "holdfast", "sync.jwt_issuer": "us"})
    with pytest.raises(AuthFailed):
        shown(judge, sign(CLAIMS))
    assert shown(judge, sign({**CLAIMS, "aud": "holdfast", "iss": "us"})).client_id == "A"


@pytest.mark.parametrize(("key", "algorithm"), [("short", "HS256"), ("not a key", "RS256"), ("not a key", "ES256")])
def test_key_that_cannot_be_used_stops_the_start(tmp_path: Path, key: str, algorithm: str) -> None:
    with pytest.raises(InvalidConfig, match=r"sync\.jwt_key_file"):
        access(tmp_path, key, algorithm)


def test_without_rules_everything_is_allowed_and_with_one_nothing_else(tmp_path: Path) -> None:
    identity = Identity("alice")
    assert access(tmp_path).may(identity, "write", ["P1", "project:p"])
    rules = [
        {"clients": ["alice*"], "partitions": ["team-*"], "may": ["read", "write"]},
        {"clients": ["*"], "projects": ["public"], "may": ["read"]},
    ]
    judge = access(tmp_path, SECRET, "HS256", **{"sync.access": rules})
    assert judge.may(identity, "write", ["team-1", "team-2"])
    assert not judge.may(identity, "write", ["team-1", "other"])
    assert not judge.may(Identity("bob"), "read", ["team-1"])
    assert judge.may(Identity("bob"), "read", ["project:public"])
    assert not judge.may(Identity("bob"), "write", ["project:public"])
    assert not judge.may(identity, "read", ["project:team-1"])


def test_claims_narrow_what_rules_allow(tmp_path: Path) -> None:
    judge = access(tmp_path)
    identity = Identity("alice", partitions=("team-*",), projects=())
    assert judge.may(identity, "read", ["team-1"])
    assert not judge.may(identity, "read", ["other"])
    assert not judge.may(identity, "read", ["project:p"])


def test_rules_change_for_connections_of_now(tmp_path: Path) -> None:
    shared = SyncAccess(SyncConfig.from_mapping({"sync.auth": "none"}))
    judge = shared.for_connection(NoTokens())
    assert judge.may(Identity("alice"), "read", ["P1"])
    rule = {"clients": "bob", "partitions": "*", "may": "read"}
    shared.take(SyncConfig.from_mapping({"sync": {"auth": "none", "access": [rule]}}), "")
    assert not judge.may(Identity("alice"), "read", ["P1"])


def test_server_that_refuses_a_token_is_an_authentication_failure() -> None:
    judge = SyncAccess(SyncConfig()).for_connection(NoTokens())
    with pytest.raises(AuthFailed, match="authentication failed"):
        shown(judge, "token")


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"sync.jwt_algorithms": ["HS256", "RS256"]}, "sync.jwt_algorithms"),
        ({"sync.jwt_algorithms": ["none"]}, "sync.jwt_algorithms"),
        ({"sync.auth": "jwt"}, "sync.auth"),
        ({"sync.validation": "model"}, "sync.validation"),
        ({"sync.access": "everybody"}, "sync.access"),
        ({"sync.access": [{"clients": "*", "may": ["delete"]}]}, "sync.access"),
        ({"sync.access": [{"clients": "*", "may": ["read"], "rooms": ["x"]}]}, "sync.access"),
        ({"sync.access": [{"may": ["read"]}]}, "sync.access"),
        ({"sync.unknown": 1}, "sync.unknown"),
    ],
)
def test_settings_that_do_not_hold_name_their_key(settings: dict[str, object], key: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        SyncConfig.from_mapping(settings)
    assert caught.value.key.startswith(key)


class Somebody:
    """A principal of the server, with a credential or without."""

    def __init__(self, name: str, *, is_known: bool) -> None:
        self.name, self.is_known = name, is_known

    def may(self, verb: str, channel: str = "") -> bool:
        return True


class Tokens(NoTokens):
    """A server that takes everybody for the same one."""

    def __init__(self, member: Somebody) -> None:
        self._member = member

    def sign_in(self, token: str) -> Any:
        return self._member


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("name", ["anonymous", "bob"])
def test_only_callers_without_a_credential_may_be_any_client(name: str) -> None:
    shared = SyncAccess(SyncConfig.from_mapping({"sync.auth": "server"}))
    free = shared.for_connection(Tokens(Somebody(name, is_known=False)))
    assert shown(free, "", "alice").client_id == "alice"
    bound = shared.for_connection(Tokens(Somebody(name, is_known=True)))
    assert shown(bound, "", f"{name}:phone").client_id == f"{name}:phone"
    with pytest.raises(AuthFailed, match=f"client 'alice' is not '{name}'"):
        shown(bound, "", "alice")
