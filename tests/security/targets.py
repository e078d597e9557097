"""Every decoder of bytes or texts that somebody else made: good inputs, the call, and the errors it may raise.

`HoldfastError` is allowed everywhere. What else is allowed is an error that the decoder's own page names.
"""

from __future__ import annotations

import atexit
import base64
import gzip
import json
import shutil
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.config import file as config_file
from holdfast.delivery.filters import Filter
from holdfast.disk.appendlog import read_log_file
from holdfast.disk.checksum import crc32c
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, HoldfastError
from holdfast.model.frame import Entry
from holdfast.model.schema import BatchLimits, check_batch
from holdfast.sender import rejected
from holdfast.sender.conf import SenderConfig
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot
from holdfast.server.access.signin import split_basic, split_header
from holdfast.server.access.tokens import TokenFile
from holdfast.server.admin import compacting, querying, subscribing
from holdfast.server.admin.bodies import decode_body
from holdfast.server.admin.download import parse_range
from holdfast.server.admin.envelope import Refused
from holdfast.server.admin.jsonrows import lines_of_array, read_rows
from holdfast.server.handshake import check_upgrade, slot_origin, split_head
from holdfast.spark.tables import manifest as table
from holdfast.store.segments.reader import SegmentReader
from holdfast.testing import ManualClock
from holdfast.tier import manifest
from holdfast.wire import consume, hfa, qwp, replies
from holdfast.wire.arrowstream import Malformed, read_stream
from holdfast.wire.ingest import FrameReader, SessionLimits
from holdfast.wire.limits import FrameLimits
from tests.conformance.test_wire_vectors import CLIENT, FRAMES
from tests.crash.slot_workload import OPTIONS, SLOT
from tests.crash.test_log_damage import WAL, Victim
from tests.crash.test_segment_damage import Victim as SegmentVictim
from tests.crash.test_slot_damage import disk_with, left_behind
from tests.unit.delivery.test_filters import BATCH
from tests.unit.sync.world import World, camel, project_event, seed, seed_event

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "conformance" / "vectors"
LIMITS = FrameLimits(message_bytes=1 << 20)
STORE = BatchLimits(rows_max=1_000_000, bytes_max=64 << 20)
_ENTRY_END = hfa.HEADER_BYTES + 8


@dataclass(frozen=True)
class Target:
    """A decoder; `share` is how much it gets of the inputs that are left when each decoder has had its floor."""

    name: str
    good: Callable[[], Sequence[bytes]]
    decode: Callable[[bytes], object]
    as_text: bool = False
    allowed: tuple[type[Exception], ...] = ()
    share: float = 1.0
    fit: Callable[[bytes], bytes] | None = None
    """Puts the outermost lengths of a bent input right, so that not all of them are refused there."""

    def survives(self, data: bytes) -> bool:
        """Whether the input is taken; anything but a documented refusal comes out as it is."""
        documented: tuple[type[Exception], ...] = (HoldfastError, *self.allowed)
        try:
            self.decode(data)
        except documented:
            return False
        return True


# -- the ingest wire -------------------------------------------------------------------------------------------------


def _batches() -> list[pa.RecordBatch]:
    columns = {
        "n": pa.array([1, None, 3], pa.int64()),
        "s": pa.array(["a", "", None]),
        "d": pa.array(["x", "y", "x"]).dictionary_encode(),
        "l": pa.array([[1, 2], [], None], pa.list_(pa.int16())),
        "t": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
        "o": pa.array([{"k": 1, "v": "w"}, None, {"k": 3, "v": None}]),
    }
    plain = pa.record_batch(columns)
    return [plain, plain.slice(1), pa.record_batch({"b": pa.array([b"\0" * 9] * 40, pa.binary())})]


@cache
def _frames() -> list[bytes]:
    found = list(FRAMES.values())
    for compression in (None, "lz4", "zstd"):
        encoder = hfa.FrameEncoder(compression=compression)
        entries = [Entry(f"c{number}", batch, ("p", "q")) for number, batch in enumerate(_batches())]
        found += [b"".join(encoder.encode([entry], slot_id=b"s" * 16, fsn=7)) for entry in entries]
        found.append(b"".join(encoder.encode(entries, guid=b"g" * 16)))
    return found


def _fit_frame(data: bytes) -> bytes:
    """The stream of a frame with one entry reaches to its end."""
    if len(data) < _ENTRY_END or data[6:8] != b"\x01\0":
        return data
    fitted = bytearray(data[: len(data) & ~7])
    channel_bytes, partitions, _ = struct.unpack_from("<HHI", fitted, _ENTRY_END - 8)
    start = _ENTRY_END + channel_bytes
    for _ in range(min(partitions, 8)):
        start += 2 + int.from_bytes(fitted[start : start + 2], "little")
    struct.pack_into("<I", fitted, _ENTRY_END - 4, max(0, len(fitted) - (start + -start % 8)))
    return bytes(fitted)


def _read_frame(data: bytes) -> None:
    for entry in hfa.decode(data, LIMITS).entries:
        check_batch(entry.channel, entry.batch, STORE)


def _read_session(data: bytes) -> None:
    """Two messages of one connection: the second may look as the first did."""
    reader = FrameReader(SessionLimits(LIMITS, deferred_bytes_max=1 << 20))
    reader.read(_frames()[len(FRAMES) + 2], now_us=1)
    plain = reader.read_plain(data)
    frame = reader.read(data, now_us=1)
    assert plain is None or frame is not None
    for entry in frame.entries if frame is not None else ():
        check_batch(entry.channel, entry.batch, STORE)


def _read_qwp(data: bytes) -> None:
    dictionary = qwp.SymbolDictionary()
    for entry in qwp.decode(data, dictionary, LIMITS, now_us=0).entries:
        entry.batch.validate()


def _fit_qwp(data: bytes) -> bytes:
    """It begins as a message does, and counts what follows its header."""
    return b"QWP1\x01" + data[5:8] + (len(data) - 12).to_bytes(4, "little") + data[12:] if len(data) > 12 else data


def _messages() -> list[bytes]:
    """Those of a real client that need no symbols of earlier ones, and ours."""
    ours = [qwp.encode([Entry("t", batch)], None) for batch in (pa.record_batch({"n": [1, 2], "s": ["a", None]}),)]
    found = [*ours, *(raw for _, raw in CLIENT)]
    return [raw for raw in dict.fromkeys(found) if _stands_alone(raw)]


def _stands_alone(raw: bytes) -> bool:
    with suppress(HoldfastError):
        _read_qwp(raw)
        return True
    return False


def _replies() -> list[bytes]:
    marks = [("a", 1), ("b.c", 1 << 40)]
    return [
        replies.encode_ok(7, marks),
        replies.encode_ok(7, []),
        replies.encode_durable_ack(marks),
        replies.encode_refusal(replies.Category.PARSE_ERROR, 3, "no"),
    ]


def _heads() -> list[bytes]:
    fields = (
        "Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nOrigin: https://a\r\n"
    )
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    slot = "X-Holdfast-Slot-Id: 01020304-0506-0708-090a-0b0c0d0e0f10\r\nX-Holdfast-First-Fsn: 17\r\n"
    return [f"GET /api/v4/write?x=1 HTTP/1.1\r\n{fields}{key}{slot}\r\n".encode()]


def _read_head(data: bytes) -> None:
    _, headers = split_head(data)
    check_upgrade(headers, origins=["https://a"])
    slot_origin(headers)


# -- the admin interface ---------------------------------------------------------------------------------------------


BODIES: dict[type[msgspec.Struct], bytes] = {
    compacting.Asked: b'{"target_bytes": 1000000, "event_span_ns": 5}',
    querying.Told: b'{"channels": ["a", "b.c"], "batch": 3, "rows": 9, "rows_per_s": 1.5, "behind": 2, "error": "no"}',
    subscribing.Registration: b'{"channels": ["a"], "start": 7, "grace": "1h"}',
    subscribing.Acks: b'{"acks": [{"channel": "a", "first_seq": 1, "last_seq": 5}]}',
    subscribing.Reset: b'{"to": "first", "channel": "a", "plan": true}',
}


def _read_body(data: bytes) -> None:
    """As the body of each call that takes one."""
    refused: list[BadRequest] = []
    for kind in BODIES:
        try:
            decode_body(data, kind)
        except BadRequest as error:
            refused.append(error)
    if len(refused) == len(BODIES):
        raise refused[0]


def _streams() -> list[bytes]:
    found = []
    for compression in (None, "lz4", "zstd"):
        for batch in _batches():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out:
                out.write_batch(batch)
            found.append(sink.getvalue().to_pybytes())
    return found


def _read_stream(data: bytes) -> None:
    batch, _, _ = read_stream(pa.py_buffer(data), LIMITS, channel="c", inflated_bytes=0)
    check_batch("c", batch, STORE)


def _read_headers(data: bytes) -> None:
    text = data.decode("latin-1")
    scheme, value = split_header({"authorization": text}) or ("", "")
    parse_range(text, 1000)
    if scheme == "basic":
        split_basic(value)


# -- consumers and sync ----------------------------------------------------------------------------------------------


def _requests() -> list[bytes]:
    messages: list[consume.Message] = [
        consume.Hello(client="c"),
        consume.Subscribe(
            request=1, sub=1, channel="t", durable="d", group="g", filter="n > 1", backoff_ms=(1000, 2000)
        ),
        consume.Subscribe(request=2, sub=2, channel="u", columns=("n",), system=("_seq",), partitions=("p",)),
        consume.Ack(sub=1, ranges=((1, 5), (7, 9)), request=3),
        consume.Nack(sub=1, ranges=((1, 5),), delay_ms=5, request=4),
        consume.Extend(sub=1, ranges=((2, 2),), request=5),
        consume.Credit(sub=1, upto=100),
        consume.Close(request=6, sub=1),
    ]
    return [consume.encode(message) for message in messages]


def _fit_request(data: bytes) -> bytes:
    """All that follows the prefix is the head."""
    head = data[8:].rstrip(b"\0")
    return (
        b"\x01" + data[1:2].ljust(1, b"\1") + b"\0\0" + len(head).to_bytes(4, "little") + head + bytes(-len(head) % 8)
    )


def _answers() -> list[bytes]:
    body = consume.encode_body(_batches()[0])
    head = consume.Deliver(sub=1, ranges=((1, 3),))
    settled = consume.Settled(request=1, sub=1, settled=3, stale=0)
    return [
        consume.encode_deliver(head, body),
        consume.encode(settled),
        consume.encode(consume.Event(sub=1, event="gap")),
    ]


def _read_answer(data: bytes) -> None:
    found = consume.decode_reply(data)
    if isinstance(found, consume.Delivery):
        found.batch()


@cache
def _sync_messages() -> list[bytes]:
    said = [
        seed("connect", token="t", client_id="A", last_committed_id=0),
        seed("sync", since_committed_id=0, limit=10, partitions=["P1"]),
        seed("submit_event", **seed_event("e1", "P1", note="x")),
        seed("submit_events", events=[seed_event("e2"), seed_event("e3", "P2")]),
        seed("subscribe", partitions=["P1"]),
        seed("heartbeat"),
        camel("connect", token="t", clientId="A", projectId="p"),
        camel("sync", partitions=["P1"], sinceCommittedId=0, limit=50),
        camel("submit_events", events=[project_event("e4")]),
    ]
    return [json.dumps(message).encode() for message in said]


def _say_to_sync(data: bytes) -> None:
    """A session that has shaken hands, and one that has not; both must answer, or close."""
    world = World()
    for hello in (_sync_messages()[0], _sync_messages()[6], None):
        wire = world.connect()
        if hello is not None:
            world.say(wire, hello)
        world.say(wire, data)
        world.settle()


# -- OTLP ------------------------------------------------------------------------------------------------------------


def _otlp() -> list[Target]:
    from holdfast.dataflow.receivers.inflating import inflate  # noqa: PLC0415  # an extra that other targets do without
    from holdfast.wire.otlp.check import check  # noqa: PLC0415
    from holdfast.wire.otlp.decode import decode  # noqa: PLC0415
    from holdfast.wire.otlp.encode import encode  # noqa: PLC0415
    from holdfast.wire.otlp.jsontext import to_protobuf  # noqa: PLC0415
    from holdfast.wire.otlp.signals import Signal  # noqa: PLC0415
    from tests.unit.dataflow.otlp_samples import sample  # noqa: PLC0415
    from tests.unit.dataflow.test_otlp_json import otlp_json  # noqa: PLC0415

    def read(signal: Signal, data: bytes) -> None:
        """What may be kept can be opened, and written again: nothing in the store is a surprise."""
        rows = decode(signal, pa.array([check(signal, data).request], pa.binary())).rows
        rows.validate(full=True)
        if rows.num_rows:
            again = decode(signal, pa.array([encode(signal, rows)], pa.binary())).rows
            assert again.num_rows == rows.num_rows

    found = []
    for signal in Signal:
        body = sample(signal).SerializeToString()
        text = otlp_json(sample(signal)).encode()
        found += [
            Target(f"OTLP {signal.value}", lambda body=body: [body], lambda data, s=signal: read(s, data), share=0.3),  # type: ignore[misc]
            Target(
                f"OTLP {signal.value}, JSON",
                lambda text=text: [text],  # type: ignore[misc]
                lambda data, s=signal: check(s, to_protobuf(s, data)),  # type: ignore[misc]
                as_text=True,
                share=0.5,
            ),
        ]
    packed = sample(Signal.LOGS).SerializeToString() * 10
    forms = {"gzip": gzip.compress(packed), "zstd": pa.Codec("zstd").compress(packed, asbytes=True)}
    found += [
        Target(
            f"{name} body",
            lambda form=form: [form],  # type: ignore[misc]
            lambda data, n=name: inflate(data, n, bytes_max=1 << 16),  # type: ignore[misc]
            share=0.5,
        )
        for name, form in forms.items()
    ]
    return found


def _otap() -> list[Target]:
    from holdfast.wire.otlp.signals import Signal  # noqa: PLC0415  # an extra that other targets do without
    from tests.conformance.test_otap_fuzz import opened, stream  # noqa: PLC0415

    return [
        Target(
            f"OTAP {signal.value}",
            lambda s=signal: [stream(s)[0], stream(s, "zstd")[0]],  # type: ignore[misc]
            lambda data, s=signal: opened(s, [data]),  # type: ignore[misc]
            share=0,
        )
        for signal in Signal
    ]


# -- files -----------------------------------------------------------------------------------------------------------


@cache
def _wal() -> Victim:
    return Victim()


def _read_log(data: bytes) -> None:
    victim = _wal()
    disk = victim.disk
    disk.write_bytes(WAL, data)
    read_log_file(disk, WAL, last=True)


def _open_store(data: bytes) -> None:
    """The whole start of a store on a bent log: whatever it takes for good is read."""
    store = _wal().open(data)
    for channel in store.channels():
        for batch in store.read(channel):
            batch.validate(full=True)


@cache
def _segment() -> SegmentVictim:
    return SegmentVictim()


def _segments() -> list[bytes]:
    old = [
        base64.b64decode((VECTORS / name).read_text()) for name in ("segment-v1-plain.base64", "segment-v1-zstd.base64")
    ]
    return [_segment().data, *old]


def _read_segment(data: bytes) -> None:
    with SegmentReader.open(_segment().damaged(data)) as reader:
        for _, batch in reader.batches():
            batch.validate(full=True)


@cache
def _slot() -> dict[str, bytes]:
    return left_behind()[0]


def _slot_files() -> list[bytes]:
    """Every file of a slot, its place in the list before it."""
    return [bytes([place]) + data for place, data in enumerate(_slot().values())]


def _open_slot(data: bytes) -> None:
    names = list(_slot())
    name = names[(data[0] if data else 0) % len(names)]
    options = OPTIONS._replace(durability="memory", append_deadline_ms=0)  # a full slot says so at once
    disk, clock = disk_with({**_slot(), name: data[1:]}), ManualClock()
    slot = Slot.open(SLOT, filesystem=disk, clock=clock, durable=False, new_id=bytes)
    ring = Ring(slot, options, clock=clock, threaded=False)
    with ring.cursor(ring.acked_fsn + 1) as cursor:
        sum(len(bytes(frame.payload)) for frame in cursor.until(ring.published_fsn))
    ring.append(b"the slot goes on")


def _token_file(data: bytes) -> None:
    TokenFile(LocalFilesystem(), Path("tokens.json")).decode(data)


def _tokens() -> list[bytes]:
    from tempfile import TemporaryDirectory  # noqa: PLC0415

    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.json"
        file = TokenFile(LocalFilesystem(), path)
        for name in ("a", "b"):
            file.create(name, now_ns=SystemClock().wall_ns())
        return [path.read_bytes()]


def _entries() -> list[bytes]:
    channel = manifest.ChannelNote(channel_id=1, name="c", next_seq=9, schema=b"x")
    reserved = manifest.Reserved(window=5, committed_id=6, segment_seq=7, birth_seq=8)
    entry = manifest.Entry(
        number=3,
        kind="progress",
        store_id="0" * 32,
        epoch=2,
        nonce="n",
        at_ns=1,
        format=1,
        channels=(channel,),
        reserved=reserved,
        slots={"ab": [(1, 2)]},
    )
    return [msgspec.json.encode(entry)]


def _table_entries() -> list[bytes]:
    listed = (table.Listed("part-1.parquet", 5, 600), table.Listed("part-2.parquet", 1, 300))
    entry = table.Entry(format=1, number=4, add=listed, schema="x", identity="q", batch=7, last={"q": 6})
    return [msgspec.json.encode(entry)]


def _read_table_entry(data: bytes) -> None:
    table.decode(b'{"crc32c":"%08x","body":%s}' % (crc32c(data), data), place="entry")


def _rejections() -> list[bytes]:
    return [msgspec.json.encode(rejected.Rejection(first_fsn=1, last_fsn=2, category="schema", message="no"))]


def _read_entry(data: bytes) -> None:
    """Sealed with a right checksum: only a bug or an enemy writes such a thing."""
    manifest.decode(b'{"crc32c":"%08x","body":%s}' % (crc32c(data), data))


# -- texts -----------------------------------------------------------------------------------------------------------


CONNECT = (
    b"ws::addr=127.0.0.1:9000,[::1]:9001;sf_dir=/var/lib/x;sender_id=app;codec=qwp;sf_durability=flush;",
    b"wss::addr=h:1;token=abc;tls_roots=/etc/ca.pem;reconnect_initial_backoff_millis=5;sf_max_segment_bytes=64k;",
    b"ws::addr=h;username=u;password=p;;q;auto_flush_rows=10;initial_connect_retry=async;request_durable_ack=on;",
)
FILTERS = (
    b"n >= 2 and (s in ('a', 'c') or not d = 'x') and exists(at.k)",
    b"n + 1 * 2 - 3 / 4 == 5 || \"a b\" && t > '2026-01-01T00:00:00Z'",
    b"s = 'a' or n is not null and -n < 0.5",
)
HEADERS = (b"Basic dXNlcjpwYXNzd29yZA==", b"Bearer hft_0123456789abcdef", b"bytes=0-499", b"bytes=-5", b"bytes=7-")
ROWS = (
    b'[{"id": 1, "price": 9.5, "at": "2026-01-01T00:00:00Z", "tags": ["a"], "o": {"k": 5}}, {"id": 2}]',
    b'[{"a": "x", "b": [1.5, null], "c": {"d": [{"e": true}]}}]',
)


def _read_rows(data: bytes) -> None:
    schema = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("at", pa.timestamp("us", "UTC"))])
    read_rows(lines_of_array(data), channel="c", schema=schema)


def _config() -> list[bytes]:
    page = (ROOT / "docs" / "reference" / "config-file.md").read_text(encoding="utf-8")
    found = [part.partition("```")[0] for part in page.split("```yaml\n")[1:]]
    return [text.replace("    backup: {password_file: secrets/backup}\n", "").encode() for text in found]


def _in_a_file(read: Callable[[Path], object]) -> Callable[[bytes], None]:
    from tempfile import mkdtemp  # noqa: PLC0415

    folder = Path(mkdtemp(prefix="holdfast-fuzz-"))
    atexit.register(shutil.rmtree, folder)
    path = folder / "file.yaml"

    def decode(data: bytes) -> None:
        path.unlink(missing_ok=True)  # a file that is cut and written again costs ext4 a sync
        path.write_bytes(data)
        read(path)

    return decode


def _examples(folder: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "examples" / folder).glob("*.yaml"))]


def _graphs() -> list[Target]:
    from holdfast.dataflow.graph import problems  # noqa: PLC0415
    from holdfast.spark.pipeline.reading import read_pipeline  # noqa: PLC0415

    pipeline, graph = (
        _in_a_file(lambda path: read_pipeline(path, environ={})),
        _in_a_file(lambda path: problems(path, environ={})),
    )
    return [
        Target("pipeline file", lambda: _examples("pipelines"), pipeline, as_text=True, share=0.1),
        Target("node graph file", lambda: _examples("dataflow"), graph, as_text=True, share=0.1),
    ]


def targets() -> list[Target]:
    """All of them."""
    config = _in_a_file(lambda path: config_file.read(path, environ={"GRAFANA_PASSWORD": "x"}))
    return [
        Target("HFA1 frame", _frames, _read_frame, share=2, fit=_fit_frame),
        Target("ingest session", _frames, _read_session, share=2, fit=_fit_frame),
        Target("QWP1 message", _messages, _read_qwp, share=2, fit=_fit_qwp),
        Target("ingest reply", _replies, replies.decode),
        Target("request head", _heads, _read_head, as_text=True),
        Target("consume request", _requests, consume.decode_request, share=2, fit=_fit_request),
        Target("consume reply", _answers, _read_answer),
        Target("body of an admin call", lambda: list(BODIES.values()), _read_body, as_text=True),
        Target("events as Arrow", _streams, _read_stream, share=2, allowed=(Malformed, pa.ArrowException, OSError)),
        Target("headers", lambda: HEADERS, _read_headers, as_text=True, allowed=(Refused,)),
        Target("sync message", _sync_messages, _say_to_sync, as_text=True, share=0.7),
        *_otlp(),
        *_otap(),
        Target("log file", lambda: [_wal().data], _read_log),
        Target("store on a bent log", lambda: [_wal().data], _open_store, share=0),
        Target("segment file", _segments, _read_segment),
        Target("slot files", _slot_files, _open_slot, share=0.2),
        Target("token file", _tokens, _token_file, as_text=True),
        Target("manifest of a tier", _entries, _read_entry, as_text=True, allowed=(ValueError,)),
        Target("manifest of a table", _table_entries, _read_table_entry, as_text=True),
        Target("rejection of a slot", _rejections, lambda data: rejected.decode(ROOT, data), as_text=True),
        Target(
            "connect string",
            lambda: CONNECT,
            lambda data: SenderConfig.from_conf(data.decode("utf-8", "replace")),
            as_text=True,
        ),
        Target("configuration file", _config, config, as_text=True, share=0),
        *_graphs(),
        Target("filter", lambda: FILTERS, _filter, as_text=True),
        Target("rows as JSON", lambda: ROWS, _read_rows, as_text=True, allowed=(Refused,)),
    ]


def _filter(data: bytes) -> None:
    Filter(data.decode("utf-8", "replace")).mask(BATCH, first_seq=1, runs=None)


__all__ = ["Target", "targets"]
