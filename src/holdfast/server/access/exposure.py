"""Nobody listens for the world by accident.

An address is public unless it is a loopback one. A public address needs TLS, so that credentials are not read on the
way, and authentication, so that there are any. `--insecure` accepts less; it is said at start and in `/healthz`.
"""

from __future__ import annotations

from holdfast.config.server import ServerConfig, is_loopback
from holdfast.errors import Unprotected


def check_exposure(config: ServerConfig, *, insecure: bool, auth_on: bool) -> tuple[str, ...]:
    """What is exposed, one sentence each, for a warning; raises `Unprotected` unless `insecure` accepts it."""
    missing = " and ".join(
        text
        for text, lacks in (
            ("TLS is off", not config.has_tls),
            ("nobody has to authenticate", not auth_on),
        )
        if lacks
    )
    exposed = []
    for key, text, (host, _port) in (
        ("server.listen", config.listen, config.listen_address),
        ("server.admin", config.admin, config.admin_address),
    ):
        if missing and not is_loopback(host):
            if not insecure:
                raise Unprotected(key=key, address=text, missing=missing)
            exposed.append(f"{key} {text} can be reached from other machines, and {missing}")
    return tuple(exposed)
