"""Every credential of the matrix, good and bad: headers, and certificates of an authority that is made for the run."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import trustme

from holdfast.clock import NS_PER_S, SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.server.access.tokens import TokenFile
from tests.security.oracle import CERTIFIED, PRINCIPALS, SIGNED_IN, STRANGERS

WRONG_PASSWORDS = ("wrong password", "unknown user")
"""Apart from the other strangers: a server tries only a few of them a second, so they are shown only now and then."""
FOREIGN_CERTIFICATES = ("certificate of another authority", "expired certificate")
"""Whoever shows one does not get through the handshake, so there is no answer to compare."""
_LONG_AGO = datetime(2021, 1, 1, tzinfo=UTC)
_PASSWORD = "open sesame, said the clerk"


class Authority:
    """Signs the server's certificate, those of its clients, and one that has expired; another one signs its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ca, self._other = trustme.CA(), trustme.CA()
        self.pem, self.cert, self.key = (directory / f"{name}.pem" for name in ("authority", "server", "server-key"))
        directory.mkdir()
        self._ca.cert_pem.write_to_path(self.pem)
        served = self._ca.issue_cert("localhost")
        served.cert_chain_pems[0].write_to_path(self.cert)
        served.private_key_pem.write_to_path(self.key)

    def as_yaml(self) -> str:
        return f"tls: {{cert: {self.cert}, key: {self.key}, client_ca: {self.pem}}}\n"

    def client(self, name: str = "") -> ssl.SSLContext:
        """Somebody who trusts the server and shows the certificate of that name, or none."""
        return self._shows(self._ca.issue_cert(common_name=name) if name else None)

    def foreign(self, kind: str) -> ssl.SSLContext:
        """Somebody who claims to be the one who may do everything."""
        if kind == "expired certificate":
            return self._shows(self._ca.issue_cert(common_name="boss", not_after=_LONG_AGO))
        return self._shows(self._other.issue_cert(common_name="boss"))

    def _shows(self, made: trustme.LeafCert | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.pem))
        if made is not None:
            made.configure_cert(context)
        return context


@dataclass
class Credentials:
    """What each of them shows."""

    authority: Authority
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)
    """Of those who show a certificate."""
    secrets: list[str] = field(default_factory=list)

    def users_yaml(self) -> str:
        """The users, in the words of the configuration file; their password is in a file beside it."""
        file = self.authority.directory / "password"
        file.write_text(_PASSWORD, encoding="utf-8")
        file.chmod(0o600)
        return "auth: {users: {" + ", ".join(f"{name}: {{password_file: {file}}}" for name in SIGNED_IN) + "}}\n"


def make_credentials(directory: Path, data: Path) -> Credentials:
    """All of them, the tokens written for a server that starts on `data`."""
    made = Credentials(Authority(directory))
    clock, file = SystemClock(), TokenFile(LocalFilesystem(), data / "access" / "tokens.json")
    now_ns = clock.wall_ns()
    for name in PRINCIPALS:
        if name not in {*SIGNED_IN, *CERTIFIED}:
            made.secrets.append(file.create(name, now_ns=now_ns)[1])
            made.headers[name] = {"Authorization": f"Bearer {made.secrets[-1]}"}
    for name in ("expired", "revoked"):  # of someone who may do everything, had it not ended
        ends_ns = now_ns - NS_PER_S if name == "expired" else 0
        token, secret = file.create("boss", now_ns=now_ns - 3600 * NS_PER_S, expires_at_ns=ends_ns)
        made.secrets.append(secret)
        made.headers[name] = {"Authorization": f"Bearer {secret}"}
        if name == "revoked":
            file.revoke(token.id, now_ns=now_ns)
    boss = made.secrets[0]
    made.headers |= dict(_bad_headers(boss)) | {name: _basic(name, _PASSWORD) for name in SIGNED_IN}
    made.headers |= {"wrong password": _basic(SIGNED_IN[0], "open, wheat"), "unknown user": _basic("boss", _PASSWORD)}
    made.secrets += [_PASSWORD, *(made.headers[name]["Authorization"].removeprefix("Basic ") for name in SIGNED_IN)]
    made.headers |= {name: {} for name in CERTIFIED}
    made.contexts = {name: made.authority.client(name) for name in CERTIFIED}
    made.contexts["wrong token beside a certificate"] = made.authority.client("boss")
    assert set(made.headers) == {*PRINCIPALS, *STRANGERS, *WRONG_PASSWORDS}
    return made


def _basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def _bad_headers(secret: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Shown by nobody we know; `secret` is a good one of somebody else."""
    wrong = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    yield "none", {}
    yield "wrong", {"Authorization": f"Bearer {wrong}"}
    yield "wrong token beside a certificate", {"Authorization": f"Bearer {wrong}"}
    yield "empty", {"Authorization": ""}
    yield "malformed", {"Authorization": "Basic " + base64.b64encode(b"no colon").decode()}
    yield "foreign scheme", {"Authorization": f"Digest {secret}"}
    yield "newline in it", {"Authorization": f"Bearer x\tforged: {secret}"}
