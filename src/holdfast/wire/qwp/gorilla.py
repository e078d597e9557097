"""Timestamps as differences of differences, in bits.

    i64 first | i64 second | for each further one a code, lowest bit first | zeros up to a byte
    0          the same difference again          1 bit
    10 + 7     signed change of the difference    9 bits
    110 + 9                                       12 bits
    1110 + 12                                     16 bits
    1111 + 32                                     36 bits

One value has no second one. A code says where the next begins, so finding the codes is a loop of one addition per value
over a table that numpy made; all else is done for many values at once, a piece of the message at a time.
"""

from __future__ import annotations

import numpy as np

from holdfast.wire.qwp.reader import Numbers, Reader

PIECE_BYTES = 1 << 16
"""Bits are spread to bytes; this many bytes of message become half a megabyte."""

_CODE_BITS = np.array([1, 9, 12, 16, 36], np.uint8)
_CODE_BITS_MAX = 36
_PREFIX_BITS = np.array([1, 2, 3, 4, 4], np.uint64)
_VALUE_BITS = np.array([0, 7, 9, 12, 32], np.uint64)
_ONES = np.array([0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0, 4], np.uint8)
"""Ones at the low end of four bits: the number of the code."""
_PREFIXES = np.array([0b0, 0b01, 0b011, 0b0111, 0b1111], np.uint64)


# -------------------------------------------------------------------------------------------------------------- reading


def decode(reader: Reader, count: int) -> Numbers:
    """`count` timestamps at the reader's place."""
    head = reader.numbers("<i8", min(count, 2)).astype(np.int64)
    if count <= 2:
        return head
    changes = _read_changes(reader, count - 2)
    differences = np.empty(count, np.int64)
    differences[0] = head[0]
    with np.errstate(over="ignore"):  # as the reference: differences wrap
        differences[1] = head[1] - head[0]
        differences[2:] = differences[1] + np.cumsum(changes)
        return np.cumsum(differences)


def _read_changes(reader: Reader, count: int) -> Numbers:
    reader.need((count + 7) // 8, f"{count} timestamps")
    source = reader.bytes[reader.offset :]
    pieces: list[Numbers] = []
    position = 0
    while count > 0:
        starts, position = _find_codes(source, position, count)
        if position > 8 * len(source):
            raise reader.refuse("the message ends inside a timestamp")
        pieces.append(_read_codes(source, starts))
        count -= len(starts)
    reader.offset += (position + 7) // 8
    return np.concatenate(pieces)


def _find_codes(source: Numbers, position: int, count: int) -> tuple[Numbers, int]:
    """Where the codes of the next piece begin, in bits, and where the code behind them begins."""
    base = position // 8
    size = min(PIECE_BYTES, (count * _CODE_BITS_MAX + 14) // 8)
    bits = np.unpackbits(source[base : base + size + 1], bitorder="little")
    bits = np.concatenate((bits, np.zeros(3, np.uint8)))
    ones = bits[:-3].copy()
    run = ones.copy()
    for i in (1, 2, 3):
        run &= bits[i : len(bits) - 3 + i]
        ones += run
    steps = _CODE_BITS[ones].tobytes()
    starts: list[int] = []
    place, end = position - 8 * base, min(8 * size, len(steps))
    while place < end and len(starts) < count:
        starts.append(place)
        place += steps[place]
    if not starts:
        return np.empty(0, np.int64), 8 * len(source) + 1  # nothing is left to read
    return np.array(starts, np.int64) + 8 * base, place + 8 * base


def _read_codes(source: Numbers, starts: Numbers) -> Numbers:
    first = int(starts[0]) // 8
    window = np.zeros(int(starts[-1]) // 8 - first + 8, np.uint8)
    known = source[first : first + len(window)]
    window[: len(known)] = known
    words: Numbers = np.ndarray(len(window) - 7, "<u8", window, 0, (1,))  # the eight bytes at every byte
    codes = words[starts // 8 - first] >> (starts % 8).astype(np.uint64)
    kinds = _ONES[codes & np.uint64(15)]
    values = codes >> _PREFIX_BITS[kinds]
    spare = np.uint64(64) - _VALUE_BITS[kinds]
    is_set = kinds > 0
    changes = np.zeros(len(starts), np.int64)
    changes[is_set] = (values[is_set] << spare[is_set]).view(np.int64) >> spare[is_set].view(np.int64)
    return changes


# -------------------------------------------------------------------------------------------------------------- writing


def encode(values: Numbers) -> bytes | None:
    """The bytes of these timestamps; None if a difference changes too much, or there are too few to gain anything."""
    if len(values) < 3:
        return None
    with np.errstate(over="ignore"):
        changes = np.diff(np.diff(values))
    if changes.min() < -(1 << 31) or changes.max() >= 1 << 31:
        return None
    kinds = np.select(
        [changes == 0, *[(changes >= -half) & (changes < half) for half in (1 << 6, 1 << 8, 1 << 11)]], [0, 1, 2, 3], 4
    )
    masks = (np.uint64(1) << _VALUE_BITS[kinds]) - np.uint64(1)
    codes = _PREFIXES[kinds] | ((changes.view(np.uint64) & masks) << _PREFIX_BITS[kinds])
    lengths = _CODE_BITS[kinds].astype(np.int64)
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    bits = (np.repeat(codes, lengths) >> within.astype(np.uint64)) & np.uint64(1)
    return values[:2].astype("<i8").tobytes() + np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
