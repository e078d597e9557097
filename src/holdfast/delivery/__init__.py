"""Delivery over the network: durable and ephemeral subscriptions, groups, redelivery, dead letters.

| file | purpose |
|---|---|
| consumer.py | one consumer's connection: the shell around the session of `wire/` |
| desk.py | all feeds of a server: joining, threads, news from the store |
| feed.py | what one subscriber or group gets of one channel: its turns and its answers |
| redelivery.py | who holds which messages until when, and which come again; pure |
| groups.py | who gets the next messages: room, credit, priority, turns; pure |
| spans.py | a map from ranges of seqs to values; pure |
| harvest.py | one turn: read, filter, cut, encode, off the event loop |
| pieces.py | events near the places where consumers read, shared and bounded |
| filters.py | which rows of a batch a subscription wants |
| filterparser.py | from the text of a filter to its tree; pure |
| settling.py | outcomes on their way to the store, many with one sync |
| totals.py | what delivery counts, for metrics |
| refusals.py | from errors to the codes a consumer is refused with |
"""

from __future__ import annotations

from holdfast.delivery.consumer import consume_route
from holdfast.delivery.desk import DeliveryDesk
from holdfast.server.server import Server
from holdfast.wire.consume import PATH

__all__ = ["DeliveryDesk", "attach_delivery"]


def attach_delivery(server: Server) -> DeliveryDesk:
    """Let consumers in at the server's data port. The caller closes the desk when the server has ended."""
    desk = DeliveryDesk(server.state, on_failure=server.fail)
    server.door.routes[PATH] = consume_route(desk)
    return desk
