"""Type codes, flags and sentinels of QWP."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

MAGIC = b"QWP1"
VERSION = 1
HEADER_BYTES = 12
FLAG_DEFER = 0x01
FLAG_GORILLA = 0x04
FLAG_DELTA = 0x08
FLAGS = FLAG_DEFER | FLAG_GORILLA | FLAG_DELTA

DESIGNATED = "timestamp"
"""What the column without a name is called here."""
DIMENSIONS_MAX = 15
"""A store takes columns nested 16 deep."""
LONG_NULL = np.iinfo(np.int64).min
INT_NULL = np.iinfo(np.int32).min


class ColumnType(IntEnum):
    """The byte behind a column's name."""

    BOOLEAN = 0x01
    BYTE = 0x02
    SHORT = 0x03
    INT = 0x04
    LONG = 0x05
    FLOAT = 0x06
    DOUBLE = 0x07
    SYMBOL = 0x09
    TIMESTAMP = 0x0A
    DATE = 0x0B
    UUID = 0x0C
    LONG256 = 0x0D
    GEOHASH = 0x0E
    VARCHAR = 0x0F
    TIMESTAMP_NANOS = 0x10
    DOUBLE_ARRAY = 0x11
    LONG_ARRAY = 0x12
    DECIMAL64 = 0x13
    DECIMAL128 = 0x14
    DECIMAL256 = 0x15
    CHAR = 0x16
    BINARY = 0x17
    IPV4 = 0x18


TIMES = frozenset({ColumnType.TIMESTAMP, ColumnType.TIMESTAMP_NANOS})
"""Types the designated timestamp may have; with the Gorilla flag their values have one more byte in front."""
