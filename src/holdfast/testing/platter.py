"""What a `CrashFilesystem` holds, and what a power cut leaves of it.

Promise: `after_cut` gives a tree that the contract of `holdfast.disk.filesystem` allows after a power cut, one for
each seed, and over all seeds any of those described below; `after_kill` gives the tree that the next process finds.
Neither changes what it is given.

    what is held          visible now  on the platter  in between
    --------------------  -----------  --------------  -----------------------------------------------------
    content of a file     `visible`    `durable`       `pending`: writes and size changes, in order
    names of a directory  `current`    `durable`       the journal of the disk: operations on names, in order

What a power cut may leave of what was not synced:

- **content**: nothing; all; sizes without data (zeros); the first changes, with the last of them torn at any byte; or
  each sector of 512 bytes at any moment of its history, so that later writes may be there without earlier ones;
- **names**: each create, rename, unlink, makedir and rmdir for itself, but never the later of two that touch one name
  without the earlier. A rename is one operation, also between two directories: syncing either makes it durable;
- **a database**: every commit that returned; the one that was interrupted, as a whole or not at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

SECTOR_BYTES = 512
"""What drives promise to write as a whole, at least."""

NOTHING_EXTRA = 0
"""The seed after which only what was promised is left."""

EVERYTHING = 1
"""The seed after which all that was written is left."""

Change: TypeAlias = tuple[int, "bytes | None"]
"""`(offset, data)`: a write; with empty data it only grows the file to `offset`. `(size, None)`: a truncate."""


def _apply(content: bytearray, change: Change) -> None:
    at, data = change
    if at > len(content):
        content.extend(bytes(at - len(content)))
    if data is None:
        del content[at:]
    else:
        content[at : at + len(data)] = data


class Inode:
    """Content of a file. `bytes` until first changed, so that copies of a disk share it."""

    __slots__ = ("atomic", "durable", "linked", "pending", "visible")

    def __init__(self, content: bytes = b"") -> None:
        self.durable: bytes | bytearray = content
        self.visible: bytes | bytearray = content
        self.pending: list[Change] = []
        self.linked = True
        self.atomic = False  # a database in whose commit the power went: durable or visible, nothing between

    def change(self, change: Change) -> None:
        if isinstance(self.visible, bytes):
            self.visible = bytearray(self.visible)
        _apply(self.visible, change)
        self.pending.append(change)

    def sync(self) -> None:
        if self.atomic:
            self.replace(bytes(self.visible), durable=True)
        if not self.pending:
            return
        if isinstance(self.durable, bytes):
            self.durable = bytearray(self.durable)
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def replace(self, image: bytes, *, durable: bool) -> None:
        """The whole content at once; durable, or as one change that a power cut keeps or drops."""
        self.visible = image
        self.atomic = not durable
        if durable:
            self.durable = image
            self.pending.clear()

    def freeze(self) -> None:
        self.durable = bytes(self.durable)
        self.visible = bytes(self.visible)

    def copy(self) -> Inode:
        self.freeze()
        twin = Inode()
        twin.durable, twin.visible = self.durable, self.visible
        twin.pending = list(self.pending)
        twin.linked, twin.atomic = self.linked, self.atomic
        return twin


class Directory:
    __slots__ = ("current", "durable")

    def __init__(self) -> None:
        self.current: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node: TypeAlias = Inode | Directory
NameChange: TypeAlias = tuple[Directory, str, "Node | None"]
NameOperation: TypeAlias = tuple[NameChange, ...]


def enter(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def settle(journal: list[NameOperation], directory: Directory) -> list[NameOperation]:
    """Make durable what was done to names of `directory` and what that builds upon; the rest of the journal."""
    touched: set[tuple[Directory, str]] = set()
    settled: list[NameOperation] = []
    rest: list[NameOperation] = []
    for operation in reversed(journal):
        names = {(at, name) for at, name, _ in operation}
        if any(at is directory for at, _ in names) or not touched.isdisjoint(names):
            touched |= names
            settled.append(operation)
        else:
            rest.append(operation)
    for operation in reversed(settled):
        for at, name, node in operation:
            enter(at.durable, name, node)
    return rest[::-1]


# --- what a power cut leaves ----------------------------------------------------------------------------------------


class Fate:
    """Which un-synced things are left, by one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        mixed = self._random.choice(("nothing", "everything", "mixed", "mixed", "mixed", "mixed", "mixed", "mixed"))
        self._policy = {NOTHING_EXTRA: "nothing", EVERYTHING: "everything"}.get(seed, mixed)
        self._name_odds = self._random.choice((0.1, 0.5, 0.9))

    def content(self, inode: Inode) -> bytes:
        if not inode.pending and not inode.atomic:
            policy = "nothing"
        elif self._policy != "mixed":
            policy = self._policy
        elif inode.atomic:
            policy = self._random.choice(("nothing", "everything"))
        else:
            policy = self._random.choice(("nothing", "everything", "sizes", "torn", "sectors"))
        inode.freeze()
        if policy == "nothing":
            return bytes(inode.durable)
        if policy == "everything" and inode.atomic:
            return bytes(inode.visible)
        content = bytearray(inode.durable)
        for change in self._survivors(policy, inode.pending):
            _apply(content, change)
        return bytes(content)

    def names(self, journal: Iterable[NameOperation]) -> Iterator[NameOperation]:
        lost: set[tuple[Directory, str]] = set()
        for operation in journal:
            touched = {(directory, name) for directory, name, _ in operation}
            if lost.isdisjoint(touched) and self._keeps_name():
                yield operation
            else:
                lost |= touched

    def _keeps_name(self) -> bool:
        if self._policy != "mixed":
            return self._policy == "everything"
        return self._random.random() < self._name_odds

    def _survivors(self, policy: str, pending: list[Change]) -> Iterable[Change]:
        if policy == "sizes":
            return [(at, None) if data is None else (at + len(data), b"") for at, data in pending]
        if policy == "torn":
            return self._torn(pending)
        if policy == "sectors":
            return self._sectors(pending)
        return pending

    def _torn(self, pending: list[Change]) -> list[Change]:
        whole = self._random.randrange(len(pending))
        at, data = pending[whole]
        if not data:
            return pending[:whole]
        return [*pending[:whole], (at, data[: self._random.randrange(len(data) + 1)])]

    def _sectors(self, pending: list[Change]) -> Iterator[Change]:
        odds = self._random.random()
        lost: set[int] = set()  # sectors of which no later version reached the platter
        for at, data in pending:
            if not data:
                if self._random.random() < odds:
                    yield at, data
                continue
            start, end = at, at + len(data)
            while start < end:
                sector = start // SECTOR_BYTES
                stop = min(end, (sector + 1) * SECTOR_BYTES)
                if sector not in lost:
                    if self._random.random() < odds:
                        yield start, data[start - at : stop - at]
                    else:
                        lost.add(sector)
                start = stop


def after_cut(root: Directory, journal: list[NameOperation], fate: Fate) -> Directory:
    """The tree that is left, all of it durable."""
    tables: dict[Directory, dict[str, Node]] = {}
    for operation in fate.names(journal):
        for directory, name, node in operation:
            enter(tables.setdefault(directory, dict(directory.durable)), name, node)
    twins: dict[Node, Node] = {}

    def twin(node: Node) -> Node:
        if node not in twins:
            twins[node] = tree(node) if isinstance(node, Directory) else Inode(fate.content(node))
        return twins[node]

    def tree(directory: Directory) -> Directory:
        entries = tables.get(directory, directory.durable)
        left = Directory()
        left.current = {name: twin(entries[name]) for name in sorted(entries)}  # sorted: one seed, one state
        left.durable = dict(left.current)
        return left

    return tree(root)


def after_kill(root: Directory, journal: list[NameOperation]) -> tuple[Directory, list[NameOperation]]:
    """The same tree and journal in new nodes."""
    directories: dict[Directory, Directory] = {}
    inodes: dict[Inode, Inode] = {}

    def twin(node: Node) -> Node:
        if isinstance(node, Directory):
            return tree(node)
        if node not in inodes:
            inodes[node] = node.copy()
        return inodes[node]

    def tree(directory: Directory) -> Directory:
        if directory not in directories:
            copy = directories[directory] = Directory()
            copy.current = {name: twin(node) for name, node in directory.current.items()}
            copy.durable = {name: twin(node) for name, node in directory.durable.items()}
        return directories[directory]

    copies = [tuple((tree(at), name, node and twin(node)) for at, name, node in operation) for operation in journal]
    return tree(root), copies


def files(directory: Directory, path: Path) -> Iterator[tuple[Path, Inode]]:
    for name, node in sorted(directory.current.items()):
        if isinstance(node, Directory):
            yield from files(node, path / name)
        else:
            yield path / name, node
