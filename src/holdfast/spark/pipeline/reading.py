"""A pipeline out of YAML (pure but for the file itself).

Promise: `read_pipeline` gives a pipeline that fits together (`checking.py`), or raises `BadPipeline` with every problem
that was found, each with file, line, key and what is allowed. Spark is not started. Relative paths are relative to the
directory of the file; `${NAME}` is taken from the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.config.values import parse_time, show
from holdfast.config.yamltext import FILE_BYTES_MAX, read_yaml
from holdfast.errors import BadPipeline, BadRequest, InvalidConfig
from holdfast.spark.pipeline.checking import check, names_in_sql
from holdfast.spark.pipeline.fields import Problems, Section
from holdfast.spark.pipeline.model import (
    CHANNEL,
    FOREACH_BATCH,
    MODES,
    OTLP,
    TABLES,
    Aggregate,
    Decode,
    Deduplicate,
    Filter,
    Function,
    Output,
    PipelineSpec,
    Python,
    Restart,
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

_FUNCTION = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_TRIGGERS = "available_now, once, or a time between batches such as 10s"


def read_pipeline(path: Path, *, environ: Mapping[str, str] | None = None) -> PipelineSpec:
    """The pipeline in a file; `environ` is where `${NAME}` is looked up, the process's own by default."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}; give a file with a pipeline") from None
    try:
        document = read_yaml(path, data, os.environ if environ is None else environ)
    except InvalidConfig as error:
        raise BadPipeline([error]) from None
    return _checked(document.values, path, document.lines)


def read_mapping(values: Mapping[str, object]) -> PipelineSpec:
    """The pipeline that a program wrote, with the keys of a file; functions may stand for their names."""
    return _checked(values, None, {})


def _checked(values: Mapping[str, object], file: Path | None, lines: Mapping[str, int]) -> PipelineSpec:
    problems = Problems(file, lines)
    spec = _Reading(file, problems).pipeline(values, lines)
    check(spec, problems)
    if problems.found:
        raise BadPipeline(problems.in_order())
    return spec


class _Reading:
    """Reads one pipeline."""

    def __init__(self, file: Path | None, problems: Problems) -> None:
        self._file = file
        self._folder = file.absolute().parent if file is not None else Path.cwd()
        self._problems = problems

    def pipeline(self, values: Mapping[str, object], lines: Mapping[str, int]) -> PipelineSpec:
        """All of it."""
        top = Section(values, "", self._problems)
        sources = {name: self._source(top.section("sources"), name) for name in top.section("sources").names()}
        steps = self._steps(top, list(sources))
        outputs = {name: self._output(top.section("outputs"), name) for name in top.section("outputs").names()}
        spec = PipelineSpec(
            name=top.text(
                "name", default=re.sub(r"[^A-Za-z0-9_-]", "-", self._file.stem) if self._file else "pipeline"
            ),
            sources=sources,
            steps=steps,
            outputs=outputs,
            checkpoint=self._path(top.text("checkpoint", required="a folder where queries keep how far they are")),
            trigger=_trigger(top) or Trigger(),
            restart=_restart(top.section("restart")),
            master=top.text("master"),
            conf=top.settings("conf"),
            py_files=tuple(self._path(path) for path in top.texts("py_files")),
            metrics=top.text("metrics"),
            file=self._file,
            lines=lines,
        )
        top.end("a pipeline")
        return spec

    def _path(self, text: str) -> str:
        """Independent of where the process was started."""
        if not text or _SCHEME.match(text):
            return text
        return os.path.normpath(self._folder / text)

    # -- sources ----------------------------------------------------------------------------------------------------

    def _source(self, sources: Section, name: str) -> Source:
        section = sources.section(name)
        source = Source(
            name=name,
            channels=section.texts("channel", required="a channel, a list of them, or a glob"),
            addr=section.text("addr"),
            path=self._path(section.text("path")),
            tier=section.text("tier"),
            subscriber=section.text("subscriber"),
            schema=section.text("schema"),
            options=section.settings("options"),
            token=section.text("token"),
            token_file=self._path(section.text("token_file")),
        )
        section.end("a source")
        return source

    # -- steps ------------------------------------------------------------------------------------------------------

    def _steps(self, top: Section, sources: list[str]) -> tuple[Step, ...]:
        value = top.take("steps")
        if value is not None and not isinstance(value, list):
            top.refuse("steps", f"{show(value)} is not a list of steps")
        items: list[object] = list(value) if isinstance(value, list) else []
        sections = [Section(item, f"steps[{index}]", self._problems) for index, item in enumerate(items)]
        names = [section.text("name", default=f"step{index + 1}") for index, section in enumerate(sections)]
        steps = []
        for index, section in enumerate(sections):
            before = names[index - 1] if index else sources[0] if len(sources) == 1 else ""
            steps.append(self._step(section, names[index], before=before, views=[*sources, *names]))
        return tuple(steps)

    def _step(self, section: Section, name: str, *, before: str, views: list[str]) -> Step:
        verbs = [verb for verb in _VERBS if section.has(verb)]
        verb: Verb = Filter("true")
        if len(verbs) == 1:
            verb = _VERBS[verbs[0]](section)
        else:
            found = f"has {' and '.join(verbs)}" if verbs else "does nothing"
            self._problems.add(section.place, f"{found}; a step has exactly one of {', '.join(_VERBS)}")
        if section.has("window") and "aggregate" not in verbs:
            section.refuse("window", "goes with aggregate, which is not given")
        inputs = section.texts("from")
        if not inputs and isinstance(verb, Sql):
            inputs = names_in_sql(verb.text, views)
        if not inputs and before:
            inputs = (before,)
        if not inputs:
            choices = ", ".join(view for view in views if view != name)
            section.refuse("from", f"is missing: there is no step before, so give one of {choices or 'your sources'}")
        if len(inputs) > 1 and not isinstance(verb, Sql):
            section.refuse("from", f"has {len(inputs)} views; only sql takes more than one")
        section.end("a step")
        return Step(name, inputs, verb, section.place)

    # -- outputs ----------------------------------------------------------------------------------------------------

    def _output(self, outputs: Section, name: str) -> Output:
        section = outputs.section(name)
        function = _function(section, FOREACH_BATCH) if section.has(FOREACH_BATCH) else None
        kind = FOREACH_BATCH if function is not None and not section.has("format") else ""
        needed = f"{', '.join((*TABLES, CHANNEL, OTLP))}, console, any format that Spark writes, or {FOREACH_BATCH}"
        output = Output(
            name=name,
            input=section.text("from", required="the source or step whose rows go out"),
            format=kind or section.text("format", required=needed),
            path=self._path(section.text("path")),
            channel=section.text("channel"),
            addr=section.text("addr"),
            mode=section.word("mode", MODES, default="append"),
            partition_by=section.texts("partition_by"),
            options=section.settings("options"),
            function=function,
            trigger=_trigger(section),
            checkpoint=self._path(section.text("checkpoint")),
            token=section.text("token"),
            token_file=self._path(section.text("token_file")),
        )
        section.end("an output")
        return output


# ------------------------------------------------------------------------------------------------------------ the verbs


def _sql(step: Section) -> Verb:
    return Sql(step.text("sql", required="a query"))


def _filter(step: Section) -> Verb:
    return Filter(step.text("filter", required="a condition"))


def _select(step: Section) -> Verb:
    return Select(step.texts("select", required="expressions"))


def _with_column(step: Section) -> Verb:
    return WithColumn(_expressions(step, "with_column"))


def _watermark(step: Section) -> Verb:
    section = step.section("watermark")
    delay_ns = section.time("delay", required="how late events may come, such as 10m")
    verb = Watermark(section.text("column", required="a column of times"), delay_ns)
    section.end("watermark")
    return verb


def _aggregate(step: Section) -> Verb:
    section = step.section("aggregate")
    verb = Aggregate(_expressions(section, "values"), section.texts("by"), _window(step))
    section.end("aggregate")
    return verb


def _window(step: Section) -> Window | None:
    if not step.has("window"):
        return None
    section = step.section("window")
    length_ns = section.time("length", required="how long a window is, such as 1m")
    window = Window(section.text("column", required="a column of times"), length_ns, section.time("slide") or length_ns)
    if window.slide_ns > length_ns:
        section.refuse("slide", "is longer than length, so that events would be left out")
    section.end("window")
    return window


def _deduplicate(step: Section) -> Verb:
    if not isinstance(step.take("deduplicate"), Mapping):
        return Deduplicate(step.texts("deduplicate", required="columns"))
    section = step.section("deduplicate")
    within = section.flag("within_watermark", default=False)
    verb = Deduplicate(section.texts("columns", required="columns that tell rows apart"), within)
    section.end("deduplicate")
    return verb


def _decode(step: Section) -> Verb:
    return Decode(step.text("decode", required="a kind of payload"))


def _python(step: Section) -> Verb:
    return Python(_function(step, "python"))


_VERBS: dict[str, Callable[[Section], Verb]] = {
    "sql": _sql,
    "filter": _filter,
    "select": _select,
    "with_column": _with_column,
    "watermark": _watermark,
    "aggregate": _aggregate,
    "deduplicate": _deduplicate,
    "decode": _decode,
    "python": _python,
}


def _expressions(section: Section, key: str) -> dict[str, str]:
    found = section.settings(key)
    if not found:
        section.refuse(key, "has no columns: give names with an expression each")
    return found


def _function(section: Section, key: str) -> Function:
    value = section.take(key)
    if callable(value):
        return Function(getattr(value, "__module__", ""), getattr(value, "__qualname__", key), value)
    text = section.text(key, required="module:function")
    match = _FUNCTION.fullmatch(text)
    if match is None:
        if text:
            section.refuse(key, f"{show(text)} is no function; it looks like package.module:function")
        return Function("", "")
    return Function(match[1], match[2])


# ------------------------------------------------------------------------------------------------------- small sections


def _trigger(section: Section) -> Trigger | None:
    value = section.take("trigger")
    if value is None:
        return None
    if value == "available_now":
        return Trigger("available_now")
    if value == "once":
        return Trigger("once")
    try:
        every_ns = parse_time(value)
    except ValueError:
        section.refuse("trigger", f"{show(value)} is no trigger: give {_TRIGGERS}")
        return None
    return Trigger("every", every_ns) if every_ns > 0 else Trigger()


def _restart(section: Section) -> Restart:
    defaults = Restart()
    restart = Restart(
        max_restarts=section.count("max", default=defaults.max_restarts),
        backoff_ns=section.time("backoff", default=defaults.backoff_ns),
        backoff_max_ns=section.time("backoff_max", default=defaults.backoff_max_ns),
        reset_after_ns=section.time("reset_after", default=defaults.reset_after_ns),
    )
    if restart.backoff_max_ns < restart.backoff_ns:
        section.refuse("backoff_max", "is shorter than backoff")
    section.end("restart")
    return restart
