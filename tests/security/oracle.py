"""Who may do what, worked out a second time from the rules of docs/reference/access.md, without the server's code.

A case is a door, a call, a credential and a channel. The answer is one of four words:

    done       the server does it
    refused    401: nobody is known by this credential
    forbidden  403: a known caller without the right
    hidden     404: what the caller may not see looks like what is not there
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CHANNELS = ("plant.one", "plant.frozen", "office.mail", "sync")
RESERVED = {"sync", "sync.snapshots"}
"""Only the sync protocol writes here, whoever asks."""
VERBS = ("publish", "consume", "sync", "admin")


@dataclass(frozen=True)
class Rule:
    """One line of `access` in a configuration file."""

    principal: str
    verbs: tuple[str, ...]
    channels: tuple[str, ...] = (">",)
    allow: bool = True

    def as_yaml(self) -> str:
        what = "allow" if self.allow else "deny"
        verbs, channels = (
            ", ".join(f'"{verb}"' for verb in self.verbs),
            ", ".join(f'"{name}"' for name in self.channels),
        )
        return f'  - {{principal: "{self.principal}", {what}: [{verbs}], channels: [{channels}]}}'


RULES = (
    Rule("boss", ("*",)),
    Rule("writer-*", ("publish",), ("plant.>",)),
    Rule("reader", ("consume",), ("plant.*",)),
    Rule("syncer", ("sync",), ("sync",)),
    Rule("exporter", ("publish",), ("otlp.logs",)),
    Rule("keeper", ("admin",)),
    Rule("plant-keeper", ("admin",), ("plant.one",)),
    Rule("elsewhere", ("publish", "consume", "sync", "admin"), ("office.>",)),
    Rule("denied", ("*",)),
    Rule("denied", ("*",), ("plant.one", "sync"), allow=False),
    Rule("clerk", ("publish", "consume"), ("office.>", "otlp.traces")),
    Rule("plc-7", ("publish", "consume"), ("plant.>",)),
    Rule("plc-7", ("sync",), ("sync",)),
    Rule("*", ("publish",), ("plant.frozen",), allow=False),
)
PRINCIPALS = (
    "boss",
    "writer-1",
    "reader",
    "syncer",
    "exporter",
    "keeper",
    "plant-keeper",
    "elsewhere",
    "denied",
    "nobody",
    "clerk",
    "plc-7",
)
"""Each shows a token, but for the two below."""
SIGNED_IN = ("clerk",)
"""Show a name and a password."""
CERTIFIED = ("plc-7",)
"""Show a client certificate, which only the data port and the admin port look at."""
STRANGERS = (
    "none",
    "wrong",
    "expired",
    "revoked",
    "empty",
    "malformed",
    "foreign scheme",
    "newline in it",
    "wrong token beside a certificate",
)
"""Credentials that belong to nobody: each is a name of what is wrong. A header is judged before a certificate."""


def may(principal: str, verb: str, channel: str = "") -> bool:
    """Whether a rule allows it and none denies it; the empty channel is the whole server."""
    if verb == "publish" and channel in RESERVED:
        return False
    said = [
        rule.allow
        for rule in RULES
        if re.fullmatch(re.escape(rule.principal).replace(r"\*", ".*"), principal)
        and ("*" in rule.verbs or verb in rule.verbs)
        and any(_covers(pattern, channel) for pattern in rule.channels)
    ]
    return bool(said) and all(said)


def sees(principal: str, channel: str) -> bool:
    """Whether a channel is there for it."""
    return may(principal, "consume", channel) or may(principal, "admin", channel)


def _covers(pattern: str, channel: str) -> bool:
    """`*` is one token, `>` is one or more; only `>` alone means the whole server."""
    if pattern == ">":
        return True
    if not channel:
        return False
    tokens = pattern.split(".")
    inner = [r"[^.]+" if token == "*" else r".+" if token == ">" else re.escape(token) for token in tokens]
    return re.fullmatch(r"\.".join(inner), channel) is not None


def expected(credential: str, needs: str, channel: str) -> str:
    """The answer to a call that needs a right: a verb of the channel, or one of six other words.

    `visible` is seeing the channel, `server` is looking after the server, `known` and `nothing` are about the caller
    alone. `listed` and `followed` are about a subscriber of the channel: it is there for whoever sees the channel or
    looks after the server, and changed by those of them who may consume the channel.
    """
    if needs == "nothing":
        return "done"
    if credential not in PRINCIPALS:
        return "refused"
    is_there = sees(credential, channel) or (needs != "visible" and may(credential, "admin"))
    if needs in ("visible", "listed", "followed") and not is_there:
        return "hidden"
    if needs == "server":
        return "done" if may(credential, "admin") else "forbidden"
    verb = "consume" if needs == "followed" else needs
    return "done" if needs in ("known", "visible", "listed") or may(credential, verb, channel) else "forbidden"
