"""Taking a mapping of a file apart, key by key, and noting every objection with its place (pure).

Promise: nothing is ignored and nothing is guessed. A value of another type, a missing key and a key that nobody asked
for are each one problem with the key as it is written in the file, and reading goes on to find the others.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from holdfast.config.values import parse_time, show
from holdfast.errors import InvalidConfig

_Word = TypeVar("_Word", bound=str)


class Problems:
    """What is wrong with a file."""

    def __init__(self, file: Path | None = None, lines: Mapping[str, int] | None = None) -> None:
        self._file = file
        self._lines = lines or {}
        self.found: list[InvalidConfig] = []

    def add(self, key: str, reason: str) -> None:
        """Object to what stands at a key."""
        problem = InvalidConfig(key=key, reason=reason, file=self._file, line=line_of(key, self._lines))
        if all((known.key, known.reason) != (key, reason) for known in self.found):
            self.found.append(problem)

    def in_order(self) -> list[InvalidConfig]:
        """By line."""
        return sorted(self.found, key=lambda problem: problem.line)


def line_of(key: str, lines: Mapping[str, int]) -> int:
    """The line of a key, or of the nearest section around it; 0 if there is none."""
    parts = re.split(r"(?=[.\[])", key)
    return next((lines[at] for n in range(len(parts), 0, -1) if (at := "".join(parts[:n])) in lines), 0)


class Section:
    """A mapping whose keys are taken one after the other; `end` objects to what is left."""

    def __init__(self, values: object, place: str, problems: Problems) -> None:
        self.place = place
        self.problems = problems
        self._values: dict[str, object] = {}
        self._known: list[str] = []
        if isinstance(values, Mapping):
            self._values = {str(key): value for key, value in values.items()}
        elif values is not None:
            problems.add(place, f"{show(values)} is not a mapping of keys to values")

    def at(self, key: str) -> str:
        """How errors write a key of this section."""
        return f"{self.place}.{key}" if self.place else key

    def refuse(self, key: str, reason: str) -> None:
        """Object to a key."""
        self.problems.add(self.at(key), reason)

    def has(self, key: str) -> bool:
        """Whether it is given; asking makes it known."""
        if key not in self._known:
            self._known.append(key)
        return self._values.get(key) is not None

    def take(self, key: str) -> object:
        """Its value as it is; None if it is not given."""
        self.has(key)
        return self._values.get(key)

    def names(self) -> list[str]:
        """All that are given; for sections whose keys are names."""
        self._known = list(self._values)
        return list(self._values)

    def text(self, key: str, *, required: str = "", default: str = "") -> str:
        """A text; `required` says what to give if there is none. A number that was meant as a text is one."""
        value = self.take(key)
        if value is None or value == "":
            if required:
                self.refuse(key, f"is missing: give {required}")
            return default
        if isinstance(value, bool) or not isinstance(value, str | int):
            self.refuse(key, f"{show(value)} is not a text")
            return default
        return value if isinstance(value, str) else str(value)

    def word(self, key: str, words: Sequence[_Word], *, default: _Word) -> _Word:
        """One of some words."""
        value = self.take(key)
        if value is None:
            return default
        found = next((word for word in words if word == value), None)
        if found is None:
            self.refuse(key, f"{show(value)} is not one of {', '.join(words)}")
        return found or default

    def texts(self, key: str, *, required: str = "") -> tuple[str, ...]:
        """A list of texts, or a text that stands for a list of one."""
        value = self.take(key)
        if value is None:
            if required:
                self.refuse(key, f"is missing: give {required}")
            return ()
        items: list[object] = list(value) if isinstance(value, list) else [value]
        for index, item in enumerate(items):
            if not isinstance(item, str) or not item:
                self.problems.add(f"{self.at(key)}[{index}]", f"{show(item)} is not a text")
        return tuple(item for item in items if isinstance(item, str))

    def flag(self, key: str, *, default: bool) -> bool:
        """true or false."""
        value = self.take(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.refuse(key, f"{show(value)} is neither true nor false")
        return default

    def count(self, key: str, *, default: int) -> int:
        """A whole number, not negative."""
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.refuse(key, f"{show(value)} is not a whole number from 0 on")
            return default
        return value

    def time(self, key: str, *, default: int = 0, required: str = "") -> int:
        """Nanoseconds of a time with its unit."""
        value = self.take(key)
        if value is None:
            if required:
                self.refuse(key, f"is missing: give {required}")
            return default
        try:
            found = parse_time(value)
        except ValueError as error:
            self.refuse(key, str(error))
            return default
        if found <= 0 and required:
            self.refuse(key, f"{show(value)} is not above 0")
        return found

    def settings(self, key: str) -> dict[str, str]:
        """A mapping from names to plain values, as the texts that Spark takes."""
        section = Section(self.take(key), self.at(key), self.problems)
        found: dict[str, str] = {}
        for name in section.names():
            value = section.take(name)
            if isinstance(value, bool):
                found[name] = str(value).lower()
            elif isinstance(value, str | int):
                found[name] = str.__str__(value) if isinstance(value, str) else str(value)
            else:
                section.refuse(name, f"{show(value)} is not a text, a number, true or false")
        return found

    def section(self, key: str) -> Section:
        """A section in this one; empty if it is not given."""
        return Section(self.take(key), self.at(key), self.problems)

    def end(self, what: str) -> None:
        """Object to keys that nobody asked for."""
        for key in self._values:
            if key not in self._known:
                close = difflib.get_close_matches(key, self._known, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                self.refuse(key, f"is no key of {what}{hint}; there are {', '.join(sorted(self._known))}")
