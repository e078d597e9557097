"""Which stored column a name means: names are compared without case, as Spark does (pure).

Promise: a name that is spelled as asked counts before others, and is nobody else's. Where several others would do, it
is an error that names them, and never one of them by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.errors import SchemaMismatch


def meant(asked: Sequence[str], there: Sequence[str], *, channel: str) -> dict[str, str]:
    """By name that is asked for, the one that is there, if there is one."""
    taken, found = set(asked) & set(there), {}
    by_lower: dict[str, list[str]] = {}
    for name in there:
        if name not in taken:
            by_lower.setdefault(name.lower(), []).append(name)
    for name in asked:
        others = [name] if name in taken else by_lower.get(name.lower(), [])
        if len(others) > 1:
            told = ", ".join(others)
            raise SchemaMismatch(
                channel=channel, column=name, expected="one column", found=told, reason="spell it as one of them"
            )
        if others:
            found[name] = others[0]
    return found


def spelled(kind: pa.DataType, like: pa.DataType, *, channel: str) -> pa.DataType:
    """A type with its inner names as `like` spells them: Arrow compares them with case, and gives nulls."""
    if pa.types.is_struct(kind) and pa.types.is_struct(like):
        return pa.struct(_fields(kind, like, channel))
    if pa.types.is_map(kind) and pa.types.is_map(like):
        item = kind.item_field.with_type(spelled(kind.item_type, like.item_type, channel=channel))
        return pa.map_(kind.key_field, item, keys_sorted=kind.keys_sorted)
    if not pa.types.is_list(like):
        return kind
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        value = kind.value_field.with_type(spelled(kind.value_type, like.value_type, channel=channel))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(value, kind.list_size)
        return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)
    return kind


def _fields(kind: pa.DataType, like: pa.DataType, channel: str) -> list[pa.Field]:
    names = meant([field.name for field in like.fields], [field.name for field in kind.fields], channel=channel)
    asked = {there: name for name, there in names.items()}
    return [_field(field, like.field(asked[field.name]), channel) if field.name in asked else field for field in kind]


def _field(field: pa.Field, like: pa.Field, channel: str) -> pa.Field:
    return pa.field(like.name, spelled(field.type, like.type, channel=channel), field.nullable)
