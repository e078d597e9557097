"""Positions as the user gives them, turned into seqs of the channels that exist now."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from datetime import datetime

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from holdfast.clock import wall_ns_of
from holdfast.consumer.adminclient import AdminClient
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest
from holdfast.model.evolution import merge_schemas
from holdfast.spark.access import ChannelFacts, StoreAccess
from holdfast.spark.admission import Offsets, canonical
from holdfast.spark.columns import spark_schema
from holdfast.spark.embedded import EmbeddedAccess
from holdfast.spark.many import ManyServers, ManySubscribers, Subscriber
from holdfast.spark.options import Place, Positions, SourceOptions
from holdfast.spark.remote import RemoteAccess, RemoteSubscriber
from holdfast.spark.tiered import TierAccess, TieredAccess
from holdfast.spark.waiting import ROUND_S, PatientAccess, PatientSubscriber
from holdfast.store.segments.runs import SYSTEM_TYPES
from holdfast.tier.opening import open_objects

INTERACTIVE_PATIENCE_S = 5.0
"""Somebody waits for the answer, and the address may be wrong."""
RUN_PATIENCE_S = 600.0
"""How long a run that ends by itself looks for its end; a restart with a long recovery fits in."""
STREAM_PATIENCE_S = math.inf
"""A query that ends because its server was away for long does not come back by itself."""


def open_access(options: SourceOptions, *, patience_s: float, lenient: bool = False) -> StoreAccess:
    """The store that the options name. `lenient`: of several servers those that answer, if one does."""
    access = _opened(options, patience_s=_at_a_time(patience_s), lenient=lenient)
    return PatientAccess(access, patience_s) if patience_s and (options.tier or math.isinf(patience_s)) else access


def _opened(options: SourceOptions, *, patience_s: float, lenient: bool) -> StoreAccess:
    if len(options.servers) > 1:
        accesses = {addr: _server(options.at(addr), patience_s) for addr in options.servers}
        return ManyServers(accesses, lenient=lenient)
    if options.tier is None:
        return _server(options, patience_s) if options.addr else EmbeddedAccess(options)
    tier = TierAccess(options, open_objects(options.tier, LocalFilesystem()))
    if options.addr:
        return TieredAccess(_server(options, patience_s), tier, local=bool(options.path))
    return TieredAccess(EmbeddedAccess(options), tier, local=True) if options.path else tier


def _at_a_time(patience_s: float) -> float:
    return ROUND_S if math.isinf(patience_s) else patience_s


def _server(options: SourceOptions, patience_s: float) -> RemoteAccess:
    return RemoteAccess(options, AdminClient(options, patience_s=patience_s))


def open_subscriber(
    options: SourceOptions, *, patience_s: float, lenient: bool = False, only: Collection[str] | None = None
) -> Subscriber | None:
    """The subscriber that stands for a query; None if it has none.

    Of several servers: `only` has those that are asked, and `lenient` is to confirm at those that answer.
    """
    if not options.subscriber:
        return None
    made = {
        addr: RemoteSubscriber(options.at(addr), AdminClient(options.at(addr), patience_s=_at_a_time(patience_s)))
        for addr in options.servers
    }
    chosen = {addr: subscriber for addr, subscriber in made.items() if only is None or addr in only}
    found = made[options.addr] if len(made) == 1 else ManySubscribers(chosen, lenient=lenient)
    return PatientSubscriber(found, patience_s) if math.isinf(patience_s) else found


def resolve(access: StoreAccess, channels: Iterable[ChannelFacts], positions: Positions) -> Offsets:
    """By channel the seq that a position stands for; a stated seq is taken as it is."""
    found = {}
    for facts in channels:
        own = positions.at(facts.server) if facts.server else positions
        found[facts.key] = _seq(access, facts, own.of(facts.name))
    return canonical(found)


def _seq(access: StoreAccess, facts: ChannelFacts, place: Place) -> int:
    if isinstance(place, int):
        return place
    if isinstance(place, datetime):
        return _seq_at(access, facts, wall_ns_of(place))
    return facts.first_seq if place == "earliest" else facts.end_seq


def _seq_at(access: StoreAccess, facts: ChannelFacts, time_ns: int) -> int:
    """The first event that came in at or after a time."""
    for segment in access.segments(facts.key, from_seq=facts.first_seq):
        if segment.last_ingested_at_ns >= time_ns:
            with access.opened(segment) as reader:
                return max(facts.first_seq, reader.runs.first_seq_ingested_at(time_ns))
    return facts.end_seq


def infer_schema(options: SourceOptions) -> StructType:
    """The columns of all channels together, and the system columns if they are asked for.

    A server that is away is passed over if another one answers: what it holds beyond these columns is read after the
    next start, as what is added later is.
    """
    access = open_access(options, patience_s=INTERACTIVE_PATIENCE_S, lenient=True)
    schema = pa.schema([])
    for facts in access.channels():
        schema = merge_schemas(facts.name, schema, access.schema(facts.key))
    if not len(schema):
        names = ", ".join(options.patterns)
        raise BadRequest(f"no channel {names} exists yet, so its columns are not known; give them with .schema(…)")
    found = spark_schema(schema)
    if options.include_metadata:
        extra: list[StructField] = list(spark_schema(pa.schema(list(SYSTEM_TYPES.items()))))
        found = StructType([*found, *extra])
    return found
