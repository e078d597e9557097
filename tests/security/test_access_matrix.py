"""Every door × every call × every credential × every channel, against a real server; the oracle knows the answers."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from holdfast.dataflow.receivers.guards import Sending, by_token
from holdfast.wire.otlp.answers import Answer, Refusal
from holdfast.wire.otlp.signals import Signal
from tests.faults import figures
from tests.security.credentials import FOREIGN_CERTIFICATES, WRONG_PASSWORDS
from tests.security.doors import ALLOWED_ORIGIN, STATUS, WRITE_PATHS, Doors
from tests.security.oracle import CERTIFIED, CHANNELS, PRINCIPALS, RESERVED, STRANGERS, expected, may, sees

CREDENTIALS = (*PRINCIPALS, *STRANGERS)
SLOT = "0f" * 16


@dataclass(frozen=True)
class Call:
    """A request to the admin server and what it needs; `{c}` is a channel, `{k}` its place, `{s}` its first segment."""

    method: str
    path: str
    needs: str
    body: object = None
    absent: bool = False
    """Whether it is answered with 404 also to those who may: there is nothing of that name."""
    accept: str = "*/*"
    made: str = ""
    """A subscriber of the channel that is made anew before each call, since the call removes it."""

    def __str__(self) -> str:
        asked = "" if self.accept == "*/*" else f" as {self.accept}"
        return f"{self.method} {self.path}{asked}{' plan' if 'plan' in str(self.body) else ''}"


ROWS = [{"n": 7}]
ACKS = {"acks": [{"channel": "{c}", "first_seq": 1, "last_seq": 1}]}
CALLS = (
    Call("GET", "/healthz", "nothing"),
    Call("GET", "/readyz", "nothing"),
    Call("GET", "/", "nothing"),
    Call("GET", "/console/console.js", "nothing"),
    Call("GET", "/api/v1/openapi.json", "known"),
    Call("GET", "/api/v1/channels", "known"),
    Call("GET", "/api/v1/segments", "known"),
    Call("GET", "/api/v1/subscribers", "known"),
    Call("GET", "/api/v1/queries", "known"),
    Call("GET", "/api/v1/live", "known"),
    Call("GET", "/metrics", "server"),
    Call("GET", "/api/v1/connections", "server"),
    Call("GET", "/api/v1/senders", "server"),
    Call("GET", "/api/v1/errors", "server"),
    Call("GET", "/api/v1/tier", "server"),
    Call("GET", "/api/v1/slots", "server"),
    Call("DELETE", f"/api/v1/slots/{SLOT}/owner", "server", absent=True),
    Call("GET", "/api/v1/channels/{c}", "visible"),
    Call("GET", "/api/v1/channels/{c}/events", "visible"),
    Call("GET", "/api/v1/channels/{c}/events", "visible", accept="application/vnd.apache.arrow.stream"),
    Call("GET", "/api/v1/channels/{c}/segments", "visible"),
    Call("GET", "/api/v1/channels/{c}/segments/{s}", "visible"),
    Call("GET", "/api/v1/channels/{c}/segments/{s}/data", "visible"),
    Call("POST", "/api/v1/channels/{c}/seal", "visible"),
    Call("POST", "/api/v1/channels/{c}/compact", "admin", {}),
    Call("POST", "/api/v1/channels/{c}/events", "publish", ROWS),
    Call("POST", "/api/v1/subscribers/of-{k}", "consume", {"channels": ["{c}"]}),
    Call("POST", "/api/v1/subscribers/of-{k}/acks", "consume", ACKS),
    Call("GET", "/api/v1/subscribers/kept-{k}", "listed"),
    Call("POST", "/api/v1/subscribers/kept-{k}/reset", "followed", {"to": "first", "plan": True}),
    Call("POST", "/api/v1/subscribers/kept-{k}/reset", "followed", {"to": "new"}),
    Call("POST", "/api/v1/subscribers/kept-{k}/reset", "followed", {"to": "first", "channel": "{c}"}),
    Call("DELETE", "/api/v1/subscribers/gone-{k}", "followed", made="/api/v1/subscribers/gone-{k}"),
    Call("POST", "/api/v1/queries/q", "consume", {"channels": ["{c}"]}),
)
NOT_CALLED: dict[tuple[str, str], str] = {}
"""Calls of the document that the matrix leaves out, each with its reason."""


def filled(text: str, channel: str, doors: Doors) -> str:
    place = str([*CHANNELS, ""].index(channel))
    return text.replace("{c}", channel).replace("{k}", place).replace("{s}", str(doors.segment.get(channel, 1)))


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_admin_answers_every_credential_as_the_rules_say(doors: Doors, call: Call) -> None:
    of_a_channel = re.search("{[ck]}", f"{call.path}{call.body}")
    channels = [name for name in CHANNELS if name not in RESERVED] if of_a_channel else [""]
    wrong = {}
    for credential, channel in product(CREDENTIALS, channels):
        if call.made:
            made = doors.ask("POST", filled(call.made, channel, doors), "boss", body={"channels": [channel]})
            assert made[0] == 200, made
        body = None if call.body is None else json.loads(filled(json.dumps(call.body), channel, doors))
        path, headers = filled(call.path, channel, doors), {"Accept": call.accept}
        status, answer = doors.ask(call.method, path, credential, body=body, headers=headers)
        found = STATUS.get(status, "done" if status < 400 else str(status))
        wanted = expected(credential, call.needs, channel)
        if wanted == "done" and call.absent:
            wanted = "hidden"
        if found != wanted:
            wrong[credential, channel] = (found, wanted, answer[:200])
    assert wrong == {}
    figures.note("access", f"admin `{call}`", cells=len(CREDENTIALS) * len(channels), wrong=0)


def test_every_call_that_the_server_documents_is_in_the_matrix(doors: Doors) -> None:
    """A new call cannot be forgotten: it is among the calls, or left out by name and for a reason."""
    paths = json.loads(doors.ask("GET", "/api/v1/openapi.json", "boss")[1])["paths"]
    verbs = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}
    documented = {(verb.upper(), path) for path, said in paths.items() for verb in said if verb in verbs}
    shapes = {key: re.compile(re.sub(r"{\w+}", r"[^/]+", key[1])) for key in documented}
    found = {key for key in documented for call in CALLS if call.method == key[0] and shapes[key].fullmatch(call.path)}
    assert len(documented) > 25
    assert documented - found == NOT_CALLED.keys()
    assert all(NOT_CALLED.values())


@pytest.mark.guarantee("G12")
def test_nobody_sees_or_removes_the_subscriber_of_another(doors: Doors) -> None:
    path = "/api/v1/subscribers/kept"
    assert doors.ask("POST", path, "reader", body={"channels": ["plant.one"]})[0] == 200
    assert doors.ask("GET", path, "elsewhere")[0] == 404
    assert doors.ask("DELETE", path, "elsewhere")[0] == 404
    assert doors.ask("GET", path, "reader")[0] == 200
    assert doors.ask("DELETE", path, "reader")[0] == 200
    assert doors.ask("DELETE", path, "reader")[0] == 404


@pytest.mark.guarantee("G12")
def test_nobody_takes_a_channel_from_the_subscriber_of_another(doors: Doors) -> None:
    """Registering by a name that is taken would let go of what that one follows, and retention would delete it."""
    path = "/api/v1/subscribers/shared"
    assert doors.ask("POST", path, "reader", body={"channels": ["plant.one"]})[0] == 200
    assert doors.ask("POST", path, "elsewhere", body={"channels": ["office.mail"]})[0] == 403
    assert doors.ask("POST", path, "elsewhere", body={"channels": []})[0] in {400, 403}
    facts = json.loads(doors.ask("POST", path, "reader", body={"channels": ["plant.one"]})[1])["data"]
    assert [item["channel"] for item in facts["channels"]] == ["plant.one"]


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize(("path", "codec"), list(product(WRITE_PATHS, ("HFA1", "QWP1"))))
def test_writing_answers_every_credential_as_the_rules_say(doors: Doors, path: str, codec: str) -> None:
    cells = list(product(CREDENTIALS, CHANNELS))
    found = {cell: doors.publish(*cell, path=path, codec=codec) for cell in cells}
    assert found == {(credential, channel): expected(credential, "publish", channel) for credential, channel in cells}
    figures.note("access", f"data port, {codec} on {path}", cells=len(cells), wrong=0)


@pytest.mark.guarantee("G12")
def test_consuming_answers_every_credential_as_the_rules_say(doors: Doors) -> None:
    cells = list(product(CREDENTIALS, CHANNELS))
    found = {cell: doors.consume(*cell) for cell in cells}
    assert found == {(credential, channel): expected(credential, "consume", channel) for credential, channel in cells}
    figures.note("access", "data port, consume", cells=len(cells), wrong=0)


@pytest.mark.guarantee("G12")
def test_sync_answers_every_credential_as_the_rules_say(doors: Doors) -> None:
    found = {credential: doors.sync(credential) for credential in CREDENTIALS}
    assert found == {credential: expected(credential, "sync", "sync") for credential in CREDENTIALS}
    figures.note("access", "data port, sync", cells=len(CREDENTIALS), wrong=0)


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("door", ["export", "call"], ids=["HTTP", "gRPC"])
def test_otlp_answers_every_credential_as_the_rules_say(doors: Doors, door: str) -> None:
    """This door has no TLS here, and none of its own looks at certificates: who has no more than one is nobody."""
    knock: Callable[[str, str], str] = getattr(doors, door)
    # gRPC itself sends no header with a tab in it
    shown = [name for name in CREDENTIALS if door == "export" or name != "newline in it"]
    cells = list(product(shown, ("logs", "traces", "metrics")))
    found = {cell: knock(*cell) for cell in cells}
    assert found == {
        (who, signal): "refused" if who in CERTIFIED else expected(who, "publish", f"otlp.{signal}")
        for who, signal in cells
    }
    figures.note("access", f"OTLP, {door}", cells=len(cells), wrong=0)


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("credential", WRONG_PASSWORDS)
def test_wrong_password_opens_no_door(doors: Doors, credential: str) -> None:
    """Refused, or told to come back later: a server tries four of them a second."""
    knocks = {
        "admin": STATUS.get(doors.ask("GET", "/api/v1/channels", credential)[0]),
        "write": doors.publish(credential, "office.mail"),
        "consume": doors.consume(credential, "office.mail"),
        "sync": doors.sync(credential),
        "OTLP, HTTP": doors.export(credential, "traces"),
        "OTLP, gRPC": doors.call(credential, "traces"),
    }
    assert set(knocks.values()) <= {"refused", "later"}, knocks
    assert "refused" in knocks.values()


@pytest.mark.guarantee("G12")
def test_wrong_passwords_of_others_hold_up_nobody_who_signed_in(doors: Doors) -> None:
    told = [doors.ask("GET", "/api/v1/channels", "wrong password")[0] for _ in range(12)]
    assert set(told) <= {401, 429}
    assert doors.ask("GET", "/api/v1/channels", "clerk")[0] == 200
    assert doors.publish("clerk", "office.mail") == "done"


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("kind", FOREIGN_CERTIFICATES)
def test_certificate_that_does_not_hold_ends_the_handshake(doors: Doors, kind: str) -> None:
    """It names the one who may do everything; without a handshake there is nobody to ask as."""
    doors.headers[kind], doors.credentials.contexts[kind] = {}, doors.credentials.authority.foreign(kind)
    try:
        for knock in (lambda: doors.ask("GET", "/healthz", kind), lambda: doors.upgrade(WRITE_PATHS[0], kind)):
            with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
                knock()
    finally:
        del doors.headers[kind], doors.credentials.contexts[kind]


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("credential", PRINCIPALS)
def test_lists_and_the_live_picture_show_only_what_a_caller_sees(doors: Doors, credential: str) -> None:
    seen = {channel for channel in CHANNELS if channel not in RESERVED and sees(credential, channel)}
    hidden = {channel for channel in CHANNELS if channel not in RESERVED} - seen
    for path in ("/api/v1/channels", "/api/v1/segments", "/api/v1/subscribers", "/api/v1/queries", "/api/v1/live"):
        _, body = doors.ask("GET", path, credential)
        assert not [channel for channel in hidden if channel.encode() in body], path
    listed = {item["name"] for item in json.loads(doors.ask("GET", "/api/v1/channels", credential)[1])["data"]}
    assert listed - RESERVED - {"sync"} == seen
    facts = json.loads(doors.ask("GET", "/healthz", credential)[1])
    assert (set(facts) > {"status", "durability", "insecure"}) is may(credential, "admin")


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("path", [*WRITE_PATHS, "/v1/consume", "/v1/sync"])
@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (ALLOWED_ORIGIN, 101),
        ("https://evil.example", 400),
        ("null", 400),
        ("", 400),
        (ALLOWED_ORIGIN + ".evil.example", 400),
        ("http://app.example", 400),
    ],
)
def test_page_of_another_origin_gets_no_websocket(doors: Doors, path: str, origin: str, status: int) -> None:
    client, found = doors.upgrade(path, "boss", Origin=origin)
    client.close()
    assert found == status


def test_admin_server_sends_no_header_that_opens_it_to_other_origins(doors: Doors) -> None:
    for path in ("/api/v1/channels", "/healthz", "/", "/api/v1/none"):
        for method in ("GET", "OPTIONS"):
            status, _ = doors.ask(method, path, "boss", headers={"Origin": "https://evil.example"})
            assert method == "GET" or status in {404, 405}


def test_oracle_itself_has_every_answer(tmp_path: Path) -> None:
    """Each rule changes an answer: a matrix of one word would prove nothing."""
    verbs = ("publish", "consume", "sync", "admin")
    found = {(who, verb): may(who, verb, channel) for who in PRINCIPALS for verb in verbs for channel in CHANNELS}
    assert set(found.values()) == {True, False}
    assert {expected(*cell) for cell in product(CREDENTIALS, ("publish", "followed", "server"), CHANNELS)} == {
        *("done", "refused", "forbidden", "hidden")
    }


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("text", ["Bearer \u00e9", "Basic \u00ff\u00fe", "\u00a0", "Bearer " + "x" * 4000])
def test_credential_of_strange_characters_is_refused_and_no_error(doors: Doors, text: str) -> None:
    doors.headers["strange"] = {"Authorization": text}
    assert doors.ask("GET", "/api/v1/channels", "strange")[0] == 401
    assert doors.export("strange", "logs") == "refused"
    assert [doors.upgrade(path, "strange")[1] for path in ("/api/v4/write", "/v1/consume")] == [401, 401]

    async def judge() -> Answer | Sending:
        return await by_token("secret")({"authorization": text}, Signal.LOGS)

    judged = asyncio.run(judge())
    assert isinstance(judged, Answer)
    assert judged.refusal is Refusal.UNAUTHENTICATED
    del doors.headers["strange"]
