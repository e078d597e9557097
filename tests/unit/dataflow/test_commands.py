"""`holdfast pipeline` with a node graph."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli.main import app
from tests.unit.dataflow.test_graph import PROPOSED


def test_the_command_line_says_what_is_wrong_and_draws_what_is_right(tmp_path: Path) -> None:
    file, runner = tmp_path / "graph.yaml", CliRunner()
    file.write_text(PROPOSED)
    assert "4 nodes" in runner.invoke(app, ["pipeline", "validate", str(file)]).stdout
    assert runner.invoke(app, ["pipeline", "graph", str(file)]).stdout.startswith("otlp_receiver")
    drawn = json.loads(runner.invoke(app, ["pipeline", "graph", str(file), "--json"]).stdout)
    assert ["persistence", "parquet_exporter"] in drawn["result"]["edges"]
    file.write_text(PROPOSED.replace("32MB", "32XB"))
    refused = runner.invoke(app, ["pipeline", "validate", str(file)])
    assert refused.exit_code == 2
    assert f"{file}:27: nodes.persistence.config.segment.target_size" in refused.stderr
    found = json.loads(runner.invoke(app, ["pipeline", "validate", str(file), "--json"]).stdout)
    assert [problem["line"] for problem in found["error"]["problems"]] == [27]
    assert runner.invoke(app, ["pipeline", "run", str(file)]).exit_code == 2


def test_a_file_that_is_no_graph_is_left_to_the_other_kind(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("sources: {}\n")
    refused = CliRunner().invoke(app, ["pipeline", "validate", str(file)])
    assert refused.exit_code == 2
    assert "nodes" not in refused.stderr
