"""The sync wire: what offline-first clients send and are sent, in every dialect. Nothing here does I/O.

| file | purpose |
|---|---|
| jsontext.py | JSON from strangers: strict, kept as sent, comparable |
| messages.py | what sessions and the log tell each other, whatever the dialect |
| dialect.py | what all dialects share: the envelope, items, names |
| snake.py | the protocol as it is written down, and `insieme` up to 1.2 |
| camel.py | `insieme` from 1.3 on |
| session.py | one connection: messages and news in, effects out |
"""

from holdfast.wire.sync.dialect import Greeting
from holdfast.wire.sync.messages import (
    PROJECT_PREFIX,
    Close,
    Code,
    Committed,
    Effect,
    Identity,
    Item,
    NotProcessed,
    Outcome,
    Page,
    Read,
    ReadKind,
    Refusal,
    Send,
    Snapshot,
    Submit,
)
from holdfast.wire.sync.session import DIALECTS, AuthFailed, Mode, Phase, Session, Terms

__all__ = [
    "DIALECTS",
    "PROJECT_PREFIX",
    "AuthFailed",
    "Close",
    "Code",
    "Committed",
    "Effect",
    "Greeting",
    "Identity",
    "Item",
    "Mode",
    "NotProcessed",
    "Outcome",
    "Page",
    "Phase",
    "Read",
    "ReadKind",
    "Refusal",
    "Send",
    "Session",
    "Snapshot",
    "Submit",
    "Terms",
]
