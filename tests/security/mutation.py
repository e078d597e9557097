"""Inputs bent out of good ones: bytes and texts, from a seed, without knowledge of any format.

Good inputs (vectors, what our own encoders make) are the structure; what bends them is the same for all. A bent input
is often still readable up to the bend, which is where decoders go wrong.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

INPUT_BYTES_MAX = 1 << 20
_EDGES = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 1 << 24, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_WIDE = (*_EDGES, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_PARTS = (
    *(b"\x00", b"\x80", b"\xff", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x0a\x00", b"\x0b"),
    *(b"\x91" * 3_000, b"\x81\xa1a" * 2_000),  # MessagePack that nests deeply
    *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xef\xbb\xbf"),  # what is not UTF-8, or looks like it
)
_WORDS = (
    *("null", "true", "NaN", "Infinity", "-0", "1e999", "9" * 400, "-1", "0x10", "1_000", "\\u0000", "\\ud800", "\x00"),
    *(
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        ",",
        ":",
        ";",
        "=",
        "::",
        "\n",
        "\r",
        "\t",
        "#",
        "&a",
        "*a",
        "!!python/object:os.x",
    ),
    *(
        "../",
        "${HOME}",
        "$${",
        "%s",
        "{{",
        "(" * 40,
        ")" * 40,
        "[" * 200,
        '{"a":' * 60,
        "[" * 3_000,
        '{"a":' * 3_000,
        "\u2028",
        "\u017f",
        "İ",
        "\U0001f600",
    ),
    *("and", "or", "not", "in", "is", "==", ">=", "||", "&&", "10s", "1TiB", "-5", "0", "*", ">", "a..b", "|", ">-"),
)
_NUMBER = re.compile(rb"\d+")


def bent(good: Sequence[bytes], chance: random.Random, *, as_text: bool = False) -> bytes:
    """One of the good inputs with one to six changes."""
    data = bytearray(chance.choice(good))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        kinds = _TEXT_KINDS if as_text and chance.random() < 0.7 else _KINDS
        chance.choice(kinds)(data, good, chance)
    return bytes(data[:INPUT_BYTES_MAX])


Bend = Callable[[bytearray, Sequence[bytes], random.Random], None]


def _at(data: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(data)) if data else 0


def _span(data: bytearray, chance: random.Random) -> tuple[int, int]:
    start = _at(data, chance)
    return start, min(len(data), start + int(chance.expovariate(1 / 12)) + 1)


def _flip(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    if data:
        data[_at(data, chance)] ^= 1 << chance.randrange(8)


def _set(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    if data:
        data[_at(data, chance)] = chance.randrange(256)


def _cut(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    del data[_at(data, chance) :]


def _drop(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    start, end = _span(data, chance)
    del data[start:end]


def _double(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    start, end = _span(data, chance)
    data[start:start] = data[start:end] * chance.choice((1, 1, 1, 1, 1, 1, 2, 2, 50, 50, 50, 2_000))


def _insert(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    at = _at(data, chance)
    data[at:at] = chance.choice(_PARTS)


def _splice(data: bytearray, good: Sequence[bytes], chance: random.Random) -> None:
    """The beginning of this one, the end of another."""
    other = chance.choice(good)
    data[_at(data, chance) :] = other[chance.randrange(len(other) + 1) :]


def _graft(data: bytearray, good: Sequence[bytes], chance: random.Random) -> None:
    """A part of another one in the middle."""
    other = bytearray(chance.choice(good))
    start, end = _span(other, chance)
    at = _at(data, chance)
    data[at : at + chance.choice((0, end - start))] = other[start:end]


def _edge(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    """An integer at an edge, in a width, at a place where one may stand."""
    layout, edges = chance.choice((("<B", _EDGES), ("<H", _EDGES), ("<I", _EDGES), ("<Q", _WIDE), (">I", _EDGES)))
    size = struct.calcsize(layout)
    if len(data) >= size:
        at = chance.randrange(len(data) - size + 1)
        at -= at % size if chance.random() < 0.7 else 0
        struct.pack_into(layout, data, at, chance.choice(edges) & ((1 << 8 * size) - 1))


def _near(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    """An integer one off."""
    if len(data) >= 4:
        at = chance.randrange(len(data) - 3) & ~3
        (value,) = struct.unpack_from("<I", data, at)
        struct.pack_into("<I", data, at, (value + chance.choice((-8, -1, 1, 8, 64))) & 0xFFFFFFFF)


def _swap(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    (a, b), (c, d) = sorted((_span(data, chance), _span(data, chance)))
    if b <= c:
        data[a:d] = data[c:d] + data[b:c] + data[a:b]


def _word(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    at = _at(data, chance)
    data[at:at] = chance.choice(_WORDS).encode("utf-8", "surrogatepass")


def _renumber(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    places = list(_NUMBER.finditer(data))
    if places:
        place = chance.choice(places)
        data[place.start() : place.end()] = str(chance.choice((*_WIDE, -1, 10**30))).encode()


def _lines(data: bytearray, _good: Sequence[bytes], chance: random.Random) -> None:
    """A line is left out, doubled, or moved in or out."""
    lines = bytes(data).split(b"\n")
    at = chance.randrange(len(lines))
    line = lines[at]
    lines[at : at + 1] = chance.choice(([], [line, line], [b"  " + line], [line.lstrip()], [line + b" #"]))
    data[:] = b"\n".join(lines)


_KINDS: tuple[Bend, ...] = (
    _flip,
    _flip,
    _set,
    _cut,
    _drop,
    _double,
    _insert,
    _splice,
    _graft,
    _edge,
    _edge,
    _near,
    _swap,
)
_TEXT_KINDS: tuple[Bend, ...] = (_word, _word, _renumber, _lines, _drop, _double, _graft, _splice)
