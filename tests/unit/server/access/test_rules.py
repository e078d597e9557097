"""Access rules: default deny once there is one, deny wins; limits from the narrowest pattern that states them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.principals import VERBS, AccessRule, read_limits, read_rules
from holdfast.server.access.rules import Limits, is_allowed, limits_of

NAMES = st.sampled_from(["a", "b", "ab"])
CHANNELS = st.sampled_from(["x", "x.y", "x.y.z", "z"])
RULES = st.lists(
    st.builds(
        lambda principal, allow, verbs, channels: read_rules(
            [{"principal": principal, "allow" if allow else "deny": verbs, "channels": channels}]
        )[0],
        st.sampled_from(["*", "a", "a*", "*b", "c"]),
        st.booleans(),
        st.lists(st.sampled_from([*VERBS, "*"]), min_size=1, max_size=2),
        st.lists(st.sampled_from([">", "*", "x.>", "x.*", "x.y", "z"]), min_size=1, max_size=2),
    ),
    max_size=6,
)
ASKED = st.tuples(NAMES, st.sampled_from(VERBS), CHANNELS)


@pytest.mark.guarantee("G12")
@given(RULES, ASKED)
def test_rules_say_what_their_words_say(rules: list[AccessRule], asked: tuple[str, str, str]) -> None:
    principal, verb, channel = asked
    relevant = [
        rule
        for rule in rules
        if verb in rule.verbs
        and rule.principal.matches(principal)
        and any(pattern.matches(channel) for pattern in rule.channels)
    ]
    allowed, denied = any(rule.allow for rule in relevant), any(not rule.allow for rule in relevant)
    assert is_allowed(rules, principal, verb, channel) is (not rules or (allowed and not denied))


@pytest.mark.guarantee("G12")
@given(RULES, ASKED)
def test_a_deny_wins_wherever_it_stands(rules: list[AccessRule], asked: tuple[str, str, str]) -> None:
    principal, verb, channel = asked
    deny = read_rules([{"principal": principal, "deny": [verb], "channels": [channel]}])
    for position in range(len(rules) + 1):
        assert not is_allowed([*rules[:position], *deny, *rules[position:]], principal, verb, channel)


@pytest.mark.guarantee("G12")
@given(RULES, ASKED, st.randoms(use_true_random=False))
def test_the_order_of_rules_does_not_matter(
    rules: list[AccessRule], asked: tuple[str, str, str], chance: random.Random
) -> None:
    shuffled = list(rules)
    chance.shuffle(shuffled)
    assert is_allowed(shuffled, *asked) is is_allowed(rules, *asked)


@pytest.mark.guarantee("G12")
@given(RULES, RULES, ASKED)
def test_a_rule_for_others_gives_nobody_anything(
    rules: list[AccessRule], more: list[AccessRule], asked: tuple[str, str, str]
) -> None:
    principal, verb, channel = asked
    foreign = [rule for rule in more if not rule.decides(principal, verb, channel)]
    if rules:
        assert is_allowed([*rules, *foreign], *asked) is is_allowed(rules, *asked)
    elif foreign:
        assert not is_allowed(foreign, *asked)


def test_without_rules_everything_is_allowed() -> None:
    assert all(is_allowed((), "anyone", verb, channel) for verb in VERBS for channel in ("x", ""))


def test_the_first_rule_shuts_the_door_for_everyone_else() -> None:
    rules = read_rules([{"principal": "a", "allow": "publish", "channels": "x"}])
    assert is_allowed(rules, "a", "publish", "x")
    assert not is_allowed(rules, "a", "publish", "y")
    assert not is_allowed(rules, "a", "consume", "x")
    assert not is_allowed(rules, "b", "publish", "x")


def test_limits_come_from_the_narrowest_pattern_that_states_them() -> None:
    limits = read_limits(
        {
            "app-1": {"connections": 0},
            "*": {"connections": 5, "frames_per_second": 10},
            "app-*": {"connections": 7, "bytes_per_second": "1KiB"},
        }
    )
    assert limits_of(limits, "x") == Limits(connections=5, frames_per_second=10)
    assert limits_of(limits, "app-2") == Limits(connections=7, frames_per_second=10, bytes_per_second=1024)
    assert limits_of(limits, "app-1") == Limits(connections=0, frames_per_second=10, bytes_per_second=1024)
