"""Who decides what happens with a refused frame: the program's resolver, its key, the key for all, the default."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from holdfast.errors import Category
from holdfast.sender import policies
from holdfast.sender.conf import SenderConfig
from holdfast.sender.happenings import SenderError
from holdfast.sender.policies import Policy, resolving
from holdfast.testing import ManualClock
from tests.unit.sender.cores import errors, halts, make_core, online, refuse, rejects, send
from tests.unit.sender.loopback import PATIENCE_S, Loopback
from tests.unit.sender.test_link import Heard, connect, publish, refuse_first

FIXED = [category for category in Category if category not in policies.KEYS and category.value >= 0]


def refused(category: Category, resolver: object = None, **keys: str) -> SenderError:
    """What becomes of frame 0 when a server refuses it."""
    config = SenderConfig.from_keywords(addr="h", **keys)
    core = make_core(clock=ManualClock(), policy_of=config.policy)
    core._resolve = resolving(resolver) if resolver is not None else None  # type: ignore[arg-type]
    online(core)
    send(core, 0, 3)
    effects = core.received(refuse(0, category))
    assert bool(halts(effects)) is (core.halted is not None)
    found = [*errors(effects), *(item.error for item in rejects(effects))]
    assert len(found) == 1
    assert bool(rejects(effects)) is (found[0].policy is Policy.DROP)
    return found[0]


@pytest.mark.parametrize("category", policies.KEYS)
def test_resolver_goes_before_the_key_the_key_before_all_and_all_before_the_default(category: Category) -> None:
    key = policies.KEYS[category]
    assert refused(category).policy is policies.DEFAULTS[category]
    assert refused(category, on_server_error="retriable").policy is Policy.RETRY
    assert refused(category, on_server_error="retriable", **{key: "halt"}).policy is Policy.HALT
    chosen = refused(category, lambda _error: Policy.DROP, on_server_error="retriable", **{key: "halt"})
    assert chosen.policy is Policy.DROP


@pytest.mark.parametrize("category", FIXED)
def test_resolver_is_not_asked_where_the_policy_is_fixed(category: Category) -> None:
    asked: list[SenderError] = []
    assert refused(category, asked.append).policy is policies.DEFAULTS[category]
    assert asked == []


def test_resolver_is_not_asked_about_a_broken_protocol_or_an_unknown_status() -> None:
    asked: list[SenderError] = []
    for answer in (b"\x7f" + refuse(0)[1:], None):
        core = make_core(clock=ManualClock())
        core._resolve = resolving(asked.append)
        online(core)
        send(core, 0, 3)
        (error,) = errors(core.received(answer) if answer else core.violated("text"))
        assert error.policy is Policy.HALT
        assert core.halted is not None
    assert asked == []


def test_resolver_sees_the_refusal_and_what_would_be_done() -> None:
    asked: list[SenderError] = []
    refused(Category.WRITE_ERROR, asked.append, on_write_error="retriable")
    (error,) = asked
    assert (error.category, error.policy) == (Category.WRITE_ERROR, Policy.RETRY)
    assert (error.first_fsn, error.last_fsn, error.message, error.address) == (0, 0, "no", "h0")


@pytest.mark.parametrize("word", [word for word, policy in policies.WORDS.items() if policy is not None])
def test_resolver_may_answer_with_the_word_of_a_key(word: str) -> None:
    assert refused(Category.SCHEMA_MISMATCH, lambda _error: word).policy is policies.WORDS[word]


def _raises(_error: SenderError) -> Policy:
    raise RuntimeError("a bug of the program")


@pytest.mark.parametrize(
    "resolver",
    [_raises, lambda _error: "sometimes", lambda _error: 7, lambda _error: "auto", lambda _error: None],
    ids=["raises", "unknown word", "no policy", "auto", "nothing"],
)
def test_resolver_without_an_answer_leaves_it_to_the_keys(resolver: Callable[[SenderError], object]) -> None:
    assert refused(Category.PARSE_ERROR, resolver, on_parse_error="retriable").policy is Policy.RETRY


def test_resolver_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "holdfast"):
        refused(Category.PARSE_ERROR, _raises)
    assert "sender.resolver.fail" in caplog.text
    assert "a bug of the program" in caplog.text


def test_sender_drops_what_its_resolver_says_and_goes_on() -> None:
    heard = Heard()

    def resolver(error: SenderError) -> str | None:
        return "drop" if "refused by the test" in error.message else None

    with Loopback(refuse_first(Category.INTERNAL_ERROR)) as server:
        with connect(server, error_policy=resolver, error_handler=heard) as sender:
            assert sender.await_acked(publish(sender, 0, 1, 2), PATIENCE_S)
        assert [error.policy for error in heard.until(1)] == [Policy.DROP]
