"""`holdfast slots`: what senders' slots hold, and sending it.

Promise: `ls` and `show` only look, also while a sender owns the slot; what is being written at that moment may be
missing. `drain` locks each slot, sends, and empties it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.display import count, make_console, make_table, moment, several, shortened, size
from holdfast.cli.progress import Polled, make_progress
from holdfast.cli.send import read_conf
from holdfast.clock import NS_PER_S, SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, DamagedData, Locked, WireError
from holdfast.sender.dialing import tls_context
from holdfast.sender.link import Wire
from holdfast.sender.orphans import Drained, SlotDrainer, errors_only
from holdfast.sender.recovery import SUFFIX, Survey, frames_of, survey
from holdfast.sender.rejected import DIRECTORY as REJECTED
from holdfast.sender.rejected import read_rejected
from holdfast.sender.slot import FAILED, LAST_ERROR, LOCK, holder_pid
from holdfast.wire import hfa
from holdfast.wire.limits import FrameLimits

_FILES = LocalFilesystem()
_LIMITS = FrameLimits(message_bytes=1 << 31)


class RejectedFacts(msgspec.Struct, kw_only=True):
    """Frames that a server refused for good."""

    path: str
    first_fsn: int
    last_fsn: int
    category: str
    message: str
    detected_at_ns: int


class SlotFacts(msgspec.Struct, kw_only=True):
    """One slot as it is on disk."""

    name: str
    path: str
    frames: int = 0
    unacknowledged: int = 0
    acked_fsn: int = -1
    next_fsn: int = 0
    size_bytes: int = 0
    segments: int = 0
    foreign: bool = False
    last_owner_pid: int | None = None
    failed: str = ""
    last_error: str = ""
    damage: str = ""
    rejected: list[RejectedFacts] = []


class FrameFacts(msgspec.Struct, kw_only=True):
    """One frame."""

    fsn: int
    size_bytes: int
    kind: str
    acknowledged: bool
    channels: dict[str, int] = {}
    """Events per channel, where the frame can be read."""


# --- looking --------------------------------------------------------------------------------------------------------


def is_slot(directory: Path) -> bool:
    """Whether a directory is a slot, also an empty one."""
    return (directory / LOCK).exists() or any(directory.glob(f"*{SUFFIX}"))


def slots_in(sf_dir: Path) -> list[Path]:
    """The slots of an `sf_dir`."""
    if not sf_dir.is_dir():
        raise BadRequest(f"{sf_dir} is no directory; give the sf_dir of a sender")
    return sorted(path for path in sf_dir.iterdir() if path.is_dir() and is_slot(path))


def facts_of(directory: Path) -> tuple[SlotFacts, Survey | None]:
    """What a slot holds; without a survey if it is damaged."""
    facts = SlotFacts(name=directory.name, path=str(directory), last_owner_pid=holder_pid(_FILES, directory))
    facts.failed, facts.last_error = _text(directory / FAILED), _text(directory / LAST_ERROR)
    try:
        facts.rejected = _rejected(directory)
        found = survey(_FILES, directory)
    except DamagedData as error:
        facts.damage = str(error)
        return facts, None
    facts.frames, facts.unacknowledged = found.frames, found.unacknowledged
    facts.acked_fsn, facts.next_fsn = found.acked_fsn, found.next_fsn
    facts.segments, facts.foreign = len(found.segments), found.foreign
    facts.size_bytes = sum(segment.size_bytes for segment in found.segments)
    facts.damage = "; ".join(f"{item.path.name}: {item.reason}" for item in found.damaged)
    return facts, found


def _rejected(directory: Path) -> list[RejectedFacts]:
    return [
        RejectedFacts(
            path=str(span.path),
            first_fsn=span.rejection.first_fsn,
            last_fsn=span.rejection.last_fsn,
            category=span.rejection.category,
            message=span.rejection.message,
            detected_at_ns=span.rejection.detected_at_ns,
        )
        for span in read_rejected(_FILES, directory)
    ]


def _text(path: Path) -> str:
    return path.read_text(errors="replace").strip() if path.exists() else ""


def run_ls(directory: Path, *, as_json: bool) -> ExitCode:
    """Every slot in one line."""
    found = [facts_of(path)[0] for path in slots_in(directory)]
    is_sound = not any(item.damage for item in found)
    if as_json:
        answer_json("slots ls", {"directory": str(directory), "slots": found}, ok=is_sound)
        return ExitCode.DONE if is_sound else ExitCode.NO
    console = make_console()
    waiting = sum(item.unacknowledged for item in found)
    console.print(
        f"[bold]{escape(str(directory))}[/]: {several(len(found), 'slot')}, {several(waiting, 'frame')} to send",
        soft_wrap=True,
    )
    numbers = ("frames", "to send", "size", "refused")
    table = make_table("slot", *numbers, "last owner", "state", right=numbers)
    for item in found:
        owner = str(item.last_owner_pid) if item.last_owner_pid is not None else "–"
        cells = (count(item.frames), count(item.unacknowledged), size(item.size_bytes), count(len(item.rejected)))
        table.add_row(escape(item.name), *cells, owner, escape(_state(item)))
    if found:
        console.print(table)
    return ExitCode.DONE if is_sound else ExitCode.NO


def _state(facts: SlotFacts) -> str:
    if facts.damage:
        return f"damaged: {facts.damage}"
    if facts.failed:
        return f"failed: {facts.failed}"
    if facts.last_error:
        return f"last error: {facts.last_error}"
    return "to send" if facts.unacknowledged else "empty"


def run_show(directory: Path, *, limit: int, as_json: bool) -> ExitCode:
    """One slot, with its frames."""
    require_slot(directory)
    facts, found = facts_of(directory)
    frames = list(_frames(found)) if found is not None else []
    if as_json:
        answer_json("slots show", {"slot": facts, "frames": frames}, ok=not facts.damage)
    else:
        _show(make_console(), facts, frames, limit)
    return ExitCode.NO if facts.damage else ExitCode.DONE


def require_slot(directory: Path) -> None:
    """Raise `BadRequest` unless the directory is a slot."""
    if not directory.is_dir() or not is_slot(directory):
        raise BadRequest(f"{directory} is no slot: it has neither {LOCK} nor a file *{SUFFIX}")


def _frames(found: Survey) -> Iterator[FrameFacts]:
    for fsn, payload in frames_of(_FILES, found):
        magic = bytes(payload[:4])
        kind = {b"HFA1": "arrow", b"QWP1": "qwp"}.get(magic, "unknown")
        facts = FrameFacts(fsn=fsn, size_bytes=len(payload), kind=kind, acknowledged=fsn <= found.acked_fsn)
        if kind == "arrow":
            facts.channels = _channels(payload)
        yield facts


def _channels(payload: memoryview) -> dict[str, int]:
    try:
        entries = hfa.decode(payload, _LIMITS).entries
    except WireError:
        return {}
    channels: dict[str, int] = {}
    for entry in entries:
        channels[entry.channel] = channels.get(entry.channel, 0) + entry.batch.num_rows
    return channels


def _show(console: Console, facts: SlotFacts, frames: list[FrameFacts], limit: int) -> None:
    console.print(f"[bold]{escape(facts.path)}[/]: {escape(_state(facts))}", soft_wrap=True)
    console.print(
        f"{several(facts.frames, 'frame')} in {several(facts.segments, 'segment')}, {size(facts.size_bytes)}; "
        f"acknowledged up to {facts.acked_fsn}, next is {facts.next_fsn}" + (", of another client" * facts.foreign)
    )
    head, left_out, tail = shortened(frames, limit)
    if frames:
        table = make_table("fsn", "size", "kind", "state", "events", right=("fsn", "size"))
        for item in (*head, *tail):
            events = ", ".join(f"{channel}: {count(rows)}" for channel, rows in item.channels.items())
            state = "acknowledged" if item.acknowledged else "to send"
            table.add_row(count(item.fsn), size(item.size_bytes), item.kind, state, escape(events))
        console.print(table)
    if left_out:
        console.print(f"{several(left_out, 'frame')} in the middle not shown; --limit 0 shows all")
    for span in facts.rejected:
        console.print(
            f"[bold red]refused[/] frames {span.first_fsn} to {span.last_fsn} at {moment(span.detected_at_ns)}, "
            f"{span.category}: {escape(span.message)}; kept in {escape(span.path)}",
            soft_wrap=True,
        )


# --- sending --------------------------------------------------------------------------------------------------------


def run_drain(directory: Path, *, conf: str | None, timeout_s: float | None, as_json: bool) -> ExitCode:
    """One slot, or all slots of an `sf_dir`, one after the other."""
    config = read_conf(conf)
    if not directory.is_dir():
        raise BadRequest(f"{directory} is no directory; give an sf_dir or a slot")
    chosen = [directory] if is_slot(directory) else [path for path in slots_in(directory) if path.name != REJECTED]
    wire = Wire(config, tls_context(config), SystemClock(), random.Random())
    stop = threading.Event()
    if timeout_s is not None:
        timer = threading.Timer(timeout_s, stop.set)
        timer.daemon = True
        timer.start()
    console = make_console(quiet=as_json)
    results = [_drain(path, wire, stop, console) for path in chosen]
    is_done = all(item["outcome"] == Drained.EMPTIED for item in results)
    if as_json:
        answer_json("slots drain", {"slots": results}, ok=is_done)
    return ExitCode.DONE if is_done else ExitCode.NO


def _drain(path: Path, wire: Wire, stop: threading.Event, console: Console) -> dict[str, Any]:
    refused: list[str] = []
    listeners = errors_only(lambda error: refused.append(f"{error.category.name}: {error.message}"))
    drainer = SlotDrainer(path, wire, listeners, start=wire.config.initial_connect_retry)
    started_ns = wire.clock.monotonic_ns()
    outcome, reason = Drained.FAILED, ""
    if (path / FAILED).exists():
        reason = f"marked {FAILED}: {_text(path / FAILED)}; delete the mark to try again"
    else:
        with make_progress(BarColumn(), Polled(lambda: drainer.progress, "frames"), quiet=console.quiet) as bar:
            bar.add_task(escape(path.name), total=None)
            outcome = drainer.run(stop)
        reason = str(drainer.error or "; ".join(refused))
    answered, frames = drainer.progress
    seconds = (wire.clock.monotonic_ns() - started_ns) / NS_PER_S
    busy = f", in use by {drainer.error.holder_pid}" if isinstance(drainer.error, Locked) else ""
    console.print(
        f"{escape(path.name)}: {outcome}{busy}, {count(answered)} of {several(frames, 'frame')} in {seconds:.1f} s"
        + (f"; {escape(reason)}" if reason else ""),
        soft_wrap=True,
    )
    return {"slot": str(path), "outcome": outcome, "frames": frames, "answered": answered, "reason": reason}
