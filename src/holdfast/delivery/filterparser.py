"""From the text of a filter to its tree: a small grammar, bounded, never executed as code. Pure.

    or           and { ("or" | "||") and }
    and          not { ("and" | "&&") not }
    not          ("not" | "!") not | comparison
    comparison   sum [ ("==" | "=" | "!=" | "<>" | "<" | "<=" | ">" | ">=") sum
                     | ["not"] "in" "(" literal { "," literal } ")" | "is" ["not"] "null" ]
    sum          product { ("+" | "-") product }
    product      factor { ("*" | "/") factor }
    factor       "-" factor | literal | column | "exists" "(" column ")" | "(" or ")"

Promise: any text gives a tree or an `InvalidFilter` that names the character it stumbled at. A tree has at most
`OPERATORS_MAX` operators and is at most `DEPTH_MAX` deep, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import InvalidFilter

TEXT_CHARS_MAX = 1024
OPERATORS_MAX = 64
DEPTH_MAX = 32
LITERALS_MAX = 256
"""Of one `in`."""

Value: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Literal:
    """A value."""

    value: Value


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of a struct."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unary:
    """`-`, `not`, `exists`, `is null`."""

    name: str
    of: Node


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic, comparison, `and`, `or`."""

    name: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class OneOf:
    """`in`."""

    of: Node
    values: tuple[Value, ...]


Node: TypeAlias = "Literal | Column | Unary | Binary | OneOf"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"[^"]+")
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<sign>==|!=|<>|<=|>=|\|\||&&|[=<>!+\-*/(),.])
    )""",
    re.VERBOSE,
)
_COMPARISONS = {"==": "==", "=": "==", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_LITERALS: dict[str, Value] = {"true": True, "false": False, "null": None}
_KEYWORDS = {"and", "or", "not", "in", "is", "exists", *_LITERALS}
_END = "end"


def parse(text: str) -> Node:
    """The tree of a filter."""
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidFilter(at=TEXT_CHARS_MAX, reason=f"it has more than {TEXT_CHARS_MAX} characters")
    return _Parser(list(_tokens(text))).whole()


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise InvalidFilter(at=at, reason=f"{text[at]!r} is not expected here")
        kind = match.lastgroup
        assert kind is not None
        word = match.group(kind)
        if kind == "word" and word.lower() in _KEYWORDS:
            kind, word = "keyword", word.lower()
        yield _Token(kind, word, match.start(match.lastgroup or 0))
        at = match.end()
    yield _Token(_END, "", len(text))


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._operators = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._or()
        self._expect(_END, "the end, or an operator")
        return node

    # -- tokens -----------------------------------------------------------------------------------------------------

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _accept(self, *texts: str) -> _Token | None:
        token = self._next
        if token.kind in {"sign", "keyword"} and token.text in texts:
            self._at += 1
            return token
        return None

    def _expect(self, kind: str, what: str) -> _Token:
        token = self._next
        if token.kind != kind:
            raise self._refusal(what)
        self._at += 1
        return token

    def _expect_sign(self, text: str) -> None:
        if self._accept(text) is None:
            raise self._refusal(repr(text))

    def _refusal(self, what: str) -> InvalidFilter:
        token = self._next
        found = repr(token.text) if token.kind != _END else "the end"
        return InvalidFilter(at=token.at, reason=f"{what} is expected here, found {found}")

    def _count(self, token: _Token) -> None:
        self._operators += 1
        if self._operators > OPERATORS_MAX:
            raise InvalidFilter(at=token.at, reason=f"more than {OPERATORS_MAX} operators")

    # -- rules ------------------------------------------------------------------------------------------------------

    def _or(self) -> Node:
        node = self._and()
        while (token := self._accept("or", "||")) is not None:
            self._count(token)
            node = Binary("or", node, self._and())
        return node

    def _and(self) -> Node:
        node = self._not()
        while (token := self._accept("and", "&&")) is not None:
            self._count(token)
            node = Binary("and", node, self._not())
        return node

    def _not(self) -> Node:
        token = self._accept("not", "!")
        if token is None:
            return self._comparison()
        self._count(token)
        return Unary("not", self._not())

    def _comparison(self) -> Node:
        left = self._sum()
        token = self._next
        if self._accept(*_COMPARISONS) is not None:
            self._count(token)
            return Binary(_COMPARISONS[token.text], left, self._sum())
        if self._accept("is") is not None:
            self._count(token)
            negated = self._accept("not") is not None
            self._expect_keyword("null")
            return Unary("exists" if negated else "is null", left)
        negated = self._accept("not") is not None
        if self._accept("in") is not None:
            self._count(token)
            found = OneOf(left, self._literals())
            return Unary("not", found) if negated else found
        if negated:
            raise self._refusal("'in'")
        return left

    def _expect_keyword(self, text: str) -> None:
        if self._accept(text) is None:
            raise self._refusal(repr(text))

    def _literals(self) -> tuple[Value, ...]:
        self._expect_sign("(")
        values = [self._literal()]
        while self._accept(",") is not None:
            if len(values) == LITERALS_MAX:
                raise InvalidFilter(at=self._next.at, reason=f"more than {LITERALS_MAX} values in one 'in'")
            values.append(self._literal())
        self._expect_sign(")")
        return tuple(values)

    def _literal(self) -> Value:
        negative = self._accept("-") is not None
        node = self._factor()
        if not isinstance(node, Literal) or (negative and not isinstance(node.value, int | float)):
            raise self._refusal("a literal")
        return -node.value if negative and isinstance(node.value, int | float) else node.value

    def _sum(self) -> Node:
        node = self._product()
        while (token := self._accept("+", "-")) is not None:
            self._count(token)
            node = Binary(token.text, node, self._product())
        return node

    def _product(self) -> Node:
        node = self._factor()
        while (token := self._accept("*", "/")) is not None:
            self._count(token)
            node = Binary(token.text, node, self._factor())
        return node

    def _factor(self) -> Node:
        token = self._next
        if self._accept("-") is not None:
            self._count(token)
            return Unary("-", self._factor())
        if self._accept("(") is not None:
            return self._nested(token)
        if self._accept("exists") is not None:
            self._count(token)
            self._expect_sign("(")
            column = self._column()
            self._expect_sign(")")
            return Unary("exists", column)
        if token.kind in {"word", "quoted"}:
            return self._column()
        return self._value(token)

    def _nested(self, token: _Token) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidFilter(at=token.at, reason=f"more than {DEPTH_MAX} levels of parentheses")
        node = self._or()
        self._expect_sign(")")
        self._depth -= 1
        return node

    def _column(self) -> Column:
        path = [self._name()]
        while self._accept(".") is not None:
            path.append(self._name())
        return Column(tuple(path))

    def _name(self) -> str:
        token = self._next
        if token.kind not in {"word", "quoted"}:
            raise self._refusal("a column")
        self._at += 1
        return token.text.strip('"') if token.kind == "quoted" else token.text

    def _value(self, token: _Token) -> Literal:
        if token.kind == "keyword" and token.text in _LITERALS:
            self._at += 1
            return Literal(_LITERALS[token.text])
        if token.kind == "text":
            self._at += 1
            return Literal(token.text[1:-1].replace("''", "'"))
        number = self._expect("number", "a column, a value or '('").text
        if not number.isdigit():
            return Literal(float(number))
        if len(number) > 18:
            raise InvalidFilter(at=token.at, reason="a whole number has at most 18 digits")
        return Literal(int(number))
