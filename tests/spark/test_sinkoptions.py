"""The options of what is written."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidConfig
from holdfast.spark.sinkoptions import FRAME_BYTES_DEFAULT, read_sink_options

CHANNEL = {"addr": "http://127.0.0.1:9001", "channel": "t"}
TABLE = {"table": "parquet", "path": "/lake/t"}


def test_names_are_compared_without_case_and_defaults_are_filled_in() -> None:
    read = read_sink_options({"ADDR": CHANNEL["addr"], "Channel": "t", "maxframebytes": "1MiB"})
    assert (read.addr, read.channel, read.frame_bytes_max) == (CHANNEL["addr"], "t", 1 << 20)
    assert read_sink_options(CHANNEL).frame_bytes_max == FRAME_BYTES_DEFAULT


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, "addr"),
        ({"addr": CHANNEL["addr"]}, "channel"),
        ({**CHANNEL, "channel": "a,b"}, "channel"),
        ({**CHANNEL, "subscriber": "s"}, "subscriber"),
        ({**CHANNEL, "path": "/x"}, "path"),
        ({**CHANNEL, "token": "a", "tokenFile": "b"}, "tokenFile"),
        ({**CHANNEL, "maxFrameBytes": "0"}, "maxFrameBytes"),
        ({**CHANNEL, "batch": "3"}, "batch"),
        ({**CHANNEL, "batch": "-3", "identity": "x"}, "batch"),
        ({**CHANNEL, "identity": ""}, "identity"),
        ({"table": "csv", "path": "/x"}, "table"),
        ({"table": "parquet"}, "path"),
        ({**TABLE, "channel": "t"}, "channel"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(options: dict[str, str], key: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read_sink_options(options)
    assert caught.value.key == key


def test_a_token_is_never_part_of_a_text() -> None:
    assert "hush" not in repr(read_sink_options({**CHANNEL, "token": "hush"}))


def test_a_stream_is_known_by_its_query_and_nothing_else() -> None:
    with pytest.raises(InvalidConfig, match="id of its query"):
        read_sink_options({**CHANNEL, "identity": "x", "batch": "3"}).check_stream()
