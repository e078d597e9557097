"""Who may send: the judgement of a request by its headers, before its body is read.

A receiver of a graph has one token for all. Behind a server the callers, their rights and their rates are the server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from hmac import compare_digest
from typing import TypeAlias

from holdfast.errors import AccessRefused, LimitReached, RetryLater, Unauthenticated
from holdfast.model.frame import Guid, MakeGuid
from holdfast.server.access import Gatekeeper
from holdfast.wire.otlp.answers import Answer, Refusal
from holdfast.wire.otlp.signals import Signal

Guard: TypeAlias = Callable[[Mapping[str, str], Signal], Awaitable[Answer | MakeGuid]]
"""From the headers, by lower-case names, and the signal to a refusal, or to what makes GUIDs for this caller."""
RETRY_AFTER_S = 1.0
"""When a caller that tried too many passwords may come again."""


def by_token(token: str) -> Guard:
    """Whoever shows the token; everyone without one."""
    expected = f"Bearer {token}".encode()

    async def judge(headers: Mapping[str, str], _signal: Signal) -> Answer | MakeGuid:
        if token and not compare_digest(str(headers.get("authorization", "")).encode(errors="surrogatepass"), expected):
            return Answer(Refusal.UNAUTHENTICATED, "the token is missing or wrong")
        return Guid

    return judge


def by_gatekeeper(gatekeeper: Gatekeeper, channels: Mapping[Signal, str]) -> Guard:
    """Whoever may publish to the channel of the signal."""

    async def judge(headers: Mapping[str, str], signal: Signal) -> Answer | MakeGuid:
        try:
            if gatekeeper.is_quick(headers):
                principal = gatekeeper.authenticate(headers, peer="otlp")
            else:
                principal = await asyncio.to_thread(gatekeeper.authenticate, headers, peer="otlp")
            if principal.needs_disk((channels[signal],), ()):
                await asyncio.to_thread(principal.require, "publish", channels[signal])
            else:
                principal.require("publish", channels[signal])
        except Unauthenticated as error:
            return Answer(Refusal.UNAUTHENTICATED, str(error))
        except RetryLater as error:
            return Answer(Refusal.BUSY, str(error), retry_after_s=RETRY_AFTER_S)
        except (AccessRefused, LimitReached) as error:
            return Answer(Refusal.FORBIDDEN, str(error))
        return principal.guid

    return judge
