"""What delivery counts, for `/metrics`. The number of series does not grow with subscriptions or channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.delivery.feed import FeedStatistics
from holdfast.server.state import Figure

KINDS = ("ephemeral", "durable", "group", "durable_group")


@dataclass(slots=True)
class Totals:
    """Messages since the server started."""

    delivered: int = 0
    redelivered: int = 0
    """Those of `delivered` that were not the first attempt."""
    dead: int = 0
    """Put into dead-letter channels: rejected, or their attempts were used up."""
    stale: int = 0
    """Named by answers of somebody who did not hold them."""


def kind_of(feed: FeedStatistics) -> str:
    """One of `KINDS`."""
    if feed.group:
        return "durable_group" if feed.durable else "group"
    return "durable" if feed.durable else "ephemeral"


def figures_of(feeds: Sequence[FeedStatistics], totals: Totals) -> list[Figure]:
    """All figures; each kind of subscription is there, also with none."""
    members = dict.fromkeys(KINDS, 0)
    for feed in feeds:
        members[kind_of(feed)] += feed.members
    held, waiting = sum(feed.held for feed in feeds), sum(feed.waiting for feed in feeds)
    stalled = sum(feed.stalled and feed.members > 0 for feed in feeds)
    text = "Subscriptions that are open, by kind."
    return [
        *(Figure("delivery_subscriptions", text, members[kind], label=("kind", kind)) for kind in KINDS),
        Figure("delivery_inflight_messages", "Delivered and not answered yet.", held),
        Figure("delivery_waiting_messages", "To be delivered again, now or later.", waiting),
        Figure("delivery_stalled_feeds", "Subscribers and groups with messages and no room for one.", stalled),
        Figure("delivery_messages", "Messages that were delivered.", totals.delivered, is_counter=True),
        Figure("delivery_redelivered", "Those that came again.", totals.redelivered, is_counter=True),
        Figure("delivery_dead_letters", "Rejected, or attempts used up.", totals.dead, is_counter=True),
        Figure("delivery_stale_answers", "Answered by who did not hold them.", totals.stale, is_counter=True),
    ]
