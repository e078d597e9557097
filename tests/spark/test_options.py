"""Options of the source: what is refused, and how positions are read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.errors import InvalidConfig
from holdfast.spark.options import BATCH_BYTES_DEFAULT, read_options

PATH = {"path": "d", "channel": "t"}
ADDR = {"addr": "http://127.0.0.1:9001", "channel": "t"}
BOTH = {"addr": "http://h:1,http://h:2", "channel": "t"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"channel": "t"}, "path (an embedded store), addr"),
        ({"path": "d"}, "give 1 to 1000 names"),
        ({**PATH, "chanel": "t"}, "chanel: is no option of holdfast; there are path, addr, channel"),
        ({**PATH, "subscriber": "s"}, "needs addr"),
        ({**PATH, "token": "x"}, "is for addr"),
        ({**ADDR, "token": "x", "tokenFile": "f"}, "both given"),
        ({**PATH, "startingOffsets": "subscriber"}, "no subscriber is given"),
        ({**PATH, "startingOffsets": "yesterday"}, "is no position"),
        ({**PATH, "startingOffsets": "2026-01-31T12:00:00"}, "is no position"),
        ({**PATH, "startingOffsets": '{"t": 0}'}, "is no position"),
        ({**PATH, "startingOffsets": '{"u": 1}'}, "names channel 'u'"),
        ({**PATH, "startingOffsets": "{"}, "is no JSON"),
        ({**ADDR, "channel": "*", "startingOffsets": '{"http://127.0.0.1:9001/t": 1}'}, "none of several in `addr`"),
        ({**BOTH, "startingOffsets": '{"http://h:3/t": 1}'}, "names the server of 'http://h:3/t'"),
        ({**BOTH, "endingOffsets": '{"http://h:1/u": 1}'}, "names channel 'u'"),
        ({**PATH, "endingOffsets": "earliest"}, "cannot be 'earliest'"),
        ({**PATH, "maxEventsPerTrigger": "0"}, "no whole number above 0"),
        ({**PATH, "maxBytesPerTrigger": "1 bucket"}, "not a number with one of the units"),
        ({**PATH, "failOnDataLoss": "maybe"}, "neither true nor false"),
        ({**ADDR, "addr": "127.0.0.1:9001"}, "is no admin address"),
        ({**ADDR, "addr": "http://u:p@h:1"}, "carries a credential"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read_options(options)
    assert told in str(caught.value)


def test_option_names_are_compared_without_case() -> None:
    read = read_options({**PATH, "MAXEVENTSPERTRIGGER": "5", "includemetadata": "TRUE", "maxBytesPerTrigger": "2MiB"})
    assert (read.limits.events, read.include_metadata, read.limits.size_bytes) == (5, True, 2 << 20)
    assert read_options(PATH).limits.size_bytes == BATCH_BYTES_DEFAULT


def test_channels_are_names_lists_and_globs() -> None:
    assert read_options({**PATH, "channel": "a, b"}).names == ("a", "b")
    read = read_options({**PATH, "channel": "a.*,b"})
    assert read.names is None
    assert [read.matches(name) for name in ("a.x", "b", "bb", "a")] == [True, True, False, False]


def test_positions_are_words_times_and_seqs_by_channel() -> None:
    noon = read_options({**PATH, "startingOffsets": "2026-01-31T12:00:00Z"}).starting
    assert noon.of("t") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    read = read_options({"path": "d", "channel": "t*", "startingOffsets": '{"t": 17, "t2": "latest"}'}).starting
    assert [read.of(name) for name in ("t", "t2", "t3")] == [17, "latest", "earliest"]


def test_options_of_one_mode_are_refused_in_the_other() -> None:
    with pytest.raises(InvalidConfig, match="maxEventsPerTrigger: is for streams"):
        read_options({**PATH, "maxEventsPerTrigger": "1"}).check_batch()
    with pytest.raises(InvalidConfig, match="endingOffsets: is for batches"):
        read_options({**PATH, "endingOffsets": "latest"}).check_stream()


def test_a_token_is_never_part_of_a_text() -> None:
    assert "hf_secret" not in repr(read_options({**ADDR, "token": "hf_secret"}))
