"""TLS contexts: version 1.2 or newer, client certificates if there is an authority, replaced while connections live.

Promise: `ReloadableTls.context` is the object that servers listen with for as long as they run; after `reload` every
new handshake uses the new certificate and the new authorities, and connections that live are not touched. A file that
is missing or wrong raises `InvalidConfig` naming its setting, and the old context stays.
"""

from __future__ import annotations

import ssl

from holdfast.config.server import ServerConfig
from holdfast.errors import InvalidConfig


def ssl_context(config: ServerConfig) -> ssl.SSLContext:
    """A context for the certificates of now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    # A session that is taken up again is not asked for its certificate again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = f"{config.tls_cert} and {config.tls_key} are not a certificate with its key: {_why(error)}"
        raise InvalidConfig(key="tls.cert", reason=reason) from None
    if config.tls_client_ca:
        try:
            context.load_verify_locations(config.tls_client_ca)
        except (OSError, ValueError) as error:
            reason = f"{config.tls_client_ca} has no authorities: {_why(error)}"
            raise InvalidConfig(key="tls.client_ca", reason=reason) from None
        required = config.tls_client_cert == "required"
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    return context


def _no_password() -> str:
    """Instead of asking on the terminal."""
    raise ValueError("the key is encrypted; give one without a passphrase, readable by the server only")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


class ReloadableTls:
    """One context for the life of a server, whose certificates change."""

    def __init__(self, config: ServerConfig) -> None:
        self.context = self._current = ssl_context(config)
        # Called in every handshake, also when the client names no host.
        self.context.sni_callback = self._choose

    def reload(self, config: ServerConfig) -> None:
        """Use the certificates and authorities of `config` from now on."""
        self.take(ssl_context(config))

    def take(self, context: ssl.SSLContext) -> None:
        """Use that context for new handshakes from now on."""
        self._current = context
        # A handshake asks for a certificate as its first context says; whom it trusts is the chosen one's.
        self.context.verify_mode = self._current.verify_mode

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if self._current is not self.context:
            connection.context = self._current
