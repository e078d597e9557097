"""Sweeps over the bytes of a file: every so many of them in the quick profile, every single one in the long one."""

from __future__ import annotations

import pytest

_HOURS = 3600


def every(quick: int) -> pytest.MarkDecorator:
    """Runs a test with `step` set to `quick`, and in the long profile again with 1."""
    long = pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(2 * _HOURS)])
    return pytest.mark.parametrize("step", [quick, long], ids=lambda step: f"step {step}")


def flipped(data: bytes, at: int, *, mask: int | None = None) -> bytes:
    """The bytes with one of them changed: one bit of it, another one in each byte, unless `mask` says which."""
    return data[:at] + bytes([data[at] ^ (1 << at % 8 if mask is None else mask)]) + data[at + 1 :]


def flipped_bit(data: bytes, bit: int) -> bytes:
    """The bytes with one bit changed, counted from the first one of all."""
    return flipped(data, bit // 8, mask=1 << bit % 8)
