"""What an exception of Spark says, in one line, and whether trying again may help (pure).

Errors of our source and sinks reach the driver as text: a traceback of a Python worker inside of an exception of the
JVM. The class of ours is found by its full name in that text.
"""

from __future__ import annotations

import re

from holdfast import errors
from holdfast.errors import (
    AccessRefused,
    BadRequest,
    ColumnWidened,
    DamagedData,
    EventsGone,
    HoldfastError,
    Incompatible,
    TierMismatch,
    TierRefused,
)

REASON_CHARS_MAX = 500
FINAL = (BadRequest, AccessRefused, DamagedData, EventsGone, Incompatible, TierMismatch, TierRefused)
"""Of ours: what the same call will say again."""
PASSING = (ColumnWidened,)
"""Of these: what a new start mends, because it takes the schema that the channel has by then."""
FINAL_OF_SPARK = frozenset(
    {
        "AnalysisException",
        "ParseException",
        "ModuleNotFoundError",
        "UNSUPPORTED_STREAMING_OPERATOR",
        "STREAMING_STATEFUL_OPERATOR",
        "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
        "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        "CANNOT_WRITE_STATE_STORE",
    }
)
"""Of Spark's: the query itself is wrong, or its checkpoint is that of another one."""

_OURS = re.compile(r"holdfast\.errors\.(\w+): ([^\n]*)")
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Interrupt)): ([^\n]*)", re.MULTILINE)
_PY4J = "An error occurred while calling"
"""Says no more than this itself; what the JVM says follows."""
_JAVA = re.compile(r"^(?:: |Caused by: )(?:[\w.$]+\.)?(\w+: [^\n]*)", re.MULTILINE)
_SPARK_CLASS = re.compile(r"\[([A-Z_]+)(?:\.[A-Z_]+)*\]")


def kind_of(error: BaseException) -> type[HoldfastError] | None:
    """The class of ours that is behind an error, if one is."""
    if isinstance(error, HoldfastError):
        return type(error)
    found = _OURS.findall(str(error))
    kind = getattr(errors, found[-1][0], None) if found else None
    return kind if isinstance(kind, type) and issubclass(kind, HoldfastError) else None


def reason_of(error: BaseException) -> str:
    """Its cause in one line."""
    text = str(error).strip()
    return (
        _bounded(text.partition("\n")[0]) if isinstance(error, HoldfastError) else reason_in(text, type(error).__name__)
    )


def reason_in(text: str, otherwise: str = "") -> str:
    """The cause that a text of Spark's names, in one line; `otherwise` if it names none."""
    ours, python = _OURS.findall(text), _PYTHON.findall(text)
    if ours or python:
        return _bounded(ours[-1][1] if ours else ": ".join(python[-1]))
    if text.startswith(_PY4J) and (java := _JAVA.findall(text)):  # the exception, and its first cause
        return _bounded("; ".join(dict.fromkeys(java[:2])))
    return _bounded(next((line.strip() for line in text.splitlines() if line.strip()), otherwise))


def _bounded(line: str) -> str:
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 1] + "…"


def is_retriable(error: BaseException) -> bool:
    """Whether the same query may go well the next time."""
    kind = kind_of(error)
    if kind is not None:
        return issubclass(kind, PASSING) or not issubclass(kind, FINAL)
    text = str(error)
    words = {type(error).__name__, *(name for name, _ in _PYTHON.findall(text)), *_SPARK_CLASS.findall(text)}
    return not words & FINAL_OF_SPARK
