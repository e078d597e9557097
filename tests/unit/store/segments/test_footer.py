"""Finding entries in a footer: the right ones in good bytes, and nothing but `FooterDamaged` in any others."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.segments.footer import FooterDamaged, find_entries, read_footer
from tests.unit.store.segments.samples import damaged

ENTRIES = {"holdfast.crc32c": "00000000", "a": "", "ümlaut": "wert", "long": "x" * 5000}


def arrow_file(metadata: dict[str, str] | None) -> bytes:
    sink = pa.BufferOutputStream()
    # what we look for, in places where it is not ours
    schema = pa.schema([pa.field("holdfast.crc32c", pa.int8(), metadata={"holdfast.crc32c": "00000000"})])
    with pa.ipc.new_file(sink, schema, metadata=metadata) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([1], pa.int8())], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


FILE = arrow_file(ENTRIES)
FOOTER_BYTES = int.from_bytes(FILE[-10:-6], "little")
FOOTER = FILE[-10 - FOOTER_BYTES : -10]


def test_entries_are_found_where_arrow_put_them() -> None:
    footer = read_footer(damaged(FILE))
    assert {key: footer.value(key).decode() for key in footer.spans} == ENTRIES
    assert footer.start + len(footer.data) == len(FILE)
    reader = pa.ipc.open_file(FILE)
    assert {key.decode(): value.decode() for key, value in reader.metadata.items()} == ENTRIES


def test_a_footer_without_metadata_has_no_entries() -> None:
    footer = read_footer(damaged(arrow_file(None)))
    assert footer.spans == {}
    with pytest.raises(FooterDamaged, match=r"no entry holdfast\.crc32c"):
        footer.value("holdfast.crc32c")


@pytest.mark.parametrize(
    "data",
    [b"", b"ARROW1", FILE[:-1], FILE + b"x", b"\xff\xff\xff\x7fARROW1", FILE[:-10] + b"\xff\xff\xff\x0fARROW1"],
)
def test_a_file_without_a_footer_is_damaged(data: bytes) -> None:
    with pytest.raises(FooterDamaged):
        read_footer(damaged(data))


@given(st.binary(max_size=300))
def test_any_bytes_give_entries_or_damage(data: bytes) -> None:
    assert_entries_or_damage(data)


@given(st.integers(0, len(FOOTER) - 1), st.binary(min_size=1, max_size=8))
def test_any_overwritten_footer_gives_entries_or_damage(at: int, patch: bytes) -> None:
    assert_entries_or_damage((FOOTER[:at] + patch + FOOTER[at + len(patch) :])[: len(FOOTER)])


def assert_entries_or_damage(data: bytes) -> None:
    try:
        spans = find_entries(data)
    except FooterDamaged:
        return
    assert all(0 <= span.start <= span.stop <= len(data) for span in spans.values())
