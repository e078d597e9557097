"""What a sender does when a server refuses a frame: per category, chosen by `on_…_error`, with the defaults here.

The words of two generations of clients are understood: `halt` and `drop`, and `terminal`, `retriable`,
`retriable_other`.

| word | policy |
|---|---|
| `halt`, `terminal` | stop sending, keep every frame, and tell the next call of the producer |
| `drop` | copy the frame to the slot's `rejected/`, go on with the next one |
| `retriable` | connect again, after a growing pause, and send it again; what never gets through halts in the end |
| `retriable_other` | the same with the next server of the list |
| `auto` | for a category: what `on_server_error` says; there: the default of the category |

Who decides, the first that says something: the program's own resolver, which sees the refusal; the key of the
category; `on_server_error`; the default of the category.

A protocol violation and a status that this version does not know always halt: nobody can say what was refused. A
server that is not writable, or lost its symbols, says nothing about the frame: these are always retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from holdfast.errors import Category
from holdfast.telemetry import event

if TYPE_CHECKING:
    from holdfast.sender.happenings import SenderError


class Policy(Enum):
    """What to do with a refused frame."""

    HALT = "halt"
    DROP = "drop"
    RETRY = "retriable"
    RETRY_OTHER = "retriable_other"


WORDS: Mapping[str, Policy | None] = {
    "auto": None,
    "halt": Policy.HALT,
    "drop": Policy.DROP,
    "terminal": Policy.HALT,
    "retriable": Policy.RETRY,
    "retriable_other": Policy.RETRY_OTHER,
}
"""What may stand in `on_…_error`; None leaves the choice to the next rule."""

DEFAULTS: Mapping[Category, Policy] = {
    Category.SCHEMA_MISMATCH: Policy.DROP,  # sending it again will not help
    Category.WRITE_ERROR: Policy.DROP,
    Category.PARSE_ERROR: Policy.HALT,  # most likely our own mistake; keep the frames to find it
    Category.INTERNAL_ERROR: Policy.HALT,
    Category.SECURITY_ERROR: Policy.HALT,
    Category.PROTOCOL_VIOLATION: Policy.HALT,
    Category.UNKNOWN: Policy.HALT,
    Category.NOT_WRITABLE: Policy.RETRY_OTHER,
    Category.DICTIONARY_GAP: Policy.RETRY,
}

KEYS: Mapping[Category, str] = {
    Category.SCHEMA_MISMATCH: "on_schema_error",
    Category.PARSE_ERROR: "on_parse_error",
    Category.INTERNAL_ERROR: "on_internal_error",
    Category.SECURITY_ERROR: "on_security_error",
    Category.WRITE_ERROR: "on_write_error",
}
"""The key of each category that has one; the others are fixed."""


def choose(category: Category, words: Mapping[str, str]) -> Policy:
    """The policy for a category, given the values of the `on_…_error` keys."""
    if category not in KEYS:
        return DEFAULTS[category]
    return WORDS[words[KEYS[category]]] or WORDS[words["on_server_error"]] or DEFAULTS[category]


ErrorPolicy: TypeAlias = "Callable[[SenderError], Policy | str | None]"
"""A program's own resolver: for one refusal a policy, or its word in `on_…_error`, or None to leave it to the keys. The
error's `policy` is what they say. Called on the I/O thread, so it must not wait. Not asked where a policy is fixed."""


def resolving(resolver: ErrorPolicy) -> Callable[[SenderError], Policy]:
    """The resolver as one that always answers: what it raises, or no policy is, is logged and counts as None."""

    def resolve(error: SenderError) -> Policy:
        try:
            said = resolver(error)
            chosen = WORDS[said] if isinstance(said, str) else said
            if chosen is not None and not isinstance(chosen, Policy):
                raise TypeError(f"{chosen!r} is no policy")
        except Exception as failure:  # whatever a program does must not end the sender
            event("sender.resolver.fail", level=logging.ERROR, error=repr(failure), policy=error.policy.value)
            return error.policy
        return error.policy if chosen is None else chosen

    return resolve
