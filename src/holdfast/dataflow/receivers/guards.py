"""Who may send: the judgement of a request by its headers, before its body is read.

A receiver of a graph has one token for all. Behind a server the callers, their rights and their rates are the server's.
Whoever gets a `Sending` settles its claim, with what becomes of the request: what is refused uses up no channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import TypeAlias

from holdfast.errors import AccessRefused, LimitReached, RetryLater, Unauthenticated
from holdfast.model.frame import Guid, MakeGuid
from holdfast.server.access import NOTHING, Claim, Gatekeeper
from holdfast.wire.otlp.answers import Answer, Refusal
from holdfast.wire.otlp.signals import Signal

RETRY_AFTER_S = 1.0
"""When a caller that tried too many passwords may come again."""


@dataclass(frozen=True, slots=True)
class Sending:
    """A request that its caller may send."""

    guid: MakeGuid = Guid
    """What makes GUIDs for this caller."""
    claim: Claim = NOTHING
    """Its channel, until it is known whether the request is stored."""


ANYBODY = Sending()
"""Of a receiver that does not tell callers apart."""
Guard: TypeAlias = Callable[[Mapping[str, str], Signal], Awaitable[Answer | Sending]]
"""From the headers, by lower-case names, and the signal to a refusal, or to what the caller may send."""


def by_token(token: str) -> Guard:
    """Whoever shows the token; everyone without one."""
    expected = f"Bearer {token}".encode()

    async def judge(headers: Mapping[str, str], _signal: Signal) -> Answer | Sending:
        if token and not compare_digest(str(headers.get("authorization", "")).encode(errors="surrogatepass"), expected):
            return Answer(Refusal.UNAUTHENTICATED, "the token is missing or wrong")
        return ANYBODY

    return judge


def by_gatekeeper(gatekeeper: Gatekeeper, channels: Mapping[Signal, str]) -> Guard:
    """Whoever may publish to the channel of the signal."""

    async def judge(headers: Mapping[str, str], signal: Signal) -> Answer | Sending:
        try:
            if gatekeeper.is_quick(headers):
                principal = gatekeeper.authenticate(headers, peer="otlp")
            else:
                principal = await asyncio.to_thread(gatekeeper.authenticate, headers, peer="otlp")
            channel = (channels[signal],)
            if principal.needs_disk(channel, ()):
                claim = await asyncio.to_thread(principal.publishing, channel)
            else:
                claim = principal.publishing(channel)
        except Unauthenticated as error:
            return Answer(Refusal.UNAUTHENTICATED, str(error))
        except RetryLater as error:
            return Answer(Refusal.BUSY, str(error), retry_after_s=RETRY_AFTER_S)
        except (AccessRefused, LimitReached) as error:
            return Answer(Refusal.FORBIDDEN, str(error))
        return Sending(principal.guid, claim)

    return judge
