"""Graphs of files: what can be run, and what is said of what cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.dataflow.graph import Graph, is_graph_file, load, problems
from holdfast.dataflow.persistence import Settings
from holdfast.dataflow.picture import picture
from holdfast.dataflow.plugins import names_there
from holdfast.errors import InvalidConfig
from tests.unit.dataflow.flows import graph_text

PROPOSED = """
nodes:
  otlp_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports:
      out_port:
        destinations:
          - persistence
        dispatch_strategy: round_robin
    config:
      listening_addr: "127.0.0.1:4317"
      response_stream_channel_size: 256 # Required: channel buffer capacity (number of messages)

  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports:
      out_port:
        destinations:
          - otlp_exporter
          - parquet_exporter
        dispatch_strategy: round_robin
    config:
      path: ./quiver_data  # Platform-appropriate persistent storage location
      segment:
        target_size: 32MB
      wal:
        max_size: 4GB
        flush_interval: 25ms
      retention:
        max_retain_after_ingestion_hours: 72
        size_cap: 500GB
        size_cap_policy: drop_oldest  # or backpressure

  otlp_exporter:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config:
      grpc_endpoint: "http://127.0.0.1:4318"
      # timeout: "15s"  # Optional: timeout for RPC requests
  parquet_exporter:
    kind: exporter
    plugin_urn: parquet
    config:
      path: ./parquet
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "graph.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def loaded(tmp_path: Path, text: str) -> Graph:
    return load(written(tmp_path, text))


def complaint(tmp_path: Path, text: str) -> InvalidConfig:
    found = problems(written(tmp_path, text))
    assert found
    return found[0]


def test_the_proposed_configuration_is_read_with_its_settings(tmp_path: Path) -> None:
    graph = loaded(tmp_path, PROPOSED)
    settings = graph.nodes["persistence"].settings
    assert isinstance(settings, Settings)
    assert settings.path == str(tmp_path / "quiver_data")
    assert settings.store.segment_target_bytes == 32_000_000
    assert settings.store.wal_max_bytes == 4_000_000_000
    assert settings.store.retention_max_retain_after_ingestion_hours == 72
    assert settings.store.retention_size_cap_policy == "drop_oldest"
    assert graph.nodes["persistence"].destinations == ("otlp_exporter", "parquet_exporter")


def test_picture_shows_every_node_once(tmp_path: Path) -> None:
    drawn = picture(loaded(tmp_path, PROPOSED))
    lines = drawn.splitlines()
    assert lines[0].startswith("otlp_receiver")
    assert lines[1].startswith("└─► persistence")
    assert lines[2].startswith("    ├─► otlp_exporter")
    assert lines[3].startswith("    └─► parquet_exporter")
    assert "to=http://127.0.0.1:4318" in drawn


def test_a_node_that_two_receivers_feed_is_drawn_once(tmp_path: Path) -> None:
    node = "second: {kind: receiver, plugin_urn: otlp, out_ports: {out: {destinations: [persistence]}}"
    second = PROPOSED.replace("nodes:", f"nodes:\n  {node}, config: {{listening_addr: '127.0.0.1:5317'}}}}")
    drawn = picture(loaded(tmp_path, second))
    assert drawn.count("[processor") == 1
    assert "persistence (see above)" in drawn


def test_a_file_with_nodes_is_a_graph_and_others_are_not(tmp_path: Path) -> None:
    assert is_graph_file(written(tmp_path, PROPOSED))
    assert not is_graph_file(written(tmp_path, "sources: {}\n"))
    assert not is_graph_file(written(tmp_path, "nodes: [\n"))
    assert not is_graph_file(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("old", "new", "key", "line", "reason"),
    [
        ("kind: processor", "kind: procesor", "nodes.persistence.kind", 16, "receiver, processor, exporter"),
        ("urn:otap:processor:persistence", "urn:x", "nodes.persistence.plugin_urn", 17, "is not a plugin"),
        ("target_size: 32MB", "target_size: 32XB", "nodes.persistence.config.segment.target_size", 27, "32XB"),
        ("target_size: 32MB", "targetsize: 32MB", "nodes.persistence.config.segment.targetsize", 27, "did you mean"),
        ("size_cap: 500GB", "size_cap: 1GB", "nodes.persistence.config.retention.size_cap", 33, "must be at least"),
        ("path: ./quiver_data", "paht: ./quiver_data", "nodes.persistence.config.paht", 25, "unknown setting"),
        ("- parquet_exporter", "- parket", "nodes.persistence.out_ports", 18, "'parket' is not a node; nodes are otlp"),
        ("round_robin", "robin", "nodes.otlp_receiver.out_ports.out_port.dispatch_strategy", 10, "round_robin, random"),
        ('"127.0.0.1:4317"', "4317", "nodes.otlp_receiver.config.listening_addr", 12, "is not a text"),
        ('"127.0.0.1:4317"', '"127.0.0.1"', "nodes.otlp_receiver.config.listening_addr", 12, "host:port"),
        ('"127.0.0.1:4317"', '"0.0.0.0:4317"', "nodes.otlp_receiver.config.listening_addr", 12, "insecure: yes"),
        ("http://127.0.0.1:4318", "127.0.0.1:4318", "nodes.otlp_exporter.config.grpc_endpoint", 40, "is not a URL"),
        ("    config:\n      path: ./parquet", "    config: {}", "nodes.parquet_exporter.config.path", 45, "required"),
        ("plugin_urn: parquet", "plugin_urn: parket", "nodes.parquet_exporter.plugin_urn", 44, "did you mean parquet?"),
        ("    kind: processor", "    knid: processor", "nodes.persistence.knid", 16, "did you mean kind?"),
    ],
)
def test_what_cannot_be_used_is_named_with_line_node_and_key(
    tmp_path: Path, old: str, new: str, key: str, line: int, reason: str
) -> None:
    text = PROPOSED.replace(old, new, 1)
    assert text != PROPOSED
    found = [error for error in problems(written(tmp_path, text)) if error.key == key]
    assert [(error.line, error.file) for error in found] == [(line, tmp_path / "graph.yaml")]
    assert reason in found[0].reason


def test_all_problems_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = PROPOSED.replace("32MB", "a lot").replace("256 #", "many #").replace("http://127", "127")
    assert [error.line for error in problems(written(tmp_path, text))] == [13, 27, 40]


@pytest.mark.parametrize("urn", ["urn:otel:otap:receiver", "urn:otel:otap:exporter"])
def test_a_plugin_that_is_not_built_is_said_to_be_missing(tmp_path: Path, urn: str) -> None:
    kind = urn.rpartition(":")[2]
    text = f"nodes:\n  otap: {{kind: {kind}, plugin_urn: '{urn}'}}\n"
    found = complaint(tmp_path, text)
    assert found.key == "nodes.otap.plugin_urn" or urn in names_there()
    assert "not part of this release" in found.reason or urn in names_there()


def test_a_graph_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    text = PROPOSED.replace("          - parquet_exporter", "          - parquet_exporter\n          - persistence")
    assert "leads back to itself: persistence → persistence" in complaint(tmp_path, text).reason


def test_a_node_that_nothing_leads_to_is_refused(tmp_path: Path) -> None:
    found = complaint(tmp_path, PROPOSED.replace("          - parquet_exporter\n", ""))
    assert (found.key, found.reason.partition(";")[0]) == ("nodes.parquet_exporter", "nothing leads to it")


def test_an_exporter_behind_two_stores_is_refused(tmp_path: Path) -> None:
    other = """
  other:
    kind: processor
    plugin_urn: persistence
    out_ports: {out: {destinations: [parquet_exporter]}}
    config: {path: ./other}
"""
    text = PROPOSED.replace("          - persistence\n", "          - persistence\n          - other\n") + other
    assert "has that one source only" in complaint(tmp_path, text).reason


def test_two_receivers_on_one_address_are_refused(tmp_path: Path) -> None:
    second = PROPOSED[PROPOSED.index("  otlp_receiver") : PROPOSED.index("  persistence:")]
    found = complaint(tmp_path, PROPOSED + second.replace("otlp_receiver", "second"))
    assert found.key == "nodes.second.config.listening_addr"
    assert "already that of node 'otlp_receiver'" in found.reason


def test_two_payloads_for_one_channel_are_refused(tmp_path: Path) -> None:
    second = PROPOSED[PROPOSED.index("  otlp_receiver") : PROPOSED.index("  persistence:")]
    second = second.replace("otlp_receiver", "second").replace("4317", "5317") + "      payload: columns\n"
    found = complaint(tmp_path, PROPOSED + second.replace("\n\n", "\n"))
    assert found.key == "nodes.second.config.payload"
    assert "gets payload raw from node 'otlp_receiver'" in found.reason


def test_frames_are_large_enough_for_the_largest_request(tmp_path: Path) -> None:
    settings = loaded(tmp_path, PROPOSED).nodes["persistence"].settings
    assert isinstance(settings, Settings)
    assert settings.store.frame_bytes_max == 32 << 20


def test_memory_follows_a_larger_target_size(tmp_path: Path) -> None:
    settings = loaded(tmp_path, PROPOSED.replace("32MB", "100MB")).nodes["persistence"].settings
    assert isinstance(settings, Settings)
    assert settings.store.memory_limit_bytes == 125_000_000


def test_a_receiver_without_addresses_opens_both_doors(tmp_path: Path) -> None:
    text = graph_text(("console", "console", "")).replace('listening_addr: "127.0.0.1:0", ', "", 1)
    text = text.replace('http_listening_addr: "127.0.0.1:0", ', "")
    doors = loaded(tmp_path, text.replace('http_"127', "")).nodes["otlp_receiver"].settings.doors()  # type: ignore[attr-defined]
    assert doors == {"listening_addr": "127.0.0.1:4317", "http_listening_addr": "127.0.0.1:4318"}


def test_a_secret_of_the_environment_is_filled_in(tmp_path: Path) -> None:
    text = PROPOSED.replace("      # timeout", '      headers: ["authorization: Bearer ${TOKEN}"]\n      # timeout')
    graph = load(written(tmp_path, text), environ={"TOKEN": "hunter2"})
    settings = graph.nodes["otlp_exporter"].settings
    assert settings.header_values() == {"authorization": "Bearer hunter2"}  # type: ignore[attr-defined]
    assert "hunter2" not in picture(graph)
