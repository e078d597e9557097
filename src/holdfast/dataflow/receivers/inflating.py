"""Compressed bodies, bounded by what comes out of them."""

from __future__ import annotations

import zlib

import pyarrow as pa

from holdfast.errors import Category, LimitReached, WireError

ENCODINGS = ("", "identity", "gzip", "deflate", "zstd")


def inflate(body: bytes, encoding: str, *, bytes_max: int) -> bytes:
    """The body without its compression; `LimitReached` as soon as there is more than `bytes_max`."""
    if encoding in ("", "identity"):
        data = body
    elif encoding in ("gzip", "deflate"):
        data = _zlib(body, encoding, bytes_max)
    elif encoding == "zstd":
        data = _zstd(body, bytes_max)
    else:
        raise _bad(f"content encoding {encoding!r} is not one of {', '.join(filter(None, ENCODINGS))}")
    if len(data) > bytes_max:
        raise LimitReached(what="an inflated request", limit="max_request_size", allowed=bytes_max)
    return data


def _zlib(body: bytes, encoding: str, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj(wbits=31 if encoding == "gzip" else 15)
    try:
        data = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise _bad(f"is not {encoding}: {error}") from None
    if len(data) <= bytes_max and not inflater.eof:
        raise _bad(f"is {encoding} that ends too early")
    return data


def _zstd(body: bytes, bytes_max: int) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            data: bytes = stream.read(bytes_max + 1)
    except (OSError, pa.ArrowException) as error:
        raise _bad(f"is not zstd: {error}") from None
    return data


def _bad(reason: str) -> WireError:
    return WireError(category=Category.PARSE_ERROR, reason=reason, place="the body")
