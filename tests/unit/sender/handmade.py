"""Slot files written byte by byte, without the code under test: what other clients leave on disk."""

from __future__ import annotations

import struct

import crc32c

# Files written by another client, as they are: two frames "one" and "two-two" from FSN 42 on; symbols in two chunks.
TWO_FRAMES = bytes.fromhex(
    "53463031010000002a00000000000000cb04fb711f010000"
    "a60ecb49030000006f6e65"
    "3af600070700000074776f2d74776f"
    "0000000000000000000000000000"
)
SYMBOLS = bytes.fromhex("53594431010000000104036f6e6589318d70020a0374776f057468726565a2444d7f")


def header(base: int, *, flags: int = 0, created_micros: int = 0) -> bytes:
    """The 24 bytes at the start of a segment."""
    return struct.pack("<4sBBHQq", b"SF01", 1, flags, 0, base, created_micros)


def frame(payload: bytes) -> bytes:
    """One frame."""
    length = struct.pack("<I", len(payload))
    return struct.pack("<I", crc32c.crc32c(length + payload)) + length + payload


def segment(base: int, payloads: list[bytes], *, flags: int = 0, size_bytes: int = 0) -> bytes:
    """A whole segment file, zero up to its size."""
    data = header(base, flags=flags) + b"".join(map(frame, payloads))
    return data.ljust(size_bytes, b"\0")


def record(magic: bytes, generation: int, *values: int) -> bytes:
    """One record of a watermark or manifest."""
    body = struct.pack(f"<4sIq{len(values)}q", magic, 1, generation, *values).ljust(60, b"\0")
    return body + struct.pack("<I", crc32c.crc32c(body))


def two_records(first: bytes, second: bytes) -> bytes:
    """A watermark or manifest file of 8192 bytes."""
    return first.ljust(4096, b"\0") + second.ljust(4096, b"\0")


def watermark(fsn: int, *, generation: int = 2) -> bytes:
    """A watermark file with one record in the place of its generation."""
    halves = [b"", b""]
    halves[generation & 1] = record(b"AKW1", generation, fsn)
    return two_records(*halves)


def manifest(head_base: int, active_base: int) -> bytes:
    """A manifest file."""
    return two_records(record(b"SFM1", 2, head_base, active_base), b"")


def old_watermark(fsn: int) -> bytes:
    """The form of 16 bytes, without checksum."""
    return struct.pack("<4sIq", b"AKW1", 0, fsn)
