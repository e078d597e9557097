"""Actions on a document with trees in it: what they do, and when they make no sense. Pure.

A document is a JSON object. A tree in it is an object with `items`, by id, and `tree`, nested `{id, children}`:

    {"explorer": {"items": {"a": {"name": "A"}}, "tree": [{"id": "a", "children": []}]}}

    action      does
    set         puts a value at a path; two objects are merged at their first level unless `replace`
    unset       removes what is at a path
    init        replaces the document
    treePush    adds an item (its `id` is its key, not a part of it) and a node for it
    treeDelete  removes a node with all below it, and their items
    treeUpdate  merges into an item, or replaces it
    treeMove    moves a node with all below it

`apply` never changes the document it is given; what an action does not touch is shared. `Nonsense` says what is wrong
and where. Under `strict` an action must leave every item in its tree: no second item of an id, no parent or sibling
that is not there, no update of an item that is not there. Without it such actions do what the first implementation of
the protocol did. A move into the node itself or below it is refused either way: it would lose the subtree. A tree that
is not there is taken for an empty one, because a client may have begun with one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

ROOT = "_root"
TREE_DEPTH_MAX = 256
"""Levels of a tree: beyond any real one, and what can be written as JSON everywhere."""

Document = dict[str, Any]
Payload = Mapping[str, Any]


class Nonsense(Exception):
    """An action that cannot be done. `field` is the part of its payload that is to blame."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def apply(document: Document, action: str, payload: Payload, *, strict: bool = True) -> Document:
    """The document after an action whose payload has the right shape."""
    return _ACTIONS[action](document, payload, strict)


# -- paths ------------------------------------------------------------------------------------------------------------


def _set(document: Document, payload: Payload, _strict: bool) -> Document:
    *path, last = payload["target"].split(".")
    changed, parent = _opened(document, path)
    value, found = payload["value"], parent.get(last)
    if not payload.get("options", {}).get("replace", False):
        if isinstance(value, list):
            raise Nonsense("value", "a list needs options.replace")
        if isinstance(found, dict) and isinstance(value, dict):
            value = {**found, **value}
    parent[last] = value
    return changed


def _unset(document: Document, payload: Payload, _strict: bool) -> Document:
    *path, last = payload["target"].split(".")
    found: Any = document
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict) or last not in found:
        return document
    changed, parent = _opened(document, path)
    del parent[last]
    return changed


def _init(_document: Document, payload: Payload, _strict: bool) -> Document:
    value: Document = payload["value"]
    return value


def _opened(document: Document, path: list[str]) -> tuple[Document, Document]:
    """A copy along a path, and the object at its end; what is no object there becomes an empty one."""
    changed = current = dict(document)
    for key in path:
        found = current.get(key)
        current[key] = dict(found) if isinstance(found, dict) else {}
        current = current[key]
    return changed, current


# -- trees ------------------------------------------------------------------------------------------------------------


def _push(document: Document, payload: Payload, strict: bool) -> Document:
    value, options = payload["value"], payload.get("options", {})
    changed, items, tree = _tree_of(document, payload["target"])
    item_id = value["id"]
    if strict and (item_id in items or _path_to(tree, item_id) is not None):
        raise Nonsense("value.id", "duplicate id")
    items[item_id] = _without_id(value)
    return _inserted(changed, payload["target"], {"id": item_id, "children": []}, options, strict=strict)


def _delete(document: Document, payload: Payload, _strict: bool) -> Document:
    changed, items, tree = _tree_of(document, payload["target"])
    item_id = payload["options"]["id"]
    path = _path_to(tree, item_id)
    items.pop(item_id, None)
    if path is not None:
        nodes = _copied(tree, path[:-1])
        for node in _below(nodes.pop(path[-1])):
            items.pop(str(node.get("id")), None)
    return changed


def _update(document: Document, payload: Payload, strict: bool) -> Document:
    options, value = payload["options"], payload["value"]
    changed, items, _ = _tree_of(document, payload["target"])
    found = items.get(options["id"])
    if strict and found is None:
        raise Nonsense("options.id", "there is no such item")
    before = found if isinstance(found, dict) and not options.get("replace", False) else {}
    items[options["id"]] = _without_id({**before, **value})
    return changed


def _move(document: Document, payload: Payload, strict: bool) -> Document:
    options = payload["options"]
    changed, _, tree = _tree_of(document, payload["target"])
    path = _path_to(tree, options["id"])
    if path is None:
        return document
    nodes = _copied(tree, path[:-1])
    node = nodes.pop(path[-1])
    parent = options.get("parent", ROOT)
    if parent == options["id"] or any(inner.get("id") == parent for inner in _below(node)):
        raise Nonsense("options.parent", "a node cannot move into itself or below itself")
    return _inserted(changed, payload["target"], node, options, strict=strict)


def _inserted(document: Document, target: str, node: Document, options: Payload, *, strict: bool) -> Document:
    """The document, which is a copy already, with a node put where the options say."""
    _, _, tree = _at(document, target)
    parent = options.get("parent", ROOT)
    path = [] if parent == ROOT else _path_to(tree, parent)
    if path is None:
        if strict:
            raise Nonsense("options.parent", "there is no such parent")
        return document  # its item has no place in the tree then
    if len(path) + _height(node) > TREE_DEPTH_MAX:
        raise Nonsense("options.parent", f"the tree would be deeper than {TREE_DEPTH_MAX} levels")
    nodes = _copied(tree, path)
    nodes.insert(_place(nodes, options.get("position", "first"), strict=strict), node)
    return document


def _place(nodes: list[Document], position: Any, *, strict: bool) -> int:
    if position == "last":
        return len(nodes)
    if not isinstance(position, dict):
        return 0
    sibling = position.get("after") or position.get("before")
    found = next((place for place, node in enumerate(nodes) if _id_of(node) == sibling), None)
    is_after = bool(position.get("after"))
    if found is not None:
        return found + 1 if is_after else found
    if strict:
        raise Nonsense("options.position", "there is no such sibling")
    return len(nodes) if is_after else 0


def _tree_of(document: Document, target: str) -> tuple[Document, Document, list[Document]]:
    """A copy of the document down to a tree's items and top nodes, and those two."""
    changed, found = _opened(document, target.split("."))
    items, tree = found.get("items") or {}, found.get("tree") or []
    if not isinstance(items, dict) or not isinstance(tree, list):
        raise Nonsense("target", "there is no tree at this path")
    found["items"], found["tree"] = dict(items), list(tree)
    return changed, found["items"], found["tree"]


def _at(document: Document, target: str) -> tuple[Document, Document, list[Document]]:
    found: Any = document
    for key in target.split("."):
        found = found[key]
    return document, found["items"], found["tree"]


def _path_to(tree: list[Any], item_id: str) -> list[int] | None:
    """Places of the nodes that lead to an id, itself last."""
    waiting: list[tuple[list[int], list[Any]]] = [([], tree)]
    while waiting:
        path, nodes = waiting.pop()
        for place, node in enumerate(nodes):
            if _id_of(node) == item_id:
                return [*path, place]
            children = node.get("children") if isinstance(node, dict) else None
            if isinstance(children, list) and children:
                waiting.append(([*path, place], children))
    return None


def _copied(tree: list[Document], path: list[int]) -> list[Document]:
    """The children at the end of a path, after copying all that leads there; `tree` is a copy already."""
    nodes = tree
    for place in path:
        node = nodes[place] = dict(nodes[place])
        children = node.get("children")
        nodes = node["children"] = list(children) if isinstance(children, list) else []
    return nodes


def _below(node: Document) -> Iterator[Document]:
    waiting = [node]
    while waiting:
        children = waiting.pop().get("children")
        inner = [child for child in children if isinstance(child, dict)] if isinstance(children, list) else []
        yield from inner
        waiting += inner


def _height(node: Document) -> int:
    height, level = 0, [node]
    while level and height <= TREE_DEPTH_MAX:
        height += 1
        level = [child for one in level for child in one.get("children") or () if isinstance(child, dict)]
    return height


def _id_of(node: Any) -> Any:
    return node.get("id") if isinstance(node, dict) else None


def _without_id(value: Payload) -> Document:
    return {key: inner for key, inner in value.items() if key != "id"}


_ACTIONS: dict[str, Callable[[Document, Payload, bool], Document]] = {
    "set": _set,
    "unset": _unset,
    "init": _init,
    "treePush": _push,
    "treeDelete": _delete,
    "treeUpdate": _update,
    "treeMove": _move,
}
ACTIONS = tuple(_ACTIONS)
