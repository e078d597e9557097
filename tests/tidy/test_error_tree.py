"""The tree drawn at the top of errors.py is the tree of its classes."""

from __future__ import annotations

import inspect
import re

from holdfast import errors

# The branches in front of a name are four characters wide per level: "│   ├── Name   what it means"
_DRAWN = re.compile(r"^(?P<branches>[ │├└─]*)(?P<name>[A-Z]\w+)\s*(?P<meaning>.*)$")


def drawn_parents(text: str) -> dict[str, str]:
    """Class name to parent name, read from the drawing."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.strip() == "HoldfastError")
    margin = len(lines[start]) - len("HoldfastError")
    path = ["HoldfastError"]
    parents = {"HoldfastError": "Exception"}
    for line in lines[start + 1 :]:
        match = _DRAWN.match(line)
        if match is None:
            break
        depth = (len(match["branches"]) - margin) // 4
        path[depth:] = [match["name"]]
        parents[match["name"]] = path[depth - 1]
        assert match["meaning"], f"{match['name']} is drawn without saying what it means"
    return parents


def real_parents() -> dict[str, str]:
    """Class name to parent name, in order of definition."""
    classes = [item for item in vars(errors).values() if inspect.isclass(item) and item.__module__ == errors.__name__]
    return {item.__name__: item.__bases__[0].__name__ for item in classes if issubclass(item, BaseException)}


def test_drawn_error_tree_is_the_real_one() -> None:
    assert drawn_parents(errors.__doc__ or "") == real_parents()


def test_drawn_error_tree_has_the_order_of_the_code() -> None:
    assert list(drawn_parents(errors.__doc__ or "")) == list(real_parents())


def test_every_error_says_in_a_docstring_what_it_means() -> None:
    assert [name for name in real_parents() if not getattr(errors, name).__doc__] == []
