"""CRC32C (Castagnoli), the one checksum of every Holdfast file.

Promise: `crc32c(b"123456789") == 0xE3069283`; `crc32c(b, crc32c(a)) == crc32c(a + b)`. Hardware-backed, 20 GB/s and
more, so nothing is ever left unchecked for speed.
"""

from __future__ import annotations

import crc32c as _hardware

from holdfast.disk.filesystem import Bytes


def crc32c(data: Bytes, value: int = 0) -> int:
    """Checksum of `data`, continuing from `value`."""
    return int(_hardware.crc32c(data, value))
