"""Keys that other clients' connect strings have and a sender refuses, each with the reason it gives.

One string often serves several programs, so an error that says where a key belongs is worth more than "unknown".
"""

from __future__ import annotations

from collections.abc import Mapping

_READING = "concerns reading, not sending; a sender does not take it"
_POOLING = "concerns pools of connections; a sender has one connection and is safe to share between threads"

FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "target",
            "zone",
            "failover",
            "failover_max_attempts",
            "failover_backoff_initial_ms",
            "failover_backoff_max_ms",
            "failover_max_duration_ms",
            "compression",
            "compression_level",
            "initial_credit",
            "max_batch_rows",
            "buffer_pool_size",
            "query_close_timeout_ms",
            "query_timeout_ms",
        ),
        _READING,
    ),
    **dict.fromkeys(
        (
            "sender_pool_min",
            "sender_pool_max",
            "query_pool_min",
            "query_pool_max",
            "acquire_timeout_ms",
            "idle_timeout_ms",
            "max_lifetime_ms",
            "housekeeper_interval_ms",
            "pool_reap",
        ),
        _POOLING,
    ),
    "lazy_connect": "concerns pools of connections; to start without a server use initial_connect_retry=async",
    "sf_max_bytes": "is called sf_max_segment_bytes",
    "in_flight_window": "is no longer a key: frames in flight are bounded by sf_max_total_bytes",
    "max_in_flight": "is no longer a key: frames in flight are bounded by sf_max_total_bytes",
    "max_schemas_per_connection": "is no longer a key: frames carry their schemas",
    "gorilla": "is no longer a key: timestamps are sent as they are",
    "transaction": "is not supported: one frame is always stored as a whole, several frames are not one transaction",
    "qwp_ws_progress": "is not supported: a sender always works in the background",
    "protocol_version": "concerns other protocols; the version is negotiated when connecting",
}
