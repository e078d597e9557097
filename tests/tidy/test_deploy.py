"""What `deploy/` hands to operators fits the program: settings, commands, metrics, labels, pages."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.config.file import read
from holdfast.server.access import check_exposure
from tests.tidy.cli_reference import cli_markdown
from tests.tidy.metrics_reference import Exported, sections
from tests.tidy.tree import ROOT

DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana" / "holdfast.json").read_text(encoding="utf-8"))
OF_PROMETHEUS = {"instance", "job"}
"""Labels that a scrape adds."""

_NAME = re.compile(r"\bholdfast_\w+?(?=_bucket\b|_sum\b|_count\b|\W|$)")
_BRACES = re.compile(r"(holdfast_\w+)\{([^}]*)\}")
_SHOWN_LABEL = re.compile(r"\$labels\.(\w+)|\{\{\s*(\w+)\s*\}\}")


@cache
def exported() -> dict[str, Exported]:
    return {row.name: row for rows in sections().values() for row in rows}


def documents() -> list[dict[str, Any]]:
    text = (DEPLOY / "kubernetes" / "holdfast.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


def one(kind: str) -> Any:
    (found,) = [document for document in documents() if document["kind"] == kind]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Each PromQL expression with the text that names its labels."""
    for rule in RULES:
        yield rule["expr"], rule["annotations"]["summary"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


def checked(text: str, tmp_path: Path, *files: str) -> None:
    """The settings hold, and the server would not be open to everyone."""
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a secret of a test\n", encoding="utf-8")
        path.chmod(0o600)
    (tmp_path / "holdfast.yaml").write_text(text, encoding="utf-8")
    settings = read(tmp_path / "holdfast.yaml", environ={})
    assert list(check_exposure(settings.server, insecure=False, auth_on=settings.server.auth_required)) == []
    assert settings.store.retention_size_cap_bytes > 0, "a server in production has a cap"


def test_settings_beside_the_unit_are_valid_and_safe(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "holdfast.yaml").read_text(encoding="utf-8")
    checked(text, tmp_path, "secrets/admin", "secrets/prometheus")


def test_settings_in_the_manifest_are_valid_and_safe(tmp_path: Path) -> None:
    text = one("ConfigMap")["data"]["holdfast.yaml"].replace("/etc/holdfast/users", str(tmp_path / "users"))
    checked(text, tmp_path, "users/admin", "users/prometheus")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_unit_is_what_systemd_understands(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here")
    copy = tmp_path / unit.name
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    copy.write_text(unit.read_text("utf-8").replace("/opt/holdfast/bin/holdfast", holdfast), encoding="utf-8")
    done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if unit.stem in line]
    assert (done.returncode, ours) == (0, [])


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_unit_starts_a_command_that_exists_and_lets_it_end(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    command = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert len(command) == 1
    assert_command(shlex.split(command[0])[1:])
    assert int(re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)[0]) > 30, "longer than a drain may take"


def test_container_starts_a_command_that_exists_and_lets_it_end() -> None:
    pod = one("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert_command(container["args"])
    assert pod["terminationGracePeriodSeconds"] > 30
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = {claim["metadata"]["name"] for claim in one("StatefulSet")["spec"]["volumeClaimTemplates"]}
    assert mounts == volumes | claims


def assert_command(words: list[str]) -> None:
    """The command and its options are on the page of the command line."""
    names = [word for word in words if re.fullmatch(r"[a-z]+", word)]
    section = re.search(rf"^## holdfast {' '.join(names)}$(.*?)(?=^## )", cli_markdown(), re.MULTILINE | re.DOTALL)
    assert section, words
    assert all(re.search(rf"[` ]{option}[`,]", section[1]) for option in words if option.startswith("-")), words


def test_probes_ask_paths_that_need_no_credential() -> None:
    (container,) = one("StatefulSet")["spec"]["template"]["spec"]["containers"]
    paths = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"/healthz", "/readyz"}


def test_manifest_holds_one_owner_of_the_store() -> None:
    assert one("StatefulSet")["spec"]["replicas"] == 1


def test_image_has_the_version_and_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (DEPLOY / "kubernetes" / "Dockerfile").read_text(encoding="utf-8")
    extras = re.findall(r"/src\[([\w,]+)\]", text)[0].split(",")
    assert set(extras) <= set(project["optional-dependencies"])
    image = one("StatefulSet")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"holdfast:{project['version']}"
    assert image in text


def test_alerts_and_panels_name_only_metrics_that_exist() -> None:
    known = set(exported())
    assert {name for text, _ in expressions() for name in _NAME.findall(text)} <= known


def test_alerts_and_panels_use_only_labels_that_exist() -> None:
    wrong = []
    for text, shown in expressions():
        labels = {label for name in _NAME.findall(text) for label in exported()[name].labels} | OF_PROMETHEUS
        used = {label for _, inside in _BRACES.findall(text) for label in re.findall(r"(\w+)\s*[=!]", inside)}
        used |= {first or second for first, second in _SHOWN_LABEL.findall(shown)}
        wrong += [f"{text}: {label}" for label in used - labels]
    assert wrong == []


def test_every_alert_says_how_bad_it_is_and_where_help_is() -> None:
    page = (ROOT / "docs" / "howto" / "answer-alerts.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}, rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/howto/answer-alerts.md#{rule['alert'].lower()}"
        assert f"\n## {rule['alert']}\n" in page, rule["alert"]


def test_no_section_of_the_runbook_is_without_its_alert() -> None:
    page = (ROOT / "docs" / "howto" / "answer-alerts.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (Holdfast\w+)$", page, re.MULTILINE) == [rule["alert"] for rule in RULES]
