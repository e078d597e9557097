"""The page `docs/reference/errors.md`, from `errors.py` itself."""

from __future__ import annotations

import inspect
import textwrap

from holdfast import errors

_HEAD = """# Errors

Printed by `python -m tests.tidy.reference`; a test compares.

Every error Holdfast raises on purpose is in `holdfast.errors`, sorted by what the caller can do about it. Catch a
branch: `RetryLater` is worth another attempt, `BadRequest` is a mistake of the caller, `DamagedData` needs [a
person](../howto/recover-from-damage.md). Fields carry the facts of the text for programs.

## The tree

```text
{tree}
```

## Each of them
"""


def errors_markdown() -> str:
    """The page."""
    lines = inspect.cleandoc(errors.__doc__ or "").splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip() == "HoldfastError")
    last = next(number for number, line in enumerate(lines[first:], start=first) if not line.strip())
    tree = textwrap.dedent("\n".join(lines[first:last]))
    rows = ["", "| error | kind of | meaning | fields |", "|---|---|---|---|", *map(_row, _classes())]
    return _HEAD.format(tree=tree) + "\n".join(rows) + "\n"


def _classes() -> list[type[BaseException]]:
    found = [item for item in vars(errors).values() if inspect.isclass(item) and item.__module__ == errors.__name__]
    return [item for item in found if issubclass(item, BaseException)]


def _row(error: type[BaseException]) -> str:
    meaning = " ".join(inspect.cleandoc(error.__doc__ or "").split()).replace("|", "\\|")
    fields = ", ".join(f"`{name}`" for name in _fields(error))
    return f"| `{error.__name__}` | `{error.__bases__[0].__name__}` | {meaning} | {fields} |"


def _fields(error: type[BaseException]) -> list[str]:
    """What the constructor asks for; errors keep each of these under its name."""
    if "__init__" not in vars(error):
        return []
    parameters = list(inspect.signature(error).parameters.values())
    return [item.name for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY]
