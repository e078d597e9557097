"""What may be committed: actions on trees, in order and only once committed; payloads under schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidConfig
from holdfast.sync.validation import Kept, Key, ModelValidator, TreeValidator, read_schemas
from holdfast.sync.validation.actions import ACTIONS, TREE_DEPTH_MAX, Nonsense, apply
from holdfast.sync.validation.shapes import check_action
from holdfast.wire.sync import Code, Committed, Item
from tests.unit.sync.world import World, seed, seed_client, seed_event

TREE = {
    "explorer": {
        "items": {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}},
        "tree": [{"id": "a", "children": [{"id": "b", "children": []}]}, {"id": "c", "children": []}],
    }
}


def push(item_id: str, **options: Any) -> dict[str, Any]:
    return {"target": "explorer", "value": {"id": item_id, "n": 0}, "options": options}


def on(**options: Any) -> dict[str, Any]:
    return {"target": "explorer", "options": options}


@pytest.mark.parametrize(
    ("action", "payload", "field"),
    [
        ("treePush", push("a"), "value.id"),
        ("treePush", push("d", parent="nobody"), "options.parent"),
        ("treePush", push("d", position={"after": "b"}), "options.position"),
        ("treePush", push("d", parent="a", position={"before": "c"}), "options.position"),
        ("treeUpdate", {**on(id="nobody"), "value": {}}, "options.id"),
        ("treeMove", on(id="a", parent="nobody"), "options.parent"),
    ],
)
def test_strict_policy_refuses_what_would_leave_an_item_outside(
    action: str, payload: dict[str, Any], field: str
) -> None:
    check_action(action, payload)
    with pytest.raises(Nonsense) as caught:
        apply(TREE, action, payload, strict=True)
    assert caught.value.field == field
    apply(TREE, action, payload, strict=False)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("parent", ["a", "b"])
def test_move_into_itself_is_refused_whatever_the_policy(parent: str, strict: bool) -> None:
    with pytest.raises(Nonsense, match="into itself"):
        apply(TREE, "treeMove", on(id="a", parent=parent), strict=strict)


def test_first_push_makes_the_tree() -> None:
    assert apply({}, "treePush", push("a")) == {
        "explorer": {"items": {"a": {"n": 0}}, "tree": [{"id": "a", "children": []}]}
    }


def test_tree_has_a_bound_on_its_depth() -> None:
    document: dict[str, Any] = {}
    for level in range(TREE_DEPTH_MAX):
        options = {"parent": f"n{level - 1}"} if level else {}
        document = apply(document, "treePush", push(f"n{level}", **options))
    with pytest.raises(Nonsense, match="deeper"):
        apply(document, "treePush", push("last", parent=f"n{TREE_DEPTH_MAX - 1}"))
    document = apply(document, "treePush", push("side"))
    with pytest.raises(Nonsense, match="deeper"):
        apply(document, "treeMove", on(id="n0", parent="side"))


@pytest.mark.parametrize("broken", [{"items": 1}, {"tree": {"a": 1}}, {"items": [1], "tree": "x"}])
def test_place_that_is_no_tree_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(Nonsense, match="no tree") as caught:
        apply({"explorer": broken}, "treePush", push("a"))
    assert caught.value.field == "target"


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "b", "_root", "explorer", "first", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["id", "children", "items", "tree", "target", "value", "options", "parent", "a", "explorer"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    document=st.dictionaries(st.sampled_from(["explorer", "a"]), ANY_JSON),
    action=st.sampled_from(ACTIONS),
    data=st.data(),
)
def test_no_payload_and_no_document_raises_anything_but_nonsense(
    document: dict[str, Any], action: str, data: st.DataObject
) -> None:
    payload: Any = data.draw(
        ANY_JSON
        | st.fixed_dictionaries(
            {},
            optional={
                "target": st.sampled_from(["explorer", "explorer.a", "a"]),
                "value": ANY_JSON | st.fixed_dictionaries({"id": st.sampled_from(["a", "b"])}),
                "options": st.fixed_dictionaries(
                    {},
                    optional={"id": st.sampled_from(["a", "b"]), "parent": st.sampled_from(["a", "_root"])},
                ),
            },
        )
    )
    before = json.dumps(document)
    for strict in (True, False):
        with suppress(Nonsense):
            check_action(action, payload)
            apply(document, action, payload, strict=strict)
    assert json.dumps(document) == before


# -- the validator -----------------------------------------------------------------------------------------------------


def nothing(_key: Key) -> tuple[Kept, Iterable[Committed]]:
    return Kept({}, 0, 0), ()


def test_items_of_a_batch_see_the_ones_before_them() -> None:
    world = World(validator=TreeValidator(nothing, strict=True))
    wire = seed_client(world)
    events = [
        seed_event("e1", kind="treePush", **push("a")),
        seed_event("e2", kind="treePush", **push("b", parent="a")),
        seed_event("e3", kind="treePush", **push("a")),
        seed_event("e4", kind="treeUpdate", **on(id="b"), value={"n": 9}),
    ]
    (answer,) = world.ask(wire, seed("submit_events", events=events))
    results = answer["payload"]["results"]
    assert [one["status"] for one in results] == ["committed", "committed", "rejected", "committed"]
    assert results[2]["errors"] == [{"field": "event.payload.value.id", "message": "duplicate id"}]


def test_what_was_not_committed_does_not_count() -> None:
    validator = TreeValidator(nothing, strict=True)
    world = World(validator=validator)
    wire = seed_client(world)
    world.log.refuses = ValueError("the disk says no")
    world.ask(wire, seed("submit_event", **seed_event("e1", kind="treePush", **push("a"))))
    world.log.refuses = None
    wire = seed_client(world)
    (answer,) = world.ask(wire, seed("submit_event", **seed_event("e1", kind="treePush", **push("a"))))
    assert answer["type"] == "event_committed"


def test_event_must_make_sense_in_all_its_partitions() -> None:
    world = World(validator=TreeValidator(nothing, strict=True))
    wire = seed_client(world)
    world.ask(wire, seed("submit_event", **seed_event("e1", "P1", kind="treePush", **push("a"))))
    both = seed_event("e2", "P1", "P2", kind="treePush", **push("a"))
    assert world.ask(wire, seed("submit_event", **both))[0]["type"] == "event_rejected"
    other = seed_event("e3", "P2", kind="treePush", **push("a"))
    assert world.ask(wire, seed("submit_event", **other))[0]["type"] == "event_committed"


@pytest.mark.parametrize("kind", ["event", "note", "treeRename"])
def test_tree_mode_knows_no_other_types(kind: str) -> None:
    world = World(validator=TreeValidator(nothing, strict=True))
    (answer,) = world.ask(seed_client(world), seed("submit_event", **seed_event("e1", kind=kind, schema="x", data={})))
    assert answer["payload"]["errors"][0]["field"] == "event.type"


def test_documents_in_memory_are_bounded_and_made_again() -> None:
    world = World()
    made: list[Key] = []

    def rebuild(key: Key) -> tuple[Kept, Iterable[Committed]]:
        made.append(key)
        return Kept({}, 0, 0), [event for event in world.log.events if key[0] in event.scopes]

    validator = TreeValidator(rebuild, strict=True, bytes_max=200)
    world._validator = validator
    world.start()
    wire = seed_client(world)
    for number in range(20):
        partition = f"P{number % 4}"
        event = seed_event(f"e{number}", partition, kind="treePush", **push(f"n{number}"))
        assert world.ask(wire, seed("submit_event", **event))[0]["type"] == "event_committed"
    assert len(made) > 4
    assert set(validator.document(("P1", "P1"))["explorer"]["items"]) == {"n1", "n5", "n9", "n13", "n17"}


# -- schemas -----------------------------------------------------------------------------------------------------------

BRANCH = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture
def model(tmp_path: Path) -> ModelValidator:
    (tmp_path / "branch.create.json").write_text(json.dumps(BRANCH))
    (tmp_path / "branch.create@2.json").write_text(json.dumps({**BRANCH, "required": []}))
    (tmp_path / "notes.txt").write_text("not a schema")
    return ModelValidator(read_schemas(tmp_path))


def modelled(data: Any, *, version: int = 1) -> Item:
    return Item("e", ("P",), "branch.create", b"", data, schema_version=version, meta=b"{}")


def test_payload_must_fit_the_schema_of_its_type_and_version(model: ModelValidator) -> None:
    assert model.judge(modelled({"name": "x"})) is None
    refusal = model.judge(modelled({"name": ""}))
    assert refusal is not None
    assert (refusal.reason, refusal.field) == (Code.VALIDATION_FAILED, "name")
    assert model.judge(modelled({})) is not None
    assert model.judge(modelled({}, version=2)) is None


def test_type_without_a_schema_is_refused(model: ModelValidator) -> None:
    item = Item("e", ("P",), "branch.delete", b"", {}, schema_version=1, meta=b"{}")
    refusal = model.judge(item)
    assert refusal is not None
    assert "no schema" in refusal.message


def test_envelope_of_seed_clients_names_its_schema(model: ModelValidator) -> None:
    def judged(kind: str, value: Any) -> Any:
        return model.judge(Item("e", ("P",), kind, b"", value))

    assert judged("event", {"schema": "branch.create", "data": {"name": "x"}, "meta": {}}) is None
    assert judged("event", {"schema": "branch.create", "data": {}}).field == "data"
    assert judged("event", {"schema": "branch.create"}).field == "data"
    assert judged("treePush", {"name": "x"}).field == "type"


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{"), ("a.json", '{"type": "nothing"}'), ("a@x.json", "{}"), ("@1.json", "{}")]
)
def test_file_that_is_no_schema_stops_the_start(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidConfig, match=r"sync\.schemas"):
        read_schemas(tmp_path)


def test_folder_without_schemas_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="holds 0 schemas"):
        read_schemas(tmp_path)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        read_schemas(tmp_path / "nowhere")
