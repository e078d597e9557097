"""Whether the parts of a pipeline fit together (pure): names, references, cycles, outputs, options of sources.

Promise: after `check` found nothing, every name leads to a source or a step, nothing depends on itself, no output feeds
itself, no two outputs write to the same place or share a checkpoint, each output has a mode that its format can do, and
the options of sources and outputs are those that they take. What only Spark can tell (columns, types, functions) is
left to the plan (`building.py`); `check_formats` asks it for the names of formats.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from holdfast.config.values import split_url, whole_number
from holdfast.errors import BadPipeline, InvalidConfig, InvalidName
from holdfast.model.names import check_channel_name
from holdfast.spark.jobs.apart import is_among
from holdfast.spark.options import is_glob, read_addresses, read_options
from holdfast.spark.pipeline.decoders import DECODERS
from holdfast.spark.pipeline.fields import Problems
from holdfast.spark.pipeline.model import (
    CHANNEL,
    CONSOLE,
    FOREACH_BATCH,
    OTLP,
    TABLES,
    Decode,
    Output,
    PipelineSpec,
    Source,
    Step,
)
from holdfast.spark.sinkoptions import read_sink_options

VIEW_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
"""A name that SQL takes without quotes."""
PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", re.ASCII)
"""With the names of a source and an output behind it, it is the name of a subscriber, which is 128 long at most."""
PART_CHARS_MAX = 40

FOLDERS = (*TABLES, "json", "csv", "orc", "text", "xml")
NO_FOLDERS = (CHANNEL, CONSOLE, FOREACH_BATCH, OTLP)
BUILT_IN = (*TABLES, *NO_FOLDERS)
KNOWN = (*BUILT_IN, "memory")
"""What is not looked up: ours, and the one that Spark itself knows without."""
KEYS_OF_OPTIONS = {"checkpointlocation": "checkpoint", "queryname": "the name of the output"}
"""What Spark would take as an option, and a pipeline says elsewhere."""

_TOKENS = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`([^`]*)`|([A-Za-z_]\w*)", re.DOTALL)


def names_in_sql(text: str, views: Iterable[str]) -> tuple[str, ...]:
    """Which of these views a query names, outside of texts and comments, without case."""
    words = {(match[1] or match[2] or "").lower() for match in _TOKENS.finditer(text)}
    return tuple(view for view in views if view.lower() in words)


def check(spec: PipelineSpec, problems: Problems) -> None:
    """Object to whatever does not fit."""
    _check_name(spec, problems)
    _check_views(spec, problems)
    for source in spec.sources.values():
        _check_source(spec, source, problems)
    for step in spec.steps:
        _check_step(spec, step, problems)
    _check_cycles(spec, problems)
    for output in spec.outputs.values():
        _check_output(spec, output, problems)
    _check_apart(spec, problems)
    _check_metrics(spec, problems)


def _check_name(spec: PipelineSpec, problems: Problems) -> None:
    if PIPELINE_NAME.fullmatch(spec.name) is None:
        reason = f"{spec.name!r} is no name: 1 to 40 letters, digits, '_' and '-', the first a letter or digit"
        problems.add("name", reason)
    if not spec.sources:
        problems.add("sources", "is missing: give at least one source")
    if not spec.outputs:
        problems.add("outputs", "is missing: give at least one output")


def _check_views(spec: PipelineSpec, problems: Problems) -> None:
    places = [(name, f"sources.{name}") for name in spec.sources] + [(step.name, step.key) for step in spec.steps]
    seen: dict[str, str] = {}
    for name, place in places:
        if VIEW_NAME.fullmatch(name) is None:
            problems.add(place, f"{name!r} is no name of a view: letters, digits and '_', the first no digit")
        elif name.lower() in seen:
            problems.add(place, f"the name {name} is taken by {seen[name.lower()]}; views need names of their own")
        seen.setdefault(name.lower(), place)


def _check_source(spec: PipelineSpec, source: Source, problems: Problems) -> None:
    place = f"sources.{source.name}"
    for index, channel in enumerate(source.channels):
        if not is_glob(channel):
            try:
                check_channel_name(channel)
            except InvalidName as error:
                problems.add(
                    f"{place}.channel[{index}]" if len(source.channels) > 1 else f"{place}.channel", str(error)
                )
    if source.channels:
        try:
            read_options(source.reader_options(f"{spec.name}.x" if source.addr else "")).check_stream()
        except InvalidConfig as error:
            named = {"channel", "addr", "path", "tier", "token", "subscriber"}
            key = "token_file" if error.key == "tokenFile" else error.key
            own = key in named and key not in source.options
            problems.add(f"{place}.{key}" if own or key == "token_file" else f"{place}.options.{key}", error.reason)
    if source.subscriber and not source.addr:
        problems.add(f"{place}.subscriber", "needs addr: only a server keeps marks of subscribers")


def _check_step(spec: PipelineSpec, step: Step, problems: Problems) -> None:
    for name in step.inputs:
        _check_reference(spec, name, f"{step.key}.from", problems)
    if isinstance(step.verb, Decode) and step.verb.kind not in DECODERS:
        known = ", ".join(sorted(DECODERS))
        problems.add(f"{step.key}.decode", f"{step.verb.kind!r} cannot be decoded; there are decoders for {known}")


def _check_reference(spec: PipelineSpec, name: str, key: str, problems: Problems) -> None:
    views = [*spec.sources, *(step.name for step in spec.steps)]
    if name and name not in views:
        close = difflib.get_close_matches(name, views, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        problems.add(key, f"there is no source or step {name!r}{hint}; there are {', '.join(views) or 'none'}")


def _check_cycles(spec: PipelineSpec, problems: Problems) -> None:
    state: dict[str, int] = {}  # 1: being followed, 2: done
    for step in spec.steps:
        path = _cycle_from(spec, step.name, state)
        if path:
            key = next(found.key for found in spec.steps if found.name == path[0])
            problems.add(key, f"depends on itself: {' ← '.join(path)}")
            return


def _cycle_from(spec: PipelineSpec, start: str, state: dict[str, int]) -> list[str]:
    """The names around a cycle that is reached from here."""
    trail: list[str] = []
    waiting = [(start, False)]
    while waiting:
        name, leaving = waiting.pop()
        if leaving:
            state[name] = 2
            trail.pop()
        elif state.get(name) == 1:
            return [*trail[trail.index(name) :], name]
        elif name not in state:
            state[name] = 1
            trail.append(name)
            waiting.append((name, True))
            waiting += [(needed, False) for needed in spec.inputs_of(name)]
    return []


# -------------------------------------------------------------------------------------------------------------- outputs


def _check_output(spec: PipelineSpec, output: Output, problems: Problems) -> None:
    place = f"outputs.{output.name}"
    if PIPELINE_NAME.fullmatch(output.name) is None:
        problems.add(place, f"{output.name!r} is no name: 1 to {PART_CHARS_MAX} letters, digits, '_' and '-'")
    _check_reference(spec, output.input, f"{place}.from", problems)
    for key, reason in [*_objections(output), *_objections_to_mode(output)]:
        problems.add(f"{place}.{key}" if key else place, reason)
    _check_feedback(spec, output, problems)


def _objections(output: Output) -> list[tuple[str, str]]:
    """(key, reason) of what the format needs and has not, or has and cannot use."""
    found: list[tuple[str, str]] = []
    if output.function is not None and output.format != FOREACH_BATCH:
        found.append((FOREACH_BATCH, f"and format {output.format} are both given; give one"))
    for key, value, formats in (
        ("channel", output.channel, (CHANNEL,)),
        ("addr", output.addr, (CHANNEL, OTLP)),
        ("path", output.path, FOLDERS),
    ):
        if output.format in formats and not value:
            found.append((key, f"is missing: format {output.format} needs it"))
        elif value and output.format not in formats and (key != "path" or output.format in NO_FOLDERS):
            found.append((key, f"is not for format {output.format}"))
    if output.partition_by and output.format in (*TABLES, *NO_FOLDERS):
        found.append(("partition_by", f"is not for {output.format}; Spark's own formats of files take it"))
    for option in output.options:
        if option.lower() in KEYS_OF_OPTIONS:
            found.append((f"options.{option}", f"is not for options; give {KEYS_OF_OPTIONS[option.lower()]}"))
    return found or (_objections_of_otlp(output) if output.format == OTLP else _objections_of_sink(output))


def _objections_to_mode(output: Output) -> list[tuple[str, str]]:
    """What the format cannot do with rows that change."""
    if output.format in FOLDERS and output.mode != "append":
        return [("mode", f"{output.mode} changes rows that are there, and {output.format} only appends; use append")]
    if output.format in (CHANNEL, OTLP) and output.mode == "complete":
        reason = (
            f"complete sends all rows again with each batch, and {output.format} only appends; use append or update"
        )
        return [("mode", reason)]
    return []


def _check_feedback(spec: PipelineSpec, output: Output, problems: Problems) -> None:
    """A channel that is made of itself never comes to rest."""
    if output.format != CHANNEL or not output.channel or not output.addr:
        return
    for source in spec.sources.values():
        if source.name in _made_of(spec, output) and _reads(source, output):
            problems.add(
                f"outputs.{output.name}.channel",
                f"{output.channel!r} is read by source {source.name}, which this output is made of, so that it would "
                "feed itself for ever; give another channel, or leave it out of the source",
            )


def _made_of(spec: PipelineSpec, output: Output) -> set[str]:
    """The names of all views that lead to an output; there may be cycles."""
    found: set[str] = set()
    waiting = [output.input]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += spec.inputs_of(name)
    return found


def _reads(source: Source, output: Output) -> bool:
    """Whether a source reads the channel that an output writes."""
    try:
        servers = read_addresses(source.addr)
    except InvalidConfig:  # it is told of the source
        return False
    return is_among(output.addr, servers) and any(fnmatchcase(output.channel, name) for name in source.channels)


def _objections_of_otlp(output: Output) -> list[tuple[str, str]]:
    parts = split_url(output.addr)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
        return [("addr", f"{output.addr!r} is no OTLP/HTTP address; it looks like http://127.0.0.1:4318")]
    if output.token and output.token_file:
        return [("token_file", "and token are both given; give one")]
    return [(f"options.{key}", "is not for format otlp, which has no options") for key in output.options]


def _objections_of_sink(output: Output) -> list[tuple[str, str]]:
    if not output.writer_options():
        return []
    try:
        read_sink_options(output.writer_options()).check_stream()
    except InvalidConfig as error:
        key = "token_file" if error.key == "tokenFile" else error.key
        own = key in ("addr", "channel", "path", "token", "token_file") and key not in output.options
        return [(key if own else f"options.{key}", error.reason)]
    return []


def check_formats(spec: PipelineSpec, objection: Callable[[str], str]) -> None:
    """Ask for the formats that others write; raises `BadPipeline`. `objection` says why Spark has not got one."""
    problems = Problems(spec.file, spec.lines)
    for output in spec.outputs.values():
        reason = "" if output.format in KNOWN else objection(output.format)
        if reason:
            close = difflib.get_close_matches(output.format, [*BUILT_IN, *FOLDERS], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            ours = ", ".join((*TABLES, CHANNEL, OTLP, CONSOLE))
            problems.add(
                f"outputs.{output.name}.format",
                f"{output.format!r} is not one of {ours}, and Spark has no such format{hint}; Spark says: {reason}",
            )
    if problems.found:
        raise BadPipeline(problems.in_order())


def _check_apart(spec: PipelineSpec, problems: Problems) -> None:
    """Two queries that write to one place would undo each other's work."""
    for what, key, place_of in (
        ("writes to the same path as", "path", _path_of),
        ("has the same checkpoint as", "checkpoint", spec.checkpoint_of),
    ):
        seen: dict[str, Output] = {}
        for output in spec.outputs.values():
            target = place_of(output)
            if target and target in seen:
                problems.add(f"outputs.{output.name}.{key}", f"{what} output {seen[target].name}")
            seen.setdefault(target, output)
    checkpoints = (spec.checkpoint, *map(spec.checkpoint_of, spec.outputs.values()))
    for output in spec.outputs.values():
        if output.path and output.path.rstrip("/") in [path.rstrip("/") for path in checkpoints]:
            problems.add(f"outputs.{output.name}.path", "is a folder of checkpoints; give each a folder of its own")
    _check_case(list(spec.outputs), problems)


def _path_of(output: Output) -> str:
    return output.path


def _check_case(names: Sequence[str], problems: Problems) -> None:
    """Names become folders, and not every disk tells cases apart."""
    counts = Counter(name.lower() for name in names)
    for name in names:
        if counts[name.lower()] > 1:
            problems.add(f"outputs.{name}", "differs from another output only by case")


def _check_metrics(spec: PipelineSpec, problems: Problems) -> None:
    host, _, port = spec.metrics.rpartition(":")
    if spec.metrics and (not host or whole_number(port, most=65535) is None):
        problems.add("metrics", f"{spec.metrics!r} is no address; it looks like 127.0.0.1:9464")
