"""The page `docs/reference/openapi.md`, from the OpenAPI document that a server hands out."""

from __future__ import annotations

from typing import Any

from holdfast.server.admin.openapi import OPENAPI

_HEAD = """# HTTP operations

Printed by `python -m tests.tidy.reference`; a test compares.

Every operation of the admin port, from the document at `/api/v1/openapi.json`. What they mean, the envelope, bounds and
examples: [the admin HTTP server](http-api.md). `data` stands in the envelope `{"data": …, "next": …}`.
"""


def http_markdown() -> str:
    """The page."""
    operations = "".join(
        _operation(verb.upper(), path, found)
        for path, verbs in OPENAPI["paths"].items()
        for verb, found in verbs.items()
    )
    schemas = "".join(_schema(name, found) for name, found in OPENAPI["components"]["schemas"].items())
    return f"{_HEAD}{operations}\n## Schemas\n{schemas}"


def _operation(verb: str, path: str, found: dict[str, Any]) -> str:
    codes = ", ".join(code for code in sorted(found["responses"]))
    lines = [f"\n## {verb} {path}\n", f"{found['summary']} Answers: {codes}. {_data(found)}".rstrip(), ""]
    if found["parameters"]:
        lines += ["| parameter | in | type | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{item['name']}` | {item['in']} | {_type(item['schema'])} | {item['description']} |"
            for item in found["parameters"]
        ]
        lines.append("")
    if "requestBody" in found:
        bodies = [f"`{kind}`: {_type(body['schema'])}" for kind, body in found["requestBody"]["content"].items()]
        lines += [f"Body: {'; '.join(bodies)}.", ""]
    return "\n".join(lines)


def _data(found: dict[str, Any]) -> str:
    schema = found["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    data = schema.get("properties", {}).get("data")
    return f"`data` is {_type(data)}." if data else ""


def _schema(name: str, found: dict[str, Any]) -> str:
    rows = [f"| `{key}` | {_type(value)} |" for key, value in found.get("properties", {}).items()]
    table = "\n".join(["| field | type |", "|---|---|", *rows]) if rows else "An object; its keys are not fixed."
    return f"\n### {name}\n\n{table}\n"


def _type(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return " or ".join(f"`{word}`" for word in schema["enum"])
    if "oneOf" in schema:
        return ", or ".join(map(_type, schema["oneOf"]))
    kind = schema["type"]
    if kind == "array":
        return f"array of {_type(schema['items'])}"
    if kind == "object" and "properties" in schema:
        return "{" + ", ".join(f"`{key}`: {_type(value)}" for key, value in schema["properties"].items()) + "}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
