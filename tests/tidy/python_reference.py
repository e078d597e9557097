"""The page `docs/reference/python-api.md`, from the signatures and docstrings of what is public."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import holdfast
import holdfast.spark
from holdfast.consumer.messages import Delivery, Message
from holdfast.reading import Events
from holdfast.store.subscribers.subscriber import Lease, Subscriber

_HEAD = """# Python

Printed by `python -m tests.tidy.reference`; a test compares, and runs the examples.

What a program imports. Errors are [on their own page](errors.md), options of senders and consumers are keys of the
[connect string](connect-string.md).
"""
_EXAMPLE = re.compile(r"((?:^>>> .*\n(?:^(?!\s*$).*\n?)*)+)", re.MULTILINE)
_DEFAULT_OBJECT = re.compile(r"<[^>]+>")

PUBLIC: tuple[tuple[str, Any], ...] = (
    ("holdfast.Sender", holdfast.Sender),
    ("holdfast.AsyncSender", holdfast.AsyncSender),
    ("holdfast.Consumer", holdfast.Consumer),
    ("holdfast.AsyncConsumer", holdfast.AsyncConsumer),
    ("Message", Message),
    ("Delivery", Delivery),
    ("holdfast.read", holdfast.read),
    ("Events", Events),
    ("holdfast.Store", holdfast.Store),
    ("Subscriber", Subscriber),
    ("Lease", Lease),
    ("holdfast.spark.session", holdfast.spark.session),
    ("holdfast.spark.register", holdfast.spark.register),
    ("holdfast.spark.land", holdfast.spark.land),
    ("holdfast.spark.write_batch", holdfast.spark.write_batch),
    ("holdfast.spark.report", holdfast.spark.report),
)


def python_markdown() -> str:
    """The page."""
    return _HEAD + "".join(part for name, item in PUBLIC for part in _entry(name, item))


def _entry(name: str, item: Any) -> Iterator[str]:
    if not inspect.isclass(item):
        yield f"\n## {name}\n{_signature(name.rpartition('.')[2], item)}{_text(item)}"
        return
    yield f"\n## {name}\n{_text(item)}"
    for key, member in vars(item).items():
        if key.startswith("_"):
            continue
        found = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        title = f"\n### {item.__name__}.{key}\n"
        if isinstance(found, property):
            yield f"{title}{_text(found)}"
        elif inspect.isfunction(found):
            yield f"{title}{_signature(f'{item.__name__}.{key}', found)}{_text(found)}"


def _signature(name: str, found: Callable[..., Any]) -> str:
    """As it stands in the code, without `self` and `cls`; long ones with an argument a line."""
    signature = inspect.signature(found)
    kept = [item for item in signature.parameters.values() if item.name not in {"self", "cls"}]
    text = _DEFAULT_OBJECT.sub("…", str(signature.replace(parameters=kept))).replace("'", "")
    if len(name) + len(text) > 100:
        texts = [_DEFAULT_OBJECT.sub("…", str(item)).replace("'", "") for item in kept]
        starred = next((at for at, item in enumerate(kept) if item.kind is inspect.Parameter.KEYWORD_ONLY), None)
        if starred is not None and not any(item.kind is inspect.Parameter.VAR_POSITIONAL for item in kept):
            texts.insert(starred, "*")
        end = text[text.rindex(") ->") :] if ") ->" in text else ")"
        text = "(\n    " + ",\n    ".join(texts) + ",\n" + end
    awaited = "await " if inspect.iscoroutinefunction(found) else ""
    return f"\n```py\n{awaited}{name}{text}\n```\n"


def _text(item: Any) -> str:
    """The docstring, with its examples fenced."""
    text = inspect.cleandoc(item.__doc__ or "") + "\n"
    return "\n" + _EXAMPLE.sub(lambda found: f"```pycon\n{found[1].rstrip()}\n```\n", text)
