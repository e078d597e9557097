"""Who is let in, what ends a credential, and what the audit log says of it."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.config.passwords import hash_password
from holdfast.config.server import ServerConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import (
    Backpressure,
    ChannelFull,
    CorruptData,
    Forbidden,
    HoldfastError,
    InvalidName,
    LimitReached,
    QuotaReached,
    StoreFailed,
    Unauthenticated,
)
from holdfast.server.access import Gatekeeper, Principal
from holdfast.server.access import gatekeeper as module
from holdfast.server.access.signin import TRIES_AT_ONCE
from holdfast.server.access.tokens import TokenFile
from tests.unit.server.access.gate import Gate, admitted, basic, bearer, certificate

PASSWORD = "correct horse battery"
HASH = hash_password(PASSWORD).text
USERS = {"auth.users": {"alice": {"password_hash": HASH}}}
TLS = {"tls": {"cert": "c", "key": "k", "client_ca": "ca"}}
SLOT = bytes(range(16))


# -- who is let in ----------------------------------------------------------------------------------------------------


def test_without_credentials_to_ask_for_everyone_is_anonymous() -> None:
    gatekeeper = Gate().open()
    assert not gatekeeper.auth_on
    principal = gatekeeper.authenticate({})
    assert (principal.name, str(principal.credential)) == ("anonymous", "none")
    assert principal.may("admin")


def test_a_wrong_credential_is_refused_even_where_none_is_needed() -> None:
    with pytest.raises(Unauthenticated, match="the token is unknown"):
        Gate().open().authenticate(bearer("hf_x"))


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("settings", [{"auth.required": "yes"}, USERS, TLS])
def test_nobody_gets_in_without_a_credential_once_one_is_asked_for(settings: dict[str, object]) -> None:
    gatekeeper = Gate(settings).open()
    assert gatekeeper.auth_on
    with pytest.raises(Unauthenticated, match="a credential is needed"):
        gatekeeper.authenticate({})


@pytest.mark.guarantee("G12")
def test_a_token_lets_its_principal_in_and_nothing_else_does() -> None:
    gate = Gate()
    secret = gate.token("app-1")
    gatekeeper = gate.open()
    assert gatekeeper.authenticate(bearer(secret)).name == "app-1"
    assert gatekeeper.authenticate({"authorization": f"bEARER   {secret} "}).name == "app-1"
    for headers in (
        {},
        bearer(secret[:-1]),
        bearer(secret + "x"),
        bearer(""),
        {"authorization": secret},
        {"authorization": f"Token {secret}"},
        basic("app-1", secret),
        {"authorization": "Bearer " + "x" * 10_000},
    ):
        with pytest.raises(Unauthenticated):
            gatekeeper.authenticate(headers)


@pytest.mark.guarantee("G12")
def test_a_password_lets_its_user_in_and_nothing_else_does() -> None:
    gatekeeper = Gate(USERS).open()
    assert gatekeeper.authenticate(basic("alice", PASSWORD)).name == "alice"
    for headers in (
        basic("alice", PASSWORD + "x"),
        basic("bob", PASSWORD),
        basic("", ""),
        {"authorization": "Basic ???"},
        {"authorization": "Basic " + "YWxpY2U="},
    ):
        with pytest.raises(Unauthenticated):
            gatekeeper.authenticate(headers)


def test_an_unknown_user_and_a_wrong_password_read_the_same() -> None:
    gatekeeper = Gate(USERS).open()
    texts = set()
    for headers in (basic("alice", "wrong"), basic("nobody", "wrong")):
        with pytest.raises(Unauthenticated) as caught:
            gatekeeper.authenticate(headers)
        texts.add(str(caught.value))
    assert texts == {"not authenticated: the user is unknown or the password is wrong"}


def test_passwords_are_tried_a_few_times_a_second_only() -> None:
    gate = Gate(USERS)
    gatekeeper = gate.open()
    assert gatekeeper.authenticate(basic("alice", PASSWORD)).name == "alice"
    for _ in range(TRIES_AT_ONCE - 1):
        with pytest.raises(Unauthenticated):
            gatekeeper.authenticate(basic("alice", "wrong"))
    with pytest.raises(QuotaReached) as caught:
        gatekeeper.authenticate(basic("alice", "wrong"))
    assert caught.value.retry_after_s >= 1
    assert gatekeeper.authenticate(basic("alice", PASSWORD)).name == "alice"  # recognised without trying
    gate.clock.advance(1)
    with pytest.raises(Unauthenticated):
        gatekeeper.authenticate(basic("alice", "wrong"))


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        (certificate("app-1"), "app-1"),
        (certificate("app-1", subjectAltName=(("DNS", "other"),)), "app-1"),
        ({"subject": (), "subjectAltName": (("email", "a@b"), ("DNS", "app.example"))}, "app.example"),
        ({"subjectAltName": (("URI", "spiffe://x/app"),)}, "spiffe://x/app"),
    ],
)
def test_a_client_certificate_names_its_principal(shown: dict[str, object], name: str) -> None:
    assert Gate(TLS).open().authenticate({}, shown).name == name


@pytest.mark.parametrize("shown", [{"subject": ()}, certificate(""), certificate("a\nb"), certificate("x" * 129)])
def test_a_certificate_that_names_nobody_is_refused(shown: dict[str, object]) -> None:
    with pytest.raises(Unauthenticated, match="names nobody"):
        Gate(TLS).open().authenticate({}, shown)


def test_a_header_is_judged_before_the_certificate() -> None:
    gate = Gate(TLS)
    secret = gate.token("app-1")
    gatekeeper = gate.open()
    assert gatekeeper.authenticate(bearer(secret), certificate("other")).name == "app-1"
    with pytest.raises(Unauthenticated):
        gatekeeper.authenticate(bearer("hf_wrong"), certificate("other"))


def test_a_damaged_token_file_stops_the_start() -> None:
    gate = Gate()
    gate.token("app-1")
    gate.filesystem.write_bytes(gate.tokens.path, b"{")  # type: ignore[attr-defined]
    with pytest.raises(CorruptData, match=r"tokens\.json is damaged at byte 1: is not a whole token file"):
        gate.open()


# -- what ends a credential -------------------------------------------------------------------------------------------


def watched(gatekeeper: Gatekeeper) -> list[Principal]:
    """Principals whose connections are to be closed."""
    ended: list[Principal] = []
    gatekeeper.on_revoked = ended.append
    return ended


@pytest.mark.guarantee("G12")
def test_a_revoked_token_ends_its_connections_and_only_those() -> None:
    gate = Gate()
    secrets = [gate.token(name) for name in ("a", "a", "b")]
    gatekeeper = gate.open()
    ended = watched(gatekeeper)
    first, second, other = (admitted(gatekeeper, bearer(secret)) for secret in secrets)
    token = (gate.tokens.read() or ())[0]
    gate.tokens.revoke(token.id, now_ns=gate.clock.wall_ns())
    assert first.may("publish", "x")
    gatekeeper.poll()
    assert ended == [first]
    assert (first.may("publish", "x"), second.may("publish", "x"), other.may("publish", "x")) == (False, True, True)
    gatekeeper.poll()
    assert ended == [first]
    with pytest.raises(Unauthenticated, match=f"the token {token.id} of 'a' is revoked"):
        gatekeeper.authenticate(bearer(secrets[0]))
    assert [line["token"] for line in gate.audited("token.revoked")] == [token.id]
    assert [line["principal"] for line in gate.audited("credential.ended")] == ["a"]


@pytest.mark.guarantee("G12")
def test_a_token_that_expires_ends_its_connections() -> None:
    gate = Gate()
    secret = gate.token("a", expires_s=10)
    gatekeeper = gate.open()
    ended = watched(gatekeeper)
    principal = admitted(gatekeeper, bearer(secret))
    gate.clock.advance(9.9)
    gatekeeper.poll()
    assert (ended, principal.may("publish", "x")) == ([], True)
    gate.clock.advance(0.2)
    assert not principal.may("publish", "x")  # from that moment, not from the next look
    gatekeeper.poll()
    assert ended == [principal]
    with pytest.raises(Unauthenticated, match="is expired"):
        gatekeeper.authenticate(bearer(secret))


@pytest.mark.guarantee("G12")
def test_a_certificate_ends_its_connections_when_it_expires() -> None:
    gate = Gate(TLS)
    gatekeeper = gate.open()
    ended = watched(gatekeeper)
    shown = certificate("a", notAfter="Nov 14 22:13:25 2023 GMT")  # five seconds from the start of the clock
    principal = gatekeeper.authenticate({}, shown)
    principal.admit_connection()
    gate.clock.advance(6)
    gatekeeper.poll()
    assert ended == [principal]
    with pytest.raises(Unauthenticated, match="the certificate of 'a' has expired"):
        gatekeeper.authenticate({}, shown)


@pytest.mark.guarantee("G12")
def test_a_user_that_goes_or_changes_its_password_ends_its_connections() -> None:
    gate = Gate({"auth.users": {"alice": {"password_hash": HASH}, "bob": {"password_hash": HASH}}})
    gatekeeper = gate.open()
    ended = watched(gatekeeper)
    alice, bob = (admitted(gatekeeper, basic(name, PASSWORD)) for name in ("alice", "bob"))
    gatekeeper.reload(gate.config())
    assert ended == []
    changed = {"alice": {"password_hash": hash_password("new").text}}
    gatekeeper.reload(gate.config(**{"auth.users": changed}))
    assert set(ended) == {alice, bob}
    with pytest.raises(Unauthenticated):
        gatekeeper.authenticate(basic("alice", PASSWORD))
    assert gatekeeper.authenticate(basic("alice", "new")).name == "alice"


@pytest.mark.guarantee("G12")
def test_losing_the_last_token_does_not_open_the_door() -> None:
    gate = Gate()
    gate.token("a")
    gatekeeper = gate.open()
    gate.filesystem.unlink(gate.tokens.path)
    gatekeeper.poll()
    assert gatekeeper.auth_on
    with pytest.raises(Unauthenticated):
        gatekeeper.authenticate({})
    gatekeeper.reload(gate.config())
    assert gatekeeper.auth_on


def test_the_first_token_shuts_the_door_behind_anonymous_callers() -> None:
    gate = Gate()
    gatekeeper = gate.open()
    ended = watched(gatekeeper)
    anonymous = admitted(gatekeeper, {})
    secret = gate.token("a")
    gatekeeper.poll()
    assert ended == [anonymous]
    assert gatekeeper.authenticate(bearer(secret)).name == "a"
    assert [line["principal"] for line in gate.audited("token.created")] == ["a"]


def test_a_token_file_that_gets_damaged_keeps_the_tokens_of_before() -> None:
    gate = Gate()
    secret = gate.token("a")
    gatekeeper = gate.open()
    ended = watched(gatekeeper)
    admitted(gatekeeper, bearer(secret))
    gate.filesystem.write_bytes(gate.tokens.path, b"{")  # type: ignore[attr-defined]
    gatekeeper.poll()
    gatekeeper.poll()
    assert ended == []
    assert gatekeeper.authenticate(bearer(secret)).name == "a"
    assert len(gate.audited("tokens.unreadable")) == 1


def test_settings_that_do_not_hold_change_nothing() -> None:
    gate = Gate(USERS)
    gatekeeper = gate.open()
    gate.filesystem.write_bytes(Path("/bad.json"), b"{")  # type: ignore[attr-defined]
    with pytest.raises(CorruptData):
        gatekeeper.reload(gate.config(**{"auth.tokens": "/bad.json", "auth.users": {}}))
    assert gatekeeper.authenticate(basic("alice", PASSWORD)).name == "alice"


def test_a_live_server_notices_a_revoked_token_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_INTERVAL_S", 0.01)
    config = ServerConfig(data=str(tmp_path), audit_path=str(tmp_path / "audit.log"))
    file = TokenFile(LocalFilesystem(), config.tokens_path)
    _, secret = file.create("a", now_ns=1)

    async def run() -> None:
        gatekeeper = Gatekeeper(config, SystemClock(), LocalFilesystem())
        ended = asyncio.Event()
        gatekeeper.on_revoked = lambda _principal: ended.set()
        gatekeeper.authenticate(bearer(secret)).admit_connection()
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(gatekeeper.watch())
            await asyncio.to_thread(file.revoke, "a", now_ns=2)
            await asyncio.wait_for(ended.wait(), 60)
            watching.cancel()
        gatekeeper.close()

    asyncio.run(run())


# -- what a principal may do ------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G12")
def test_rules_hold_per_verb_and_channel_and_change_on_reload() -> None:
    gate = Gate({"access": [{"principal": "a", "allow": "publish", "channels": "x.*"}]})
    secret = gate.token("a")
    gatekeeper = gate.open()
    principal = gatekeeper.authenticate(bearer(secret))
    principal.require("publish", "x.y")
    for verb, channel in (("publish", "y"), ("consume", "x.y"), ("admin", "")):
        with pytest.raises(Forbidden, match=f"principal 'a' may not {verb}"):
            principal.require(verb, channel)
    gatekeeper.reload(gate.config(access=[{"principal": "a", "allow": "consume"}]))
    assert (principal.may("publish", "x.y"), principal.may("consume", "x.y")) == (False, True)
    assert len(gate.audited("access.refused")) == 3


def test_the_answers_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.access.principal.ANSWERS_MAX", 4)
    principal = Gate().open().authenticate({})
    assert all(principal.may("publish", f"c{n}") for n in range(20))
    assert len(principal._account._answers) <= 4


@pytest.mark.guarantee("G12")
def test_a_slot_belongs_to_whoever_used_it_first() -> None:
    gate = Gate()
    secrets = [gate.token(name) for name in ("a", "b")]
    gatekeeper = gate.open()
    first, second = (gatekeeper.authenticate(bearer(secret)) for secret in secrets)
    first.bind_slot(SLOT)
    first.bind_slot(SLOT)
    with pytest.raises(Forbidden, match="it belongs to another principal") as caught:
        second.bind_slot(SLOT)
    assert "'a'" not in str(caught.value)
    gatekeeper.close()
    again = gate.open()
    again.authenticate(bearer(secrets[0])).bind_slot(SLOT)
    with pytest.raises(Forbidden):
        again.authenticate(bearer(secrets[1])).bind_slot(SLOT)
    assert [line["owner"] for line in gate.audited("slot.refused")] == ["a", "a"]


def test_anonymous_callers_own_no_slots() -> None:
    gate = Gate()
    gate.open().authenticate({}).bind_slot(SLOT)
    secret = gate.token("a")
    gate.open().authenticate(bearer(secret)).bind_slot(SLOT)


def test_connections_of_one_name_are_counted_together() -> None:
    gate = Gate({"limits": {"a": {"connections": 2}}})
    secrets = [gate.token("a"), gate.token("a"), gate.token("b")]
    gatekeeper = gate.open()
    first, _second = admitted(gatekeeper, bearer(secrets[0])), admitted(gatekeeper, bearer(secrets[1]))
    with pytest.raises(QuotaReached, match="principal 'a' is at connections=2; try again in 5 s"):
        admitted(gatekeeper, bearer(secrets[0]))
    for _ in range(5):
        admitted(gatekeeper, bearer(secrets[2]))
    first.release_connection()
    first.release_connection()
    third = admitted(gatekeeper, bearer(secrets[0]))
    assert gatekeeper.statistics().connections == 7
    with pytest.raises(QuotaReached):
        admitted(gatekeeper, bearer(secrets[0]))
    third.release_connection()


def test_rates_of_one_name_are_counted_together() -> None:
    gate = Gate({"limits": {"*": {"frames_per_second": 10, "bytes_per_second": 1000}}})
    secret = gate.token("a")
    gatekeeper = gate.open()
    one, two = gatekeeper.authenticate(bearer(secret)), gatekeeper.authenticate(bearer(secret))
    assert [one.take(5, 10), two.take(5, 10)] == [0, 0]
    assert one.take(5, 0) == pytest.approx(0.5)
    gate.clock.advance(0.5)
    assert two.take(0, 0) == 0
    assert two.take(1, 5000) == pytest.approx(4.0, abs=0.1)


def test_channels_a_principal_may_write_to_are_counted_for_ever() -> None:
    gate = Gate({"limits": {"*": {"channels": 2}}})
    secret = gate.token("a")
    for _ in range(2):  # also after a restart
        gatekeeper = gate.open()
        principal = gatekeeper.authenticate(bearer(secret))
        for channel in ("x", "y", "x"):
            principal.require("publish", channel)
        with pytest.raises(LimitReached, match="channel 'z' of principal 'a': channels is 2"):
            principal.require("publish", "z")
        principal.require("consume", "z")
        gatekeeper.close()


@pytest.mark.guarantee("G12")
def test_channels_of_a_frame_count_all_or_none() -> None:
    gate = Gate({"limits": {"*": {"channels": 2}}})
    secret = gate.token("a")
    gatekeeper = gate.open()
    principal = gatekeeper.authenticate(bearer(secret))
    with pytest.raises(LimitReached, match="channel 'z' of principal 'a'"):
        principal.publishing(["x", "y", "z"])
    with pytest.raises(InvalidName):
        principal.publishing(["x", "two words"])
    assert gatekeeper.bindings.channels_of("a") == set()
    principal.publishing(["p", "q", "p"]).accept()
    assert gatekeeper.bindings.channels_of("a") == {"p", "q"}


@pytest.mark.guarantee("G12")
def test_channels_of_a_refused_frame_are_given_back_on_disk_too() -> None:
    gate = Gate({"limits": {"*": {"channels": 2}}})
    secret = gate.token("a")
    gatekeeper = gate.open()
    principal = gatekeeper.authenticate(bearer(secret))
    stored: Future[None] = Future()
    principal.publishing(["kept", "lost"]).settled_by(stored)
    other: Future[None] = Future()
    gatekeeper.authenticate(bearer(secret)).publishing(["kept"]).settled_by(other)
    with pytest.raises(LimitReached):
        principal.publishing(["more"])  # nobody knows yet
    stored.set_exception(ChannelFull(channel="lost", limit="max_msgs", allowed=1))
    other.set_result(None)
    assert gatekeeper.bindings.channels_of("a") == {"kept"}
    gatekeeper.close()
    again = gate.open()
    assert again.bindings.channels_of("a") == {"kept"}
    again.authenticate(bearer(secret)).publishing(["more"]).accept()
    again.close()
    assert gate.open().bindings.channels_of("a") == {"kept", "more"}


@pytest.mark.guarantee("G12")
def test_channels_wait_with_a_frame_that_found_no_room() -> None:
    gate = Gate({"limits": {"*": {"channels": 1}}})
    secret = gate.token("a")
    gatekeeper = gate.open()
    full = Backpressure(bound="store", used_bytes=1, cap_bytes=1, waited_s=0)
    principal = admitted(gatekeeper, bearer(secret))
    for _ in range(2):  # the second time without the disk
        with pytest.raises(Backpressure), principal.publishing(["x"]):
            raise full
    with pytest.raises(LimitReached):
        gatekeeper.authenticate(bearer(secret)).publishing(["y"])
    principal.release_connection()
    assert gatekeeper.bindings.channels_of("a") == set()
    with pytest.raises(Backpressure), principal.publishing(["x"]):  # a thread that was still at it
        raise full
    gatekeeper.authenticate(bearer(secret)).publishing(["y"]).accept()
    assert gatekeeper.bindings.channels_of("a") == {"y"}


@pytest.mark.guarantee("G12")
def test_never_more_channels_than_allowed_are_taken_at_the_same_time() -> None:
    gate = Gate({"limits": {"*": {"channels": 3}}})
    secret = gate.token("a")
    gatekeeper = gate.open()

    def write(number: int) -> bool:
        claim = None
        try:
            claim = gatekeeper.authenticate(bearer(secret)).publishing([f"c{number}", f"d{number % 2}"])
        except LimitReached:
            return False
        (claim.accept if number % 3 else claim.refuse)()
        return number % 3 > 0

    with ThreadPoolExecutor(8) as threads:
        assert any(threads.map(write, range(60)))
    assert len(gatekeeper.bindings.channels_of("a")) <= 3
    gatekeeper.close()
    assert gate.open().bindings.channels_of("a") == gatekeeper.bindings.channels_of("a")


def test_what_cannot_be_a_channel_is_refused_and_not_counted() -> None:
    gate = Gate({"limits": {"*": {"channels": 1}}})
    secret = gate.token("a")
    principal = gate.open().authenticate(bearer(secret))
    for name in ("two words", "..bad"):
        with pytest.raises(InvalidName):
            principal.require("publish", name)
    principal.require("publish", "good")


def test_accounts_without_connections_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCOUNTS_MAX", 3)
    gatekeeper = Gate(TLS).open()
    busy = gatekeeper.authenticate({}, certificate("busy"))
    busy.admit_connection()
    for number in range(10):
        gatekeeper.authenticate({}, certificate(f"app-{number}"))
    assert len(gatekeeper._accounts) == 3
    assert gatekeeper._account("busy").connections == 1


# -- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G12")
def test_no_secret_is_ever_logged_audited_or_put_into_an_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    gate = Gate(USERS)
    secret = gate.token("a")
    gate.tokens.revoke("a", now_ns=1)
    gatekeeper = gate.open()
    shown = ["hf_" + "q" * 43, secret, PASSWORD, "wr0ng-pass"]
    texts = []
    for headers in (
        bearer(shown[0]),
        bearer(secret),
        basic("alice", "wr0ng-pass"),
        {"authorization": f"Digest {PASSWORD}"},
        {"authorization": f"Basic {PASSWORD}"},
    ):
        with pytest.raises(HoldfastError) as caught:
            gatekeeper.authenticate(headers, peer="192.0.2.1")
        texts += [str(caught.value), repr(caught.value)]
    principal = admitted(gatekeeper, basic("alice", PASSWORD))
    texts += [repr(principal), repr(principal.credential), repr(gatekeeper.config), repr(gatekeeper.statistics())]
    texts += [caplog.text, b"".join(gate.lines).decode()]
    assert len(gate.audited("authentication.failed")) == 5
    for text in texts:
        assert not [one for one in shown if one in text]


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("error", [StoreFailed(file=Path("wal"), reason="sync failed"), ValueError("unforeseen")])
def test_channels_of_a_frame_whose_outcome_is_unknown_stay_counted(error: Exception) -> None:
    gate = Gate({"limits": {"*": {"channels": 2}}})
    secret = gate.token("a")
    gatekeeper = gate.open()
    principal = gatekeeper.authenticate(bearer(secret))
    answer: Future[None] = Future()
    principal.publishing(["x"]).settled_by(answer)
    answer.set_exception(error)
    with pytest.raises(type(error)), principal.publishing(["y"]):
        raise error
    gatekeeper.close()
    assert gate.open().bindings.channels_of("a") == {"x", "y"}


@pytest.mark.guarantee("G12")
def test_token_that_a_reload_found_revoked_does_not_come_back_by_an_older_look() -> None:
    gate = Gate()
    secret = gate.token("a")
    gatekeeper = gate.open()
    older = gatekeeper._look()  # `watch` has read the file, and its turn on the loop is to come
    gate.tokens.revoke("a", now_ns=gate.clock.wall_ns())
    gatekeeper.reload(gate.config())
    gatekeeper._take_tokens(older)
    with pytest.raises(Unauthenticated, match="is revoked"):
        gatekeeper.authenticate(bearer(secret))


@pytest.mark.guarantee("G12")
def test_token_that_was_found_revoked_does_not_come_back_by_an_older_reload() -> None:
    gate = Gate()
    secret = gate.token("a")
    gatekeeper = gate.open()
    older = gatekeeper.prepare(gate.config())
    gate.tokens.revoke("a", now_ns=gate.clock.wall_ns())
    gatekeeper.poll()
    gatekeeper.take(older)
    with pytest.raises(Unauthenticated, match="is revoked"):
        gatekeeper.authenticate(bearer(secret))
