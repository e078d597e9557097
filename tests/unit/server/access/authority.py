"""Certificates made for one test."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from holdfast.config.server import ServerConfig


@dataclass
class Authority:
    """A certificate authority whose files are in a directory."""

    directory: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self.pem = self.directory / f"{self.name}.pem"
        self._ca.cert_pem.write_to_path(self.pem)

    def issue(self, name: str, *, common_name: str | None = None) -> tuple[Path, Path]:
        """A certificate with its key."""
        made = self._ca.issue_cert(name, common_name=common_name)
        cert, key = (self.directory / f"{self.name}-{name}.{kind}" for kind in ("crt", "key"))
        cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return cert, key

    def client(self, pair: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client that trusts this authority and shows that certificate."""
        context = ssl.create_default_context(cafile=str(self.pem))
        if pair is not None:
            context.load_cert_chain(*pair)
        return context


def settings(pair: tuple[Path, Path], **more: str) -> ServerConfig:
    """A server's settings with that certificate."""
    return ServerConfig(tls_cert=str(pair[0]), tls_key=str(pair[1]), **more)  # type: ignore[arg-type]
