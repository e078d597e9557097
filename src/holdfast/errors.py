"""Every error Holdfast raises, sorted by what the caller can do about it.

    HoldfastError
    ├── RetryLater             nothing is wrong with the call; the same call may work later
    │   ├── Backpressure       a configured bound is reached; waits first, then says used and cap
    │   ├── ChannelFull        a channel that refuses new events is at its limit
    │   ├── DiskFull           the filesystem has no room; nothing was written
    │   ├── Locked             another process owns this directory; names its pid
    │   ├── NotConnected       no server of the list could be reached at the start
    │   │   └── NotConfirmed   an answer to messages did not reach the server; they come again
    │   ├── QuotaReached       a limit of the one who calls is reached; says when to come back
    │   ├── ServerAway         the admin server does not answer, or answers that it cannot now
    │   ├── StreamBroken       a stream of batches cannot be read any further; send the batch on another one
    │   ├── SlotFull           a sender has no room left; says whether the server is slow or away
    │   ├── TierUnavailable    the object store does not answer, or answers that it cannot now
    │   └── Reentered          a signal handler called what it interrupted; nothing was taken
    ├── BadRequest             the call is wrong; nothing was changed
    │   ├── InvalidName        a channel or subscriber name outside the allowed alphabet
    │   ├── InvalidConfig      an unknown key, a bad value, or two settings that contradict
    │   ├── BadPipeline        a pipeline that does not fit together; has every problem with its line
    │   ├── InvalidBatch       a batch that may not be stored: bad bytes, types or size
    │   ├── InvalidFilter      a subscription's filter that cannot be read; names the character
    │   ├── FrameTooLarge      a frame that no segment of its sender can hold
    │   ├── LimitReached       no more channels or subscribers are allowed, or no frame of that size
    │   ├── SchemaMismatch     a column that does not fit its channel
    │   │   └── ColumnWidened  a value that does not fit the column a query reads; a new start takes the schema of now
    │   └── UnknownChannel     reading from a channel that does not exist
    ├── DamagedData            bytes on disk are not what was written
    │   ├── CorruptData        a checksum or a structure is wrong; names file and byte
    │   ├── DamagedObject      an object of the tier is missing, or is not what was stored
    │   └── UnsupportedFormat  written by a version this one does not read
    ├── AccessRefused          who calls may not do this; nothing was changed
    │   ├── Unauthenticated    no credential, or one that is unknown, expired or revoked
    │   └── Forbidden          a known caller without the right
    ├── EventsGone             events that a reader was to get are not there any more; names channel and range
    ├── QueryFailed            a query of a pipeline ended with an error, and is not started again
    ├── SparkNotStarted        Spark's master is away or refuses us, or its Java ended; nothing was read or written
    ├── ReplayDiffers          a batch that ran again brought other rows than the first time; names channel and batch
    ├── WireError              bytes from the other side are not what the protocol allows; says category and place
    ├── Unprotected            would listen for everyone without TLS and authentication; not started
    ├── CannotListen           an address is taken, or is none of this machine; not started
    ├── TierRefused            the object store refuses us, has no such bucket, or cannot do what a tier needs
    ├── TierMismatch           the tier and the data directory are not of one store, or not of one time
    ├── OnlyInTier             a segment has no file here any more, and this program was given no tier to read it from
    ├── FencedOut              another process has taken over the tier; this one writes nothing more to it
    ├── StoreFailed            an I/O error ended this store; reopen it to go on
    ├── SenderHalted           a sender sends nothing more: a refusal, or a frame that ends connections
    ├── FrameRefused           a server refused this frame for good; the sender set it aside and went on
    ├── Incompatible           a server does not confirm what a client asks for
    ├── SubscriptionRefused    a server refuses a subscription, or has ended it; says why
    ├── SlotFailed             an I/O error ended this slot; open the sender again to go on
    └── Closed                 the object was closed before the call

Texts are lower case and name the file and byte, or the name and value. Fields carry the same facts for programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


class HoldfastError(Exception):
    """The root of the tree: catching it catches everything Holdfast raises on purpose."""


class RetryLater(HoldfastError):
    """Nothing is wrong with the call; the same call may work later."""


class Backpressure(RetryLater):
    """A configured bound is reached and did not fall while the caller waited."""

    def __init__(
        self, *, bound: str, used_bytes: int, cap_bytes: int, waited_s: float, slowest: str = "", cause: str = ""
    ) -> None:
        blame = f"; subscriber {slowest!r} keeps the most" if slowest else ""
        blame += f"; segments cannot be written: {cause}" if cause else ""
        super().__init__(
            f"{bound} is full: {used_bytes} of {cap_bytes} bytes used after waiting {waited_s:.1f} s{blame}; "
            "the call was not accepted and can be repeated"
        )
        self.slowest = slowest
        self.cause = cause
        self.bound = bound
        self.used_bytes = used_bytes
        self.cap_bytes = cap_bytes
        self.waited_s = waited_s


class ChannelFull(RetryLater):
    """A channel with `discard: new` is at a limit; the frame was refused as a whole."""

    def __init__(self, *, channel: str, limit: str, allowed: int) -> None:
        super().__init__(f"channel {channel!r} is at {limit}={allowed} and discards new events; the frame was refused")
        self.channel = channel
        self.limit = limit
        self.allowed = allowed


class DiskFull(RetryLater):
    """The filesystem has no room for the file named; nothing of the call was kept."""

    def __init__(self, *, file: Path, reason: str) -> None:
        super().__init__(f"no space left to write {file}: {reason}; free space and repeat the call")
        self.file = file
        self.reason = reason


class Locked(RetryLater):
    """Another process owns this directory."""

    def __init__(self, *, file: Path, holder_pid: int | None) -> None:
        holder = f"process {holder_pid}" if holder_pid is not None else "another process"
        super().__init__(f"{file.parent} is in use by {holder} (lock {file.name}); stop it or choose another directory")
        self.file = file
        self.holder_pid = holder_pid


class NotConnected(RetryLater):
    """No server of the list could be reached while the sender started. `failures` has one text per address."""

    def __init__(self, *, failures: Sequence[str], waited_s: float) -> None:
        super().__init__(
            f"no server could be reached in {waited_s:.1f} s ({'; '.join(failures)}); start one, correct addr, or "
            "set initial_connect_retry to on or async"
        )
        self.failures = tuple(failures)
        self.waited_s = waited_s


class NotConfirmed(NotConnected):
    """An answer to messages did not reach the server. It hands them out again, so nothing is kept to be sent later."""

    def __init__(self, *, reason: str) -> None:
        HoldfastError.__init__(self, f"not confirmed: {reason}; the messages will be delivered again")
        self.failures = (reason,)
        self.waited_s = 0.0


class QuotaReached(RetryLater):
    """A limit of one principal is reached; others are not touched by it."""

    def __init__(self, *, principal: str, limit: str, allowed: int, retry_after_s: float) -> None:
        super().__init__(
            f"principal {principal!r} is at {limit}={allowed}; try again in {max(1, round(retry_after_s))} s"
        )
        self.principal = principal
        self.limit = limit
        self.allowed = allowed
        self.retry_after_s = retry_after_s


class ServerAway(RetryLater):
    """The admin server does not answer, or answers that it cannot now."""

    def __init__(self, *, addr: str, reason: str, waited_s: float) -> None:
        super().__init__(f"{addr} does not answer after {waited_s:.1f} s: {reason}; start the server or correct addr")
        self.addr = addr
        self.reason = reason
        self.waited_s = waited_s


class StreamBroken(RetryLater):
    """A stream of batches that build on each other cannot be read any further. This batch may be sound."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"the stream cannot be read any further: {reason}; open another one and send the batch again")
        self.reason = reason


class SlotFull(RetryLater):
    """A sender's slot or memory ring is at its cap, and no acknowledgement made room while the producer waited.

    `outage` is None when the connection stands, so that the server is slower than the producer; otherwise it says since
    when the sender has been reconnecting, and how often it has tried.
    """

    def __init__(self, *, used_bytes: int, cap_bytes: int, waited_s: float, outage: str | None) -> None:
        why = f"the sender is reconnecting {outage}" if outage else "the server is slower than the producer"
        super().__init__(
            f"sf_max_total_bytes is reached: {used_bytes} of {cap_bytes} bytes used after waiting {waited_s:.1f} s; "
            f"{why}; the frame was not taken and can be handed over again"
        )
        self.used_bytes = used_bytes
        self.cap_bytes = cap_bytes
        self.waited_s = waited_s
        self.outage = outage

    @property
    def is_outage(self) -> bool:
        """Whether the server is away, rather than slow."""
        return self.outage is not None


class TierUnavailable(RetryLater):
    """The object store failed to answer, or said that it cannot now. What was asked may or may not have happened."""

    def __init__(self, *, url: str, action: str, reason: str) -> None:
        super().__init__(f"tier {url}: {action}: {reason}")
        self.url = url
        self.action = action
        self.reason = reason


class Reentered(RetryLater):
    """A signal handler hands over a frame while it interrupts the same thread doing so; repeat it after the handler."""

    def __init__(self, *, what: str) -> None:
        super().__init__(f"{what} was interrupted by a signal handler that calls it again; nothing was taken")
        self.what = what


class BadRequest(HoldfastError):
    """The call is wrong; nothing was changed. Mend the call before repeating it."""


class InvalidName(BadRequest):
    """A name outside the allowed alphabet, or one that would collide."""

    def __init__(self, *, what: str, name: str, reason: str) -> None:
        super().__init__(f"{what} name {name!r} is not allowed: {reason}")
        self.what = what
        self.name = name
        self.reason = reason


class InvalidConfig(BadRequest):
    """A setting that is unknown, out of range, or contradicts another. `line` is 0 where no line is to blame."""

    def __init__(self, *, key: str, reason: str, file: Path | None = None, line: int = 0) -> None:
        place = f"{file}:{line}: {key}" if file and line else f"{file}: {key}" if file else f"setting {key}"
        super().__init__(f"{place}: {reason}")
        self.key = key
        self.reason = reason
        self.file = file
        self.line = line


class BadPipeline(BadRequest):
    """A pipeline that does not fit together. `problems` has all that was found, by line."""

    def __init__(self, problems: Sequence[InvalidConfig]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class InvalidBatch(BadRequest):
    """A batch that may not be stored."""

    def __init__(self, *, channel: str, reason: str) -> None:
        super().__init__(f"batch for channel {channel!r} refused: {reason}")
        self.channel = channel
        self.reason = reason


class InvalidFilter(BadRequest):
    """A filter that cannot be read. `at` is the place in the text, from 0."""

    def __init__(self, *, at: int, reason: str) -> None:
        super().__init__(f"filter, character {at}: {reason}")
        self.at = at
        self.reason = reason


class FrameTooLarge(BadRequest):
    """A frame that does not fit into an empty segment; waiting would not help."""

    def __init__(self, *, frame_bytes: int, allowed_bytes: int) -> None:
        super().__init__(
            f"a frame of {frame_bytes} bytes does not fit into a segment, which holds {allowed_bytes}: "
            "send smaller frames or raise sf_max_segment_bytes"
        )
        self.frame_bytes = frame_bytes
        self.allowed_bytes = allowed_bytes


class LimitReached(BadRequest):
    """A configured number of things exists already."""

    def __init__(self, *, what: str, limit: str, allowed: int) -> None:
        super().__init__(f"{what}: {limit} is {allowed}; raise it or remove something first")
        self.what = what
        self.limit = limit
        self.allowed = allowed


class SchemaMismatch(BadRequest):
    """A column that does not fit its channel's schema."""

    def __init__(self, *, channel: str, column: str, expected: str, found: str, reason: str) -> None:
        super().__init__(f"channel {channel!r}, column {column!r}: expected {expected}, found {found}: {reason}")
        self.channel = channel
        self.column = column
        self.expected = expected
        self.found = found
        self.reason = reason


class ColumnWidened(SchemaMismatch):
    """A value that does not fit the column that a query reads. The channel may have grown; a new start reads it so."""


class UnknownChannel(BadRequest):
    """No such channel in this store."""

    def __init__(self, *, channel: str) -> None:
        super().__init__(f"channel {channel!r} does not exist; it is created by its first commit")
        self.channel = channel


class DamagedData(HoldfastError):
    """Bytes on disk are not what was written."""


class CorruptData(DamagedData):
    """A checksum or a structure is wrong at one place of one file."""

    def __init__(self, *, file: Path, offset_bytes: int, reason: str, dump: str = "") -> None:
        text = f"{file} is damaged at byte {offset_bytes}: {reason}"
        super().__init__(f"{text}\n{dump}" if dump else text)
        self.file = file
        self.offset_bytes = offset_bytes
        self.reason = reason
        self.dump = dump


class DamagedObject(DamagedData):
    """An object of the tier is missing, or its bytes are not those that were stored."""

    def __init__(self, *, url: str, key: str, reason: str) -> None:
        super().__init__(f"tier {url}: object {key}: {reason}")
        self.url = url
        self.key = key
        self.reason = reason


class UnsupportedFormat(DamagedData):
    """A file of a format version this release does not read."""

    def __init__(self, *, file: Path, found: int, supported: int) -> None:
        super().__init__(f"{file} has format version {found}; this release reads up to {supported}: upgrade holdfast")
        self.file = file
        self.found = found
        self.supported = supported


class AccessRefused(HoldfastError):
    """Who calls may not do this; nothing was changed. Texts never repeat a credential."""


class Unauthenticated(AccessRefused):
    """No credential, or one that is unknown, expired or revoked."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"not authenticated: {reason}")
        self.reason = reason


class Forbidden(AccessRefused):
    """A known caller without the right. `principal` is empty at a client, which need not know by what name it goes."""

    def __init__(self, *, principal: str, action: str, said: str = "") -> None:
        super().__init__(said or f"principal {principal!r} may not {action}")
        self.principal = principal
        self.action = action


class Category(Enum):
    """What is wrong with a message on the ingest wire. The value is the status byte of the refusal; negative ones have
    none and are never sent."""

    SCHEMA_MISMATCH = 0x03
    PARSE_ERROR = 0x05
    INTERNAL_ERROR = 0x06
    SECURITY_ERROR = 0x08
    WRITE_ERROR = 0x09
    NOT_WRITABLE = 0x0C
    DICTIONARY_GAP = 0x0D
    PROTOCOL_VIOLATION = -1  # the connection is closed instead
    UNKNOWN = -2  # a status byte this version does not know


class EventsGone(HoldfastError):
    """Events that a reader was to get are not there any more. `last_seq` is included."""

    def __init__(self, *, channel: str, first_seq: int, last_seq: int, reason: str) -> None:
        super().__init__(f"events {first_seq}..{last_seq} of channel {channel!r} are gone: {reason}")
        self.channel = channel
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.reason = reason


class QueryFailed(HoldfastError):
    """A query of a pipeline ended. `restarts` is how often it was started again before."""

    def __init__(self, *, output: str, reason: str, restarts: int) -> None:
        super().__init__(f"output {output!r} failed after {restarts} restarts: {reason}")
        self.output = output
        self.reason = reason
        self.restarts = restarts


class SparkNotStarted(HoldfastError):
    """Spark did not start: its master is away or refuses us, or its Java ended. Nothing was read or written."""

    def __init__(self, *, master: str, reason: str) -> None:
        super().__init__(f"Spark did not start with master {master!r}: {reason}; what it printed itself may say more")
        self.master = master
        self.reason = reason


class ReplayDiffers(HoldfastError):
    """A batch that Spark ran again does not hold the rows of the first time, which are stored."""

    def __init__(self, *, channel: str, batch: int, partition: int, stored: int, sent: int) -> None:
        super().__init__(
            f"channel {channel!r} has {stored} events of batch {batch}, partition {partition}, and the batch that ran "
            f"again brought {sent}; a query that writes to a channel must give the same rows in the same order: sort "
            "within partitions behind a shuffle, and keep random functions and clocks out of it"
        )
        self.channel = channel
        self.batch = batch
        self.partition = partition
        self.stored = stored
        self.sent = sent


class WireError(HoldfastError):
    """Bytes from the other side are not what the protocol allows. `place` is where: byte, channel, column."""

    def __init__(self, *, category: Category, reason: str, place: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.category = category
        self.reason = reason
        self.place = place


class Unprotected(HoldfastError):
    """The server would listen for everyone without TLS and authentication; it was not started."""

    def __init__(self, *, key: str, address: str, missing: str) -> None:
        super().__init__(
            f"{key} {address} can be reached from other machines, and {missing}: bind a loopback address, "
            "set up TLS and authentication, or accept the risk with --insecure"
        )
        self.key = key
        self.address = address
        self.missing = missing


class CannotListen(HoldfastError):
    """The address is taken or is none of this machine's; the server was not started."""

    def __init__(self, *, key: str, address: str, reason: str) -> None:
        super().__init__(f"{key} {address}: {reason}; stop what listens there, or choose another address")
        self.key = key
        self.address = address
        self.reason = reason


class TierRefused(HoldfastError):
    """Waiting does not mend this: credentials, a bucket that is not there, or a store that overwrites."""

    def __init__(self, *, url: str, reason: str) -> None:
        super().__init__(f"tier {url}: {reason}")
        self.url = url
        self.reason = reason


class TierMismatch(HoldfastError):
    """The tier and the data directory do not belong together; nothing was changed in either."""

    def __init__(self, *, url: str, directory: Path, reason: str) -> None:
        super().__init__(f"tier {url} and {directory}: {reason}")
        self.url = url
        self.directory = directory
        self.reason = reason


class OnlyInTier(HoldfastError):
    """The bytes of a segment are in an object store that this program does not know; nothing is lost."""

    def __init__(self, *, channel: str, segment_seq: int) -> None:
        super().__init__(
            f"segment {segment_seq} of channel {channel!r} is only in the tier; read it through the server, or open "
            "the store with the tier it was written to"
        )
        self.channel = channel
        self.segment_seq = segment_seq


class FencedOut(HoldfastError):
    """A later process opened the same tier. What this one had not stored there is only on its own disk."""

    def __init__(self, *, url: str, epoch: int, later_epoch: int) -> None:
        super().__init__(
            f"tier {url}: another process has taken it over (epoch {later_epoch}, this one has {epoch}); "
            "this one stops: run one server for one tier"
        )
        self.url = url
        self.epoch = epoch
        self.later_epoch = later_epoch


class StoreFailed(HoldfastError):
    """An I/O error ended this store: what was in flight may or may not be stored, and nothing more is accepted."""

    def __init__(self, *, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}; the store stopped and accepts nothing more: restart the process")
        self.file = file
        self.reason = reason


class SenderHalted(HoldfastError):
    """The sender stopped sending; every frame is kept. `status` is the server's byte, -1 without one."""

    def __init__(self, *, category: Category, reason: str, first_fsn: int, last_fsn: int, status: int = -1) -> None:
        frames = f"frame {first_fsn}" if first_fsn == last_fsn else f"frames {first_fsn} to {last_fsn}"
        super().__init__(f"the sender halted at {frames}, {category.name}: {reason}; nothing was dropped")
        self.category = category
        self.reason = reason
        self.first_fsn = first_fsn
        self.last_fsn = last_fsn
        self.status = status


class FrameRefused(HoldfastError):
    """A server refused the frame for good. `kept_in` is the copy of it; None without a slot directory."""

    def __init__(self, *, fsn: int, category: Category, reason: str, kept_in: Path | None) -> None:
        place = f"a copy is in {kept_in}" if kept_in is not None else "no copy is kept without sf_dir"
        super().__init__(f"frame {fsn} was refused, {category.name}: {reason}; {place}")
        self.fsn = fsn
        self.category = category
        self.reason = reason
        self.kept_in = kept_in


class Incompatible(HoldfastError):
    """A server does not confirm what a client asks for."""

    def __init__(self, *, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class SubscriptionRefused(HoldfastError):
    """A server refuses a subscription, a change of it, or has ended it. `code` is for programs."""

    def __init__(self, *, channel: str, code: str, reason: str) -> None:
        super().__init__(f"subscription to {channel!r} refused ({code}): {reason}")
        self.channel = channel
        self.code = code
        self.reason = reason


class SlotFailed(HoldfastError):
    """An I/O error ended this slot: it takes nothing more, and what is on disk is for the next sender to send."""

    def __init__(self, *, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}; the slot takes nothing more: close the sender and open it again")
        self.file = file
        self.reason = reason


class Closed(HoldfastError):
    """The object was closed before the call."""

    def __init__(self, *, what: str) -> None:
        super().__init__(f"{what} is closed")
        self.what = what


def again(error: Error) -> Error:
    """An error that is kept and raised more than once, as it was at first: without the places it went through, which
    hold what their callers had in hand, and would grow with every time."""
    return error.with_traceback(None)
