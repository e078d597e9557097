"""Who is calling, what they may do, and how much of it (G12).

    headers, certificate ──► Gatekeeper.authenticate ──► Principal ──► require(verb, channel), take(frames, bytes),
                                    ▲                                  bind_slot(id), admit_connection()
                 token file, users, client authority
                 (watched; a revoked or expired credential ends its connections)

Nothing asks for a credential until there is a token, a user, a client authority or `auth.required`. Without rules every
authenticated principal may do everything; with the first rule nobody may do anything that no rule allows, and a rule
that denies wins. The gatekeeper writes the audit log. No credential is ever logged, audited or put into an error.

| file | purpose |
|---|---|
| gatekeeper.py | `Gatekeeper`: authenticates, watches credentials, reloads settings |
| principal.py | `Principal`, one per connection, and the account that those of one name share |
| rules.py | the decision over access rules, and the limits of a principal (pure) |
| signin.py | credentials in headers and certificates; passwords without stalling or telling too much |
| tokens.py | the token file: create, revoke, read |
| bindings.py | which principal owns a slot, and which channels it wrote to, on disk |
| quota.py | how many channels a principal may write to; what is refused does not count |
| bucket.py | the token bucket |
| audit.py | the audit log |
| tls.py | TLS contexts that can be replaced while connections live |
| exposure.py | refuses to listen for everyone without TLS and authentication |
"""

from holdfast.server.access.audit import AuditLog
from holdfast.server.access.exposure import check_exposure
from holdfast.server.access.gatekeeper import Gatekeeper, GatekeeperStatistics, PreparedAccess
from holdfast.server.access.principal import NOTHING, Claim, Principal
from holdfast.server.access.tls import ReloadableTls, ssl_context

__all__ = [
    "NOTHING",
    "AuditLog",
    "Claim",
    "Gatekeeper",
    "GatekeeperStatistics",
    "PreparedAccess",
    "Principal",
    "ReloadableTls",
    "check_exposure",
    "ssl_context",
]
