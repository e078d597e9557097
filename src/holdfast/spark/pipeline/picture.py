"""A pipeline as a picture made of text (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.config.values import Kind, format_value
from holdfast.spark.pipeline.model import (
    Aggregate,
    Decode,
    Deduplicate,
    Filter,
    Output,
    PipelineSpec,
    Select,
    Source,
    Sql,
    Step,
    Trigger,
    Verb,
    Watermark,
    Window,
    WithColumn,
)

TEXT_CHARS_MAX = 60


def draw(spec: PipelineSpec) -> str:
    """Sources with what is made of them below; what has several inputs stands at the first and is named at the others.

    trades  trades at http://127.0.0.1:9001
    └─► clean  filter price > 0
        ├─► [lake]  parquet to out, every 10s
        └─► [alerts]  channel alerts
    """
    lines = [f"{spec.name}: {len(spec.sources)} sources, {len(spec.steps)} steps, {len(spec.outputs)} outputs"]
    drawn: set[str] = set()
    for source in spec.sources.values():
        lines.append(f"{source.name}  {_place(source)}")
        lines += _below(spec, source.name, "", drawn)
    return "\n".join(lines)


def _below(spec: PipelineSpec, name: str, indent: str, drawn: set[str]) -> Iterator[str]:
    steps = [step for step in spec.steps if name in step.inputs]
    outputs = [output for output in spec.outputs.values() if output.input == name]
    children: list[Step | Output] = [*steps, *outputs]
    for index, child in enumerate(children):
        last = index == len(children) - 1
        branch = "└─► " if last else "├─► "
        if isinstance(child, Output):
            yield f"{indent}{branch}[{child.name}]  {_target(spec, child)}"
        elif child.name in drawn:
            yield f"{indent}{branch}{child.name}  (above)"
        else:
            drawn.add(child.name)
            yield f"{indent}{branch}{child.name}  {told(child.verb)}"
            yield from _below(spec, child.name, indent + ("    " if last else "│   "), drawn)


def _place(source: Source) -> str:
    places = [f"at {source.addr}"] if source.addr else []
    places += [f"in {source.path}"] if source.path else []
    places += [f"in {source.tier}"] if source.tier else []
    return " ".join([", ".join(source.channels), *places])


def told(verb: Verb) -> str:
    """What a step does, in a few words."""
    return _short(_telling(verb))


def _telling(verb: Verb) -> str:
    match verb:
        case Sql(text):
            words = f"sql {' '.join(text.split())}"
        case Filter(condition):
            words = f"filter {condition}"
        case Select(expressions):
            words = f"select {', '.join(expressions)}"
        case WithColumn(columns):
            words = f"with {', '.join(columns)}"
        case Watermark(column, delay_ns):
            words = f"watermark {format_value(Kind.TIME, delay_ns)} on {column}"
        case Aggregate(values, by, window):
            words = f"aggregate {', '.join(values)}{_groups(by, window)}"
        case Deduplicate(names, _):
            words = f"deduplicate {', '.join(names)}"
        case Decode(kind):
            words = f"decode {kind}"
        case _:
            words = f"python {verb.function}"
    return words


def _groups(by: tuple[str, ...], window: Window | None) -> str:
    groups = [f"{format_value(Kind.TIME, window.length_ns)} of {window.column}", *by] if window else list(by)
    return f" by {', '.join(groups)}" if groups else ""


def _target(spec: PipelineSpec, output: Output) -> str:
    target = output.path or output.channel or output.addr or (str(output.function) if output.function else "")
    place = f"{output.format} to {target}" if target else output.format
    return f"{place}, {when(spec.trigger_of(output))}"


def when(trigger: Trigger) -> str:
    """A trigger in words."""
    words = {"soon": "as it comes", "available_now": "what is there now", "once": "once"}
    return words.get(trigger.kind) or f"every {format_value(Kind.TIME, trigger.every_ns)}"


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"
