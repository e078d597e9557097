"""The connect string: grammar, every key, contradictions, secrets, and the page that is printed from the table."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import Kind
from holdfast.errors import Category, InvalidConfig
from holdfast.sender.conf import ENVIRONMENT, SenderConfig, rows
from holdfast.sender.confpage import connect_string_markdown
from holdfast.sender.connectstring import CONTROL, split
from holdfast.sender.foreignkeys import FOREIGN
from holdfast.sender.keys import Address, Key
from holdfast.sender.policies import Policy

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "connect-string.md"
SECRET = "hunter;2-ünïcode"


def conf(rest: str = "", *, schema: str = "ws") -> SenderConfig:
    return SenderConfig.from_conf(f"{schema}::addr=localhost;{rest}")


def refusal(rest: str, *, schema: str = "ws") -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        conf(rest, schema=schema)
    return caught.value


# --- grammar --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("ws::", []),
        ("ws::a=1", [("a", "1")]),
        ("ws::a=1;", [("a", "1")]),
        ("ws::a=1;b=2;", [("a", "1"), ("b", "2")]),
        ("ws::a=x;;y;b=2", [("a", "x;y"), ("b", "2")]),
        ("ws::a=;;;b=2", [("a", ";"), ("b", "2")]),
        ("ws::a=;b=", [("a", ""), ("b", "")]),
        ("ws::a=b=c;", [("a", "b=c")]),
        ("ws::a=ends;;", [("a", "ends;")]),
        ("ws::a=ü ::;", [("a", "ü ::")]),
    ],
)
def test_pairs_are_split_as_the_grammar_says(text: str, pairs: list[tuple[str, str]]) -> None:
    assert split(text) == ("ws", pairs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "start with"),
        ("localhost:9000", "start with"),
        ("ws:addr=h;", "start with"),
        ("ws::addr", "character 5, after the schema"),
        ("ws::addr=h;;;", "addr"),
        ("ws::addr=h; sf_dir=x", "character 12, after the value of addr"),
        ("ws::addr=h;sf dir=x", "character 12"),
        ("ws::addr=h\n;", "U+000A"),
        ("ws::addr=h;token=a\x85b;", "U+0085"),
        ("ws::" + "a" * 70000, "more than"),
    ],
)
def test_text_outside_the_grammar_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        SenderConfig.from_conf(text)
    assert reason in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_and_nothing_else_happens(text: str) -> None:
    for candidate in (text, f"ws::{text}", f"ws::addr=h;{text}", f"ws::addr={text}"):
        with suppress(InvalidConfig):
            SenderConfig.from_conf(candidate)


@given(st.dictionaries(st.sampled_from(["client_id", "username", "token"]), st.text(min_size=1, max_size=20)))
def test_any_value_survives_its_escapes(values: dict[str, str]) -> None:
    text = "ws::" + "".join(f"{key}={value.replace(';', ';;')};" for key, value in values.items())
    if any(CONTROL.search(value) for value in values.values()):
        with pytest.raises(InvalidConfig, match="control character"):
            split(text)
    else:
        assert dict(split(text)[1]) == values


# --- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("addr=h;", [Address("h", 9000)]),
        ("addr=h:1;", [Address("h", 1)]),
        ("addr=h1:1,h2;addr=h3:3;", [Address("h1", 1), Address("h2", 9000), Address("h3", 3)]),
        ("addr=[::1];", [Address("::1", 9000)]),
        ("addr=[fe80::1]:9009;", [Address("fe80::1", 9009)]),
        ("addr=10.0.0.1:65535;", [Address("10.0.0.1", 65535)]),
    ],
)
def test_addresses_accumulate_in_order(text: str, addresses: list[Address]) -> None:
    assert SenderConfig.from_conf(f"ws::{text}").addr == tuple(addresses)
    assert SenderConfig.from_conf(f"wss::{text}").addr == tuple(addresses)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "required"),
        ("addr=;", "empty"),
        ("addr=a,,b;", "empty"),
        ("addr=a,a:9000;", "duplicate addr endpoint a:9000"),
        ("addr=a;addr=a;", "duplicate addr endpoint"),
        ("addr=h:0;", "1..65535"),
        ("addr=h:65536;", "1..65535"),
        ("addr=h:x;", "1..65535"),
        ("addr=::1;", "brackets"),
        ("addr=[::1;", "not [address]:port"),
        ("addr=[h]:1;", "IPv6"),
        ("addr=[::1]9000;", "not [address]:port"),
        ("addr=http://h;", "port"),
        ("addr=:9000;", "host name"),
    ],
)
def test_address_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        SenderConfig.from_conf(f"ws::{text}")
    assert caught.value.key == "addr"
    assert reason in caught.value.reason


def test_address_is_written_as_it_is_read() -> None:
    assert [str(address) for address in conf("addr=[::1]:7;").addr] == ["localhost:9000", "[::1]:7"]


def test_keyword_addresses_may_be_a_list() -> None:
    assert SenderConfig.from_keywords(addr=["a", "b:1"]).addr == (Address("a", 9000), Address("b", 1))


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("64k", 65536), ("64KB", 65536), ("1m", 1 << 20), ("1Mb", 1 << 20), ("1g", 1 << 30)],
)
def test_sizes_are_powers_of_1024(text: str, value: int) -> None:
    assert conf(f"sf_max_segment_bytes={text};").sf_max_segment_bytes == value


@pytest.mark.parametrize("text", ["", "1.5m", "1mib", "-1", "1 k", "k", "1x", "99999999999999999999"])
def test_size_that_is_none_is_refused(text: str) -> None:
    assert refusal(f"sf_max_segment_bytes={text};").key == "sf_max_segment_bytes"


@pytest.mark.parametrize(("text", "value"), [("on", True), ("off", False), ("true", True), ("false", False)])
def test_switches_take_their_four_words(text: str, value: bool) -> None:
    assert conf(f"sf_dir=/d;drain_orphans={text};").drain_orphans is value


@pytest.mark.parametrize("text", ["drain_orphans=1", "drain_orphans=ON", "drain_orphans=", "request_durable_ack=true"])
def test_switch_with_another_word_is_refused(text: str) -> None:
    assert "on | off" in refusal(f"sf_dir=/d;{text};").reason


@pytest.mark.parametrize(
    ("text", "value"),
    [("off", "off"), ("false", "off"), ("on", "on"), ("true", "on"), ("sync", "on"), ("async", "async")],
)
def test_initial_connect_retry_knows_its_other_spellings(text: str, value: str) -> None:
    assert conf(f"initial_connect_retry={text};").initial_connect_retry == value


def test_reconnect_keys_do_not_change_the_start() -> None:
    given_keys = "reconnect_max_duration_millis=1;reconnect_initial_backoff_millis=1;reconnect_max_backoff_millis=2;"
    assert conf(given_keys).initial_connect_retry == "off"


@pytest.mark.parametrize("key", ["auto_flush_rows", "auto_flush_bytes", "auto_flush_interval"])
def test_automatic_flushes_can_be_off(key: str) -> None:
    assert getattr(conf(f"{key}=off;"), key) == 0
    assert getattr(conf(f"{key}=0;"), key) == 0


@pytest.mark.parametrize("durability", ["memory", "periodic", "flush", "append"])
def test_all_four_durabilities_are_taken(durability: str) -> None:
    assert conf(f"sf_dir=/d;sf_durability={durability};").sf_durability == durability


@pytest.mark.parametrize("key", ["close_flush_timeout_millis", "durable_ack_keepalive_interval_millis"])
def test_times_that_may_be_negative_are(key: str) -> None:
    assert getattr(conf(f"{key}=-1;"), key) == -1


def test_cap_depends_on_the_mode_and_holds_two_segments() -> None:
    assert conf().total_bytes_max == 128 << 20
    assert conf("sf_dir=/d;").total_bytes_max == 10 << 30
    assert conf("sf_max_segment_bytes=100m;").total_bytes_max == 200 << 20
    assert conf("sf_max_total_bytes=8m;").total_bytes_max == 8 << 20
    assert "two segments" in refusal("sf_max_total_bytes=7m;").reason


def numbers() -> list[tuple[Key, int, bool]]:
    """Each numeric key with values at and beyond its bounds."""
    found = []
    for row in rows().values():
        if row.kind in (Kind.COUNT, Kind.SIZE):
            found += [(row, row.low - 1, bool(row.zero) and row.low == 1), (row, row.high + 1, False)]
    return found


@pytest.mark.parametrize(("row", "value", "allowed"), numbers(), ids=lambda item: getattr(item, "key", str(item)))
def test_number_beyond_its_bounds_is_refused(row: Key, value: int, allowed: bool) -> None:
    if allowed:
        assert row.parse(str(value)) == value
    else:
        with pytest.raises(InvalidConfig) as caught:
            row.parse(str(value))
        assert caught.value.key == row.key


@pytest.mark.parametrize("name", rows())
def test_every_default_is_one_that_may_be_given(name: str) -> None:
    row = rows()[name]
    assert row.why
    if row.default is not None:
        assert row.parse(row.default) == row.default
        assert row.parse(row.written(row.default)) == row.default
    assert name == row.key


@pytest.mark.parametrize("name", rows())
def test_value_of_a_wrong_type_is_refused(name: str) -> None:
    for value in (None, 1.5, object(), [], b"x"):
        with pytest.raises(InvalidConfig):
            SenderConfig.from_conf("ws::addr=h;", **{name: value})


# --- unknown, foreign, twice ----------------------------------------------------------------------------------------


def test_unknown_key_is_named_with_the_closest_one_and_what_it_takes() -> None:
    error = refusal("sf_durabilty=flush;")
    assert error.key == "sf_durabilty"
    assert "did you mean sf_durability (memory | periodic | flush | append)?" in error.reason


def test_key_like_no_other_gets_the_list() -> None:
    assert "known are addr," in refusal("zzz=1;").reason


def test_keys_are_case_sensitive() -> None:
    assert "did you mean sf_dir" in refusal("SF_dir=x;").reason


@pytest.mark.parametrize("key", FOREIGN)
def test_key_of_reading_or_pooling_is_refused_with_the_reason(key: str) -> None:
    assert refusal(f"{key}=1;").reason == FOREIGN[key]


@pytest.mark.parametrize(
    "text", ["token=a;token=a;", "sf_dir=/a;sf_dir=/b;", "username=a;user=b;", "codec=qwp;codec=qwp;"]
)
def test_key_given_twice_is_refused(text: str) -> None:
    assert "duplicate key" in refusal(text).reason


def test_aliases_mean_the_same_key() -> None:
    read = conf("user=u;pass=p;catchup_cap_gap_min_escalation_window_millis=7;")
    assert (read.username, read.password) == ("u", "p")
    assert read.catch_up_cap_gap_min_escalation_window_millis == 7


@pytest.mark.parametrize("schema", ["http", "https", "tcp", "udp", "WS", "qwp"])
def test_other_schemas_are_refused(schema: str) -> None:
    assert "ws, wss" in refusal("", schema=schema).reason


# --- contradictions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "key"),
    [
        ("token=t;username=u;password=p;", "token"),
        ("token=t;password=p;", "token"),
        ("username=u;", "username"),
        ("password=p;", "password"),
        ("tls_verify=on;", "tls_verify"),
        ("tls_roots=/r;", "tls_roots"),
        ("sf_dir=/d;sf_sync_interval_millis=5;", "sf_sync_interval_millis"),
        ("sf_dir=/d;sf_durability=flush;sf_sync_interval_millis=5;", "sf_sync_interval_millis"),
        ("sf_durability=flush;", "sf_durability"),
        ("drain_orphans=on;", "drain_orphans"),
        ("sf_dir=/d;max_background_drainers=2;", "max_background_drainers"),
        ("auto_flush=off;auto_flush_rows=5;", "auto_flush_rows"),
        ("auto_flush_bytes=5m;", "auto_flush_bytes"),
        ("reconnect_initial_backoff_millis=6000;", "reconnect_initial_backoff_millis"),
        ("init_buf_size=2m;max_buf_size=1m;", "init_buf_size"),
        ("sf_dir=;", "sf_dir"),
        ("sender_id=a/b;", "sender_id"),
        ("sender_id=..;", "sender_id"),
    ],
)
def test_keys_that_contradict_are_refused(rest: str, key: str) -> None:
    assert refusal(rest).key == key


@pytest.mark.parametrize(
    ("rest", "key"),
    [
        ("tls_verify=unsafe_off;tls_roots=/r;", "tls_verify"),
        ("tls_roots_password=p;", "tls_roots_password"),
        ("tls_ca=pem_file;", "tls_ca"),
    ],
)
def test_tls_keys_that_contradict_are_refused(rest: str, key: str) -> None:
    assert refusal(rest, schema="wss").key == key


def test_tls_keys_belong_to_wss() -> None:
    read = conf("tls_ca=pem_file;tls_roots=/r;", schema="wss")
    assert (read.tls, read.tls_roots) == (True, "/r")


# --- doors ----------------------------------------------------------------------------------------------------------


def test_keywords_and_string_mean_the_same() -> None:
    text = "ws::addr=h:1;sf_dir=/d;sf_max_segment_bytes=1m;drain_orphans=on;auto_flush_rows=off;"
    same = SenderConfig.from_keywords(
        addr="h:1", sf_dir="/d", sf_max_segment_bytes=1 << 20, drain_orphans=True, auto_flush_rows="off"
    )
    assert SenderConfig.from_conf(text) == same
    assert SenderConfig.from_conf("ws::addr=h:1;sf_dir=/d;", sf_max_segment_bytes="1m", drain_orphans="on",
                                  auto_flush_rows=0) == same  # fmt: skip


def test_key_in_string_and_keyword_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="duplicate key"):
        SenderConfig.from_conf("ws::addr=h;sf_dir=/d;", sf_dir="/d")


def test_environment_holds_a_connect_string() -> None:
    assert SenderConfig.from_env({ENVIRONMENT: "ws::addr=h;"}) == SenderConfig.from_conf("ws::addr=h;")
    with pytest.raises(InvalidConfig, match=ENVIRONMENT):
        SenderConfig.from_env({})


def test_config_made_by_a_program_is_checked_too() -> None:
    with pytest.raises(InvalidConfig, match="sender_id"):
        SenderConfig(addr=(Address("h", 1),), sender_id="a/b")
    with pytest.raises(InvalidConfig, match="sf_durability"):
        dataclasses.replace(conf(), sf_durability="always")


# --- secrets --------------------------------------------------------------------------------------------------------


def test_secrets_are_in_no_text_of_the_config() -> None:
    escaped = SECRET.replace(";", ";;")
    basic = conf(f"username=u;password={escaped};")
    assert basic.password == SECRET
    bearer = conf(f"token={escaped};")
    roots = conf(f"tls_roots=/r;tls_roots_password={escaped};", schema="wss")
    for text in (repr(basic), str(basic), repr(bearer), repr(roots)):
        assert "hunter" not in text


@pytest.mark.parametrize(
    "text",
    [
        "ws::addr=h;token=hunter2\x01;",
        "ws::addr=h;username=u;password=abc;hunter2;sf_dir=/d;",
        "ws::addr=h;username=u;password=abc;hunter2=x;sf_dir=/d;",
        "ws::addr=h;token=hunter2;username=u;password=hunter2;",
        "ws::addr=u:hunter2@h;",
        "ws::addr=h;password=hunter2;",
        "ws::addr=h;token=hunter2;token=hunter2;",
        "wss::addr=h;tls_roots_password=hunter2;",
    ],
)
def test_secrets_are_in_no_error(text: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        SenderConfig.from_conf(text)
    assert "hunter2" not in str(caught.value)


def test_secret_of_a_wrong_type_is_not_shown() -> None:
    with pytest.raises(InvalidConfig) as caught:
        SenderConfig.from_keywords(addr="h", token=b"hunter2")
    assert "hunter2" not in str(caught.value)


# --- policies -------------------------------------------------------------------------------------------------------


def test_policies_are_those_of_the_contract_unless_chosen() -> None:
    plain = conf()
    assert {category.name: plain.policy(category).value for category in Category} == {
        "SCHEMA_MISMATCH": "drop",
        "WRITE_ERROR": "drop",
        "PARSE_ERROR": "halt",
        "INTERNAL_ERROR": "halt",
        "SECURITY_ERROR": "halt",
        "PROTOCOL_VIOLATION": "halt",
        "UNKNOWN": "halt",
        "NOT_WRITABLE": "retriable_other",
        "DICTIONARY_GAP": "retriable",
    }


def test_category_wins_over_the_rule_for_all() -> None:
    chosen = conf("on_server_error=retriable;on_schema_error=terminal;on_write_error=auto;")
    assert chosen.policy(Category.SCHEMA_MISMATCH) is Policy.HALT
    assert chosen.policy(Category.WRITE_ERROR) is Policy.RETRY
    assert chosen.policy(Category.PROTOCOL_VIOLATION) is Policy.HALT


@pytest.mark.parametrize(
    ("word", "policy"),
    [
        ("halt", Policy.HALT),
        ("terminal", Policy.HALT),
        ("drop", Policy.DROP),
        ("retriable", Policy.RETRY),
        ("retriable_other", Policy.RETRY_OTHER),
    ],
)
def test_both_generations_of_policy_words_are_understood(word: str, policy: Policy) -> None:
    assert conf(f"on_internal_error={word};").policy(Category.INTERNAL_ERROR) is policy


# --- the page -------------------------------------------------------------------------------------------------------


def test_connect_string_page_is_what_the_code_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == connect_string_markdown(), (
        "refresh it: python -m holdfast.sender > docs/reference/connect-string.md"
    )
