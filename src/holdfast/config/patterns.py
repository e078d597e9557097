"""Patterns over channel names: which channels an override, or a subscriber, means.

A pattern is tokens separated by `.`. A literal token stands for itself, `*` for any one token, `>` for all the rest:
one token or more, so it comes last. `orders.*` means `orders.eu` but neither `orders` nor `orders.eu.west`; `orders.>`
means both `orders.eu` and `orders.eu.west`. A channel name is a pattern that means only itself.

Patterns have a total order, widest first: token by token from the left, `>` before `*` before a literal, literals by
their text, the shorter before the longer. Two facts follow, and tests hold them:

- whatever a pattern covers comes after it, so the order never contradicts "narrower";
- of the patterns that mean one channel no two are equal, so "the narrowest" is always one.

The order also decides between patterns that merely overlap: for `a.b.c`, `a.b.>` is narrower than `a.*.c`, since the
first token from the left that differs is a literal there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

PATTERN_CHARS_MAX = 128
"""As long as a channel name: a longer pattern means no channel."""

_LITERAL = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_RANKS = {">": 0, "*": 1}
_LITERAL_RANK = 2


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern. Make it with `Pattern.parse`."""

    text: str
    tokens: tuple[str, ...] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """The pattern, or `ValueError` saying what is wrong with it."""
        if len(text) > PATTERN_CHARS_MAX:
            raise ValueError(f"a pattern has at most {PATTERN_CHARS_MAX} characters, this one has {len(text)}")
        tokens = tuple(text.split("."))
        for index, token in enumerate(tokens):
            _check_token(token, first=index == 0, last=index == len(tokens) - 1)
        return cls(text, tokens)

    @property
    def is_literal(self) -> bool:
        """Whether it means exactly one channel."""
        return not any(token in _RANKS for token in self.tokens)

    @property
    def order(self) -> tuple[tuple[int, str], ...]:
        """The sort key of the total order: widest first."""
        return tuple((_RANKS.get(token, _LITERAL_RANK), token) for token in self.tokens)

    def matches(self, channel: str) -> bool:
        """Whether it means that channel."""
        return _covers(self.tokens, tuple(channel.split(".")))

    def covers(self, other: Pattern) -> bool:
        """Whether it means every channel that `other` means."""
        return _covers(self.tokens, other.tokens)


def _check_token(text: str, *, first: bool, last: bool) -> None:
    if not text:
        raise ValueError("a token between dots is empty")
    if text == ">" and not last:
        raise ValueError("'>' stands for all the rest, so it must be the last token")
    if text in _RANKS:
        return
    if _LITERAL.fullmatch(text) is None:
        raise ValueError(f"token {text!r} is neither '*' nor '>' nor letters, digits, '_' and '-'")
    if first and text[0] in "_-":
        raise ValueError("a channel name begins with a letter or a digit")


def _covers(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    for index, text in enumerate(wide):
        if index == len(narrow):
            return False
        if text == ">":
            return True
        if text != narrow[index] and (text != "*" or narrow[index] == ">"):
            return False
    return len(wide) == len(narrow)
