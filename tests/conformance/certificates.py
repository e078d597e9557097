"""A certificate authority made for one test, with the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OPENSSL = shutil.which("openssl")


@dataclass(frozen=True)
class Certificates:
    """Files of an authority and of a server it vouches for."""

    authority: Path
    cert: Path
    key: Path


def make_certificates(folder: Path, *, name: str = "localhost") -> Certificates:
    """An authority, and a server's certificate for `name` and 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    cert, key, request, extensions = (folder / f"server.{end}" for end in ("pem", "key", "csr", "ext"))
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _run(
        "req", "-x509", *curve, "-keyout", authority_key, "-out", authority, "-days", "2", "-subj", "/CN=test authority"
    )
    _run("req", *curve, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    extensions.write_text(
        f"subjectAltName=DNS:{name},IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n"
    )
    signing = ["-CA", authority, "-CAkey", authority_key, "-CAcreateserial", "-days", "2", "-extfile", extensions]
    _run("x509", "-req", "-in", request, *signing, "-out", cert)
    key.chmod(0o600)
    return Certificates(authority, cert, key)


def make_client_certificate(folder: Path, *, name: str) -> tuple[Path, Path]:
    """A client's certificate and key, from the authority that is in `folder`."""
    cert, key, request, extensions = (folder / f"client.{end}" for end in ("pem", "key", "csr", "ext"))
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    _run("req", *curve, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    extensions.write_text(f"subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n")
    signing = ["-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "2"]
    _run("x509", "-req", "-in", request, *signing, "-extfile", extensions, "-out", cert)
    return cert, key


def _run(*arguments: object) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *map(str, arguments)], check=True, capture_output=True)
