"""Pipelines out of YAML: what is understood, and that everything wrong is told with its line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import BadPipeline, BadRequest
from holdfast.spark.pipeline import Pipeline, register_decoder
from holdfast.spark.pipeline.checking import check_formats, names_in_sql
from holdfast.spark.pipeline.decoders import DECODERS
from holdfast.spark.pipeline.model import Aggregate, Deduplicate, Sql, Trigger, Watermark, Window

WHOLE = """\
name: trades
sources:
  trades:
    channel: [trades, "orders.*"]
    addr: http://127.0.0.1:9001
    token: ${TOKEN}
    options: {includeMetadata: true, maxEventsPerTrigger: 1000}
  rates: {channel: rates, path: ./store}
steps:
  - name: dear
    from: trades
    filter: price > 100
  - name: timed
    watermark: {column: at, delay: 10m}
  - name: counted
    window: {column: at, length: 1m, slide: 30s}
    aggregate: {by: [symbol], values: {n: count(*)}}
  - name: joined
    sql: |
      SELECT * FROM dear JOIN rates USING (symbol)  -- not timed
  - name: once
    from: dear
    deduplicate: {columns: [_slot_id, _fsn], within_watermark: true}
outputs:
  lake: {from: joined, format: parquet, path: lake}
  alerts: {from: once, format: channel, channel: alerts, addr: "http://127.0.0.1:9001", trigger: available_now}
  mine: {from: counted, foreach_batch: "my.module:take", mode: update}
checkpoint: ./checkpoints
trigger: 10s
restart: {max: 3, backoff: 2s}
conf: {spark.ui.enabled: false}
"""
SMALL = """\
sources: {t: {channel: t, path: d}}
outputs: {o: {from: t, format: console}}
checkpoint: c
"""


def read(tmp_path: Path, text: str, **environ: str) -> Pipeline:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return Pipeline.from_file(path, environ=environ)


def problems(tmp_path: Path, text: str) -> list[tuple[int, str, str]]:
    """Line, key and reason of all that is wrong."""
    with pytest.raises(BadPipeline) as caught:
        read(tmp_path, text)
    assert all(problem.file == tmp_path / "p.yaml" for problem in caught.value.problems)
    return [(problem.line, problem.key, problem.reason) for problem in caught.value.problems]


def test_every_part_of_a_file_arrives(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE, TOKEN="secret").spec
    trades = spec.sources["trades"]
    assert trades.reader_options("s") == {
        "channel": "trades,orders.*",
        "addr": "http://127.0.0.1:9001",
        "token": "secret",
        "subscriber": "s",
        "includeMetadata": "true",
        "maxEventsPerTrigger": "1000",
    }
    assert "secret" not in repr(spec)
    assert spec.sources["rates"].path == str(tmp_path / "store")
    verbs = {step.name: step.verb for step in spec.steps}
    assert verbs["timed"] == Watermark("at", 600 * 10**9)
    assert verbs["counted"] == Aggregate({"n": "count(*)"}, ("symbol",), Window("at", 60 * 10**9, 30 * 10**9))
    assert verbs["once"] == Deduplicate(("_slot_id", "_fsn"), within_watermark=True)
    assert isinstance(verbs["joined"], Sql)
    assert {step.name: step.inputs for step in spec.steps}["joined"] == ("rates", "dear")
    assert {step.name: step.inputs for step in spec.steps}["timed"] == ("dear",)
    assert spec.outputs["lake"].path == str(tmp_path / "lake")
    assert spec.trigger_of(spec.outputs["lake"]) == Trigger("every", 10 * 10**9)
    assert spec.trigger_of(spec.outputs["alerts"]).ends
    assert (spec.restart.max_restarts, spec.restart.backoff_ns) == (3, 2 * 10**9)
    assert dict(spec.conf) == {"spark.ui.enabled": "false"}


def test_each_output_has_a_subscriber_and_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE, TOKEN="secret").spec
    names = {spec.subscriber_of(spec.sources["trades"], output) for output in spec.outputs.values()}
    assert names == {"trades.trades.lake", "trades.trades.alerts", "trades.trades.mine"}
    assert spec.subscriber_of(spec.sources["rates"], spec.outputs["lake"]) == ""
    assert spec.checkpoint_of(spec.outputs["lake"]) == str(tmp_path / "checkpoints" / "lake")


def test_an_output_needs_only_what_leads_to_it(tmp_path: Path) -> None:
    spec = read(tmp_path, WHOLE, TOKEN="secret").spec
    sources, steps = spec.needed_for(spec.outputs["lake"])
    assert ([s.name for s in sources], [s.name for s in steps]) == (["rates", "trades"], ["dear", "joined"])


def test_the_smallest_file_is_a_pipeline_named_like_it(tmp_path: Path) -> None:
    assert read(tmp_path, SMALL).spec.name == "p"


def test_all_problems_are_told_at_once_by_line(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "sources: {t: {chanel: t, path: d}}\nsteps:\n  - {filter: 1, sql: x}\noutputs: {o: {from: q}}\ntigger: 1s\n",
    )
    assert [(line, key) for line, key, _ in found] == [
        (0, "checkpoint"),
        (1, "sources.t.channel"),
        (1, "sources.t.chanel"),
        (3, "steps[0]"),
        (4, "outputs.o.format"),
        (4, "outputs.o.from"),
        (5, "tigger"),
    ]
    assert "did you mean trigger?" in found[-1][2]


@pytest.mark.parametrize(
    ("line", "key", "reason"),
    [
        ("name: ../x", "name", "is no name"),
        ("steps: {a: 1}", "steps", "is not a list of steps"),
        ("steps: [{name: T, filter: x}]", "steps[0]", "the name T is taken by sources.t"),
        ("steps: [{name: 1x, filter: x}]", "steps[0]", "is no name of a view"),
        ("steps: [{from: tt, filter: x}]", "steps[0].from", "did you mean t?"),
        ("steps: [{from: [t, t], filter: x}]", "steps[0].from", "only sql takes more than one"),
        ("steps: [{filter: 3, window: {column: a, length: 1s}}]", "steps[0].window", "goes with aggregate"),
        ("steps: [{watermark: {column: a, delay: 5}}]", "steps[0].watermark.delay", "is not a number with one of"),
        ("steps: [{aggregate: {by: [a]}}]", "steps[0].aggregate.values", "has no columns"),
        ("steps: [{decode: otlp}]", "steps[0].decode", "for otlp.logs, otlp.metrics, otlp.traces"),
        ("steps: [{python: nothing}]", "steps[0].python", "it looks like package.module:function"),
        (
            "steps: [{window: {column: a, length: 1s, slide: 2s}, aggregate: {values: {n: count(*)}}}]",
            "steps[0].window.slide",
            "is longer than length",
        ),
        ("restart: {max: many}", "restart.max", "is not a whole number"),
        ("restart: {backoff: 2m}", "restart.backoff_max", "is shorter than backoff"),
        ("trigger: sometimes", "trigger", "available_now, once, or a time"),
        ("metrics: here", "metrics", "it looks like 127.0.0.1:9464"),
        ("conf: {a: [1]}", "conf.a", "is not a text, a number"),
        ("master: [x]", "master", "is not a text"),
    ],
)
def test_a_wrong_key_is_named_with_what_is_allowed(tmp_path: Path, line: str, key: str, reason: str) -> None:
    found = problems(tmp_path, SMALL + line + "\n")
    assert [(number, at) for number, at, _ in found if at == key] == [(4, key)]
    assert any(reason in text for _, at, text in found if at == key), found


@pytest.mark.parametrize(
    ("output", "key", "reason"),
    [
        ("{from: t, format: parquet}", "path", "is missing"),
        ("{from: t, format: channel, channel: a..b, addr: http://h:1}", "channel", "not allowed"),
        ("{from: t, format: channel, channel: a}", "addr", "is missing"),
        ("{from: t, format: console, channel: a}", "channel", "is not for format console"),
        ("{from: t, format: parquet, path: x, mode: sideways}", "mode", "append, update, complete"),
        ("{from: t, format: delta, path: x, mode: complete}", "mode", "delta only appends; use append"),
        ("{from: t, format: parquet, path: x, mode: update}", "mode", "parquet only appends; use append"),
        ("{from: t, format: json, path: x, mode: update}", "mode", "json only appends; use append"),
        (
            "{from: t, format: channel, channel: a, addr: 'http://h:1', mode: complete}",
            "mode",
            "channel only appends; use append or update",
        ),
        ("{from: t, format: otlp, addr: 'http://h:1', mode: complete}", "mode", "use append or update"),
        ("{from: t, format: iceberg, path: x, options: {identity: x}}", "options.identity", "is for batches"),
        (
            "{from: t, format: channel, channel: a, addr: 'http://h:1', options: {identity: x, batch: 1}}",
            "options.identity",
            "is for batches",
        ),
        (
            "{from: t, format: json, path: x, options: {checkpointLocation: y}}",
            "options.checkpointLocation",
            "checkpoint",
        ),
        ("{from: t, format: console, options: {queryName: y}}", "options.queryName", "the name of the output"),
        ("{from: t, format: json, path: c}", "path", "is a folder of checkpoints"),
        ("{from: t, format: json, path: c/o}", "path", "is a folder of checkpoints"),
        ("{from: t, format: delta, path: x, options: {maxFileByte: 1}}", "options.maxfilebyte", "is no option"),
        ("{from: t, format: console, foreach_batch: 'a:b'}", "foreach_batch", "both given"),
        ("{from: t, format: parquet, path: x, partition_by: [a]}", "partition_by", "Spark's own formats"),
        ("{from: t, format: json, path: x, colour: red}", "colour", "is no key of an output"),
    ],
)
def test_an_output_says_what_its_format_needs(tmp_path: Path, output: str, key: str, reason: str) -> None:
    text = f"sources: {{t: {{channel: t, path: d}}}}\noutputs:\n  o: {output}\ncheckpoint: c\n"
    ((line, at, told),) = problems(tmp_path, text)
    assert (line, at) == (3, f"outputs.o.{key}")
    assert reason in told


@pytest.mark.parametrize(
    ("source", "key", "reason"),
    [
        ("{channel: a b, path: d}", "channel", "allowed are letters"),
        ("{channel: a}", "path", "is missing"),
        ("{channel: a, path: d, subscriber: s}", "subscriber", "needs addr"),
        ("{channel: a, path: d, options: {maxEvents: 1}}", "options.maxevents", "is no option of holdfast"),
        ("{channel: a, path: d, options: {endingOffsets: latest}}", "options.endingOffsets", "is for batches"),
        ("{channel: a, addr: nowhere}", "addr", "is no admin address"),
        ("{channel: a, addr: 'http://127.0.0.1:9[01'}", "addr", "is no admin address"),
        ("{channel: a, addr: 'http://127.0.0.1:90x'}", "addr", "is no admin address"),
        ("{channel: a, addr: 'http://h:1', token: a, token_file: b}", "token_file", "both given"),
    ],
)
def test_a_source_is_checked_as_spark_would(tmp_path: Path, source: str, key: str, reason: str) -> None:
    text = f"sources:\n  t: {source}\noutputs: {{o: {{from: t, format: console}}}}\ncheckpoint: c\n"
    ((line, at, told),) = problems(tmp_path, text)
    assert (line, at) == (2, f"sources.t.{key}")
    assert reason in told


def test_a_cycle_is_told_with_its_names(tmp_path: Path) -> None:
    text = SMALL + "steps:\n  - {name: a, from: b, filter: x}\n  - {name: b, sql: SELECT * FROM a}\n"
    assert problems(tmp_path, text) == [(5, "steps[0]", "depends on itself: a ← b ← a")]


@pytest.mark.parametrize(
    ("source", "addr"),
    [
        ("{channel: t, addr: 'http://h:1'}", "http://h:1"),
        ("{channel: [s, 't*'], addr: 'http://g:1,http://h:1'}", "http://H:1/"),
        ("{channel: t, addr: 'http://localhost:9001', path: d}", "http://127.0.0.1:9001"),
    ],
)
def test_an_output_that_would_feed_itself_is_refused(tmp_path: Path, source: str, addr: str) -> None:
    text = f"sources:\n  t: {source}\n  s: {{channel: x, path: d}}\ncheckpoint: c\n"
    text += "steps:\n  - {name: a, from: t, filter: n > 1}\n  - {name: b, sql: SELECT * FROM a JOIN s}\noutputs:\n"
    text += f"  o: {{from: b, format: channel, channel: t, addr: '{addr}'}}\n"
    ((line, key, reason),) = problems(tmp_path, text)
    assert (line, key) == (9, "outputs.o.channel")
    assert "'t' is read by source t, which this output is made of" in reason
    assert "give another channel" in reason


@pytest.mark.parametrize("addr", ["http://h:2", "http://g:1", "https://h"])
def test_a_channel_of_the_same_name_elsewhere_is_another_one(tmp_path: Path, addr: str) -> None:
    text = "sources: {t: {channel: t, addr: 'http://h:1'}}\ncheckpoint: c\n"
    text += f"outputs: {{o: {{from: t, format: channel, channel: t, addr: '{addr}'}}}}\n"
    assert read(tmp_path, text).spec.outputs["o"].channel == "t"


def test_one_output_may_be_the_source_of_another(tmp_path: Path) -> None:
    text = "sources:\n  t: {channel: t, addr: 'http://h:1'}\n  u: {channel: u, addr: 'http://h:1'}\ncheckpoint: c\n"
    text += "outputs:\n  a: {from: t, format: channel, channel: u, addr: 'http://h:1'}\n"
    text += "  b: {from: u, format: parquet, path: lake}\n"
    assert list(read(tmp_path, text).spec.outputs) == ["a", "b"]


def test_formats_that_others_write_are_looked_up_and_ours_are_not(tmp_path: Path) -> None:
    text = "sources: {t: {channel: t, path: d}}\ncheckpoint: c\noutputs:\n"
    text += "  a: {from: t, format: parqet, path: a}\n  b: {from: t, format: delta, path: b}\n"
    text += "  c: {from: t, format: noop}\n  d: {from: t, format: memory}\n"
    asked = {"parqet": "no such thing", "noop": ""}
    with pytest.raises(BadPipeline) as caught:
        check_formats(read(tmp_path, text).spec, asked.pop)
    assert not asked
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key) == (tmp_path / "p.yaml", 4, "outputs.a.format")
    assert "'parqet' is not one of parquet, delta, iceberg, channel, otlp, console" in problem.reason
    assert problem.reason.endswith("did you mean parquet?; Spark says: no such thing")


def test_two_outputs_may_not_share_a_folder_or_a_checkpoint(tmp_path: Path) -> None:
    text = "sources: {t: {channel: t, path: d}}\ncheckpoint: c\noutputs:\n"
    text += "  a: {from: t, format: json, path: x}\n  b: {from: t, format: json, path: ./x, checkpoint: c/a}\n"
    assert problems(tmp_path, text) == [
        (5, "outputs.b.path", "writes to the same path as output a"),
        (5, "outputs.b.checkpoint", "has the same checkpoint as output a"),
    ]


def test_yaml_that_cannot_be_read_is_a_problem_with_its_line(tmp_path: Path) -> None:
    ((line, _, reason),) = problems(tmp_path, "sources: {t: {channel: t}\noutputs: 3")
    assert line == 2
    assert "is not YAML" in reason
    with pytest.raises(BadRequest, match="cannot be read"):
        Pipeline.from_file(tmp_path / "absent.yaml")


def test_a_decoder_is_known_once_it_is_registered(tmp_path: Path) -> None:
    register_decoder("shout", lambda frame: frame)
    try:
        assert read(tmp_path, SMALL + "steps: [{decode: shout}]\n").spec.steps[0].name == "step1"
    finally:
        del DECODERS["shout"]


def test_names_are_found_in_sql_outside_of_texts_and_comments() -> None:
    text = "SELECT 'a' AS x, \"b\" FROM C /* d */ JOIN `e` -- f\n"
    assert names_in_sql(text, ["a", "b", "c", "d", "e", "f"]) == ("c", "e")


def test_a_builder_makes_the_same_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    built = (
        Pipeline.builder("p", checkpoint="c", trigger="available_now")
        .source("t", channel="t", path="d")
        .step("big", filter="n > 5")
        .step("mine", python=lambda frame: frame)
        .output("o", format="json", path="out")
        .build()
    )
    text = SMALL.replace("{from: t, format: console}", "{from: mine, format: json, path: out}")
    text += "trigger: available_now\nsteps:\n  - {name: big, filter: n > 5}\n  - {name: mine, python: a:b}\n"
    spec = read(tmp_path, text).spec
    assert built.spec.outputs == spec.outputs
    assert built.spec.sources == spec.sources
    assert built.spec.steps[0].inputs == spec.steps[0].inputs == ("t",)
    assert built.spec.steps[1].inputs == ("big",)


def test_a_builder_tells_problems_without_a_file() -> None:
    with pytest.raises(BadPipeline, match=r"setting outputs.o.from: there is no source or step 'x'"):
        Pipeline.builder("p", checkpoint="c").source("t", channel="t", path="d").output(
            "o", from_="x", format="console"
        ).build()
