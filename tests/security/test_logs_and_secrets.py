"""Nothing a stranger says forges a line of a log, and no secret is in any place that people read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from holdfast.wire import consume
from tests.faults import figures
from tests.security.doors import Doors
from tests.security.frames import raw_frame
from tests.unit.server.harness import TEXT

FORGED = '2026-01-01 00:00:00,000 INFO forged.line {"event": "forged"}'
NASTY = (
    f"a\n{FORGED}",
    f"a\r\n{FORGED}",
    "a\x1b[2J\x1b]0;title\x07",
    "a\x00b",
    "a\x7fb\x85c\x9b2Jd",
    "a\u2028b\u2029c",
    "a\u202ecba",  # what follows reads backwards
    "../../../../etc/passwd",
    "%0a%0dforged",
    '"}\n{"event":"forged"',
    "x" * 70_000,
)
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) \S")
_UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def over_http(doors: Doors, text: str) -> list[bytes]:
    """Everywhere a caller may put a name of its own into a request; what was answered."""
    name = quote(text[:3000], safe="")
    asked = [
        ("GET", f"/api/v1/channels/{name}", None),
        ("GET", f"/api/v1/channels/{name}/segments/1/data", None),
        ("POST", f"/api/v1/channels/{name}/events", [{"n": 1}]),
        ("POST", "/api/v1/channels/plant.one/events", [{text: 1}]),
        ("POST", f"/api/v1/subscribers/{name}", {"channels": ["plant.one"]}),
        ("POST", "/api/v1/subscribers/s", {"channels": [text], "start": text}),
        ("POST", f"/api/v1/queries/{name}", {"channels": [text], "error": text}),
        ("POST", f"/api/v1/queries/{name}", {"channels": ["plant.one"], "error": text[:400]}),
        ("DELETE", f"/api/v1/slots/{name}/owner", None),
        ("GET", f"/api/v1/channels?after={name}", None),
    ]
    return [
        doors.ask(method, path, who, body=body)[1] for method, path, body in asked for who in ("boss", "nobody", "none")
    ]


def over_websockets(doors: Doors, text: str) -> list[bytes]:
    """The same on the data port."""
    said: list[bytes] = []
    for path, message, opcode in (
        ("/api/v4/write", raw_frame(text), 2),
        ("/v1/consume", consume.encode(consume.Hello(client=text)), 2),
        ("/v1/consume", consume.encode(consume.Subscribe(request=1, sub=1, channel=text, durable=text)), 2),
        ("/v1/sync", json.dumps({"type": text, "payload": {"token": text, "client_id": text}}).encode(), TEXT),
        ("/v1/sync", json.dumps({"type": "connect", "payload": {"token": text, "client_id": text}}).encode(), TEXT),
    ):
        for who in ("boss", "nobody"):
            client, status = doors.upgrade(path, who)
            assert status == 101
            with client:
                if path == "/v1/consume" and message[:2] != b"\x01\x01":
                    client.send(consume.encode(consume.Hello()))
                client.send(message, opcode=opcode)
                said.append(client.receive()[1])
    return said


def written(doors: Doors) -> dict[str, str]:
    """What the server wrote down so far."""
    return {
        "log": doors.served.errors.read_text(encoding="utf-8", errors="surrogateescape"),
        "audit": doors.audit.read_text(encoding="utf-8", errors="surrogateescape"),
    }


@pytest.mark.guarantee("G12")
def test_names_of_strangers_forge_no_line_of_any_log(doors: Doors) -> None:
    inputs = 0
    for text in NASTY:
        inputs += len(over_http(doors, text)) + len(over_websockets(doors, text))
    found = written(doors)
    lines = found["log"].splitlines()
    assert [line for line in lines if not _LOG_LINE.match(line)] == []
    events = [json.loads(line) for line in found["audit"].splitlines()]
    assert events
    assert all(item["event"] != "forged" for item in events)
    for name, text in found.items():
        assert _UNSEEN.findall(text) == [], f"the {name} has characters that a terminal obeys"
    figures.note(
        "security", "no name forges a line of a log", hostile_inputs=inputs, lines_read=len(lines) + len(events)
    )


@pytest.mark.guarantee("G12")
def test_no_secret_is_in_logs_metrics_answers_or_files(doors: Doors) -> None:
    answers = []
    for credential in doors.headers:
        for path in (
            "/metrics",
            "/healthz",
            "/api/v1/connections",
            "/api/v1/slots",
            "/api/v1/live",
            "/api/v1/channels",
        ):
            answers.append(doors.ask("GET", path, credential)[1])
        answers += [doors.publish(credential, "plant.one").encode(), doors.sync(credential).encode()]
    for secret in doors.secrets:  # shown where it does not belong, it is still not repeated
        answers.append(doors.ask("GET", f"/api/v1/channels?after={quote(secret, safe='')}", "none")[1])
    places = {name: text.encode(errors="surrogateescape") for name, text in written(doors).items()}
    places |= {f"answer {number}": body for number, body in enumerate(answers)}
    data = doors.directory / "data"
    places |= {str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()}
    leaks = [
        (place, secret[:6]) for place, text in places.items() for secret in doors.secrets if secret.encode() in text
    ]
    assert leaks == []
    figures.note("security", "no secret is written down or answered", secrets=len(doors.secrets), places=len(places))


def test_secrets_are_in_no_file_of_a_stranger(doors: Doors) -> None:
    """What the server made is its owner's alone."""
    made = [*(doors.directory / "data").rglob("*"), doors.audit]
    assert {oct(path.stat().st_mode & 0o077) for path in made if path.is_file()} == {"0o0"}


def test_project_names_no_secret_in_its_files() -> None:
    """Tokens of ours have a shape; none is in the repository."""
    root = Path(__file__).parents[2]
    shape = re.compile(r"\bhf_[A-Za-z0-9_-]{43}\b")
    files = [path for folder in ("src", "tests", "docs", "examples") for path in (root / folder).rglob("*")]
    texts = [
        path for path in files if path.is_file() and path.suffix in {".py", ".md", ".yaml", ".yml", ".json", ".toml"}
    ]
    assert [path.name for path in texts if shape.search(path.read_text(encoding="utf-8", errors="ignore"))] == []
