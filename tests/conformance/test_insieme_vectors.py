"""The actions on trees do what the vectors of the first implementation say, under its policy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from holdfast.sync.validation import ModelValidator
from holdfast.sync.validation.actions import ACTIONS, Nonsense, apply
from holdfast.sync.validation.shapes import check_action, check_envelope
from holdfast.wire.sync import Item

VECTORS = json.loads((Path(__file__).parent / "vectors" / "sync" / "tree_actions.json").read_text(encoding="utf-8"))


def named(vector: dict[str, Any]) -> str:
    return f"{vector['fn']}: {vector['case']}"


def chosen(*functions: str) -> list[dict[str, Any]]:
    return [vector for vector in VECTORS if vector["fn"] in functions]


def as_sent(payload: dict[str, Any]) -> dict[str, Any]:
    """The vectors spell a missing position as the text `undefined`."""
    options = payload.get("options", {})
    if options.get("position") == "undefined":
        return {**payload, "options": {name: value for name, value in options.items() if name != "position"}}
    return payload


def test_every_vector_is_run_by_some_test() -> None:
    known = {*ACTIONS, "testValidateEventPayload", "testValidateEventEnvelope", "testValidateModelEvent"}
    assert {vector["fn"] for vector in VECTORS} == known
    assert len(VECTORS) == 100


@pytest.mark.parametrize("vector", chosen(*ACTIONS), ids=named)
def test_action_makes_the_document_of_its_vector(vector: dict[str, Any]) -> None:
    document, payload = vector["in"]
    before = copy.deepcopy(document)
    payload = as_sent(payload)
    check_action(vector["fn"], payload)
    assert apply(document, vector["fn"], payload, strict=False) == vector["out"]
    assert document == before


@pytest.mark.parametrize("vector", chosen("testValidateEventPayload"), ids=named)
def test_payload_is_judged_as_its_vector_says(vector: dict[str, Any]) -> None:
    if "throws" in vector:
        with pytest.raises(Nonsense):
            check_action(*vector["in"])
    else:
        check_action(*vector["in"])


@pytest.mark.parametrize("vector", chosen("testValidateEventEnvelope"), ids=named)
def test_envelope_is_judged_as_its_vector_says(vector: dict[str, Any]) -> None:
    if "throws" in vector:
        with pytest.raises(Nonsense):
            check_envelope(*vector["in"])
    else:
        check_envelope(*vector["in"])


@pytest.mark.parametrize("vector", chosen("testValidateModelEvent"), ids=named)
def test_model_is_judged_as_its_vector_says(vector: dict[str, Any]) -> None:
    name, data, schemas = vector["in"]
    validator = ModelValidator(
        {(key, 0): jsonschema_rs.validator_for(schema) for key, schema in (schemas or {}).items()}
    )
    refusal = validator.judge(Item("e", ("P",), "event", b"", {"schema": name, "data": data}))
    assert (refusal is not None) == ("throws" in vector)
