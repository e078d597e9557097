"""What the connection loop decides, one decision at a time, in virtual time."""

from __future__ import annotations

import pytest

from holdfast.errors import Category, Incompatible, NotConnected, SenderHalted, Unauthenticated
from holdfast.sender.core import DialFailure, Effect, Halt, Opening, Outcome, unconfirmed
from holdfast.sender.happenings import EventKind
from holdfast.sender.policies import Policy
from holdfast.testing import ManualClock
from holdfast.wire import replies
from tests.unit.sender.cores import (
    acked,
    errors,
    halts,
    hangups,
    kinds,
    make_core,
    ok,
    online,
    pause_s,
    refuse,
    rejects,
    send,
    wait,
)

UNREACHABLE = DialFailure(Outcome.UNREACHABLE, "connection refused")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# --- acknowledgements -----------------------------------------------------------------------------------------------


def test_answers_are_mapped_from_wire_numbers_to_frames(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core, acked=41)
    send(core, 42, 45)
    assert acked(core.received(ok(1))) == [43]
    assert acked(core.received(ok(3))) == [45]


def test_answer_beyond_what_was_sent_is_clamped(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 2)
    assert acked(core.received(ok(999))) == [2]


def test_answer_before_anything_was_sent_moves_nothing(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core, acked=4)
    assert core.received(ok(0)) == []


def test_acknowledgements_never_move_back(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 5)
    assert acked(core.received(ok(4))) == [4]
    assert acked(core.received(ok(2))) == []


def test_symbol_messages_before_the_first_frame_take_wire_numbers(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    core.next_step()
    core.opened(0, Opening(acked_fsn=9, published_fsn=20, catch_up=2))
    send(core, 10, 12)
    assert acked(core.received(ok(1))) == []
    assert acked(core.received(ok(2))) == [10]
    assert acked(core.received(ok(4))) == [12]


def test_next_connection_begins_behind_what_was_acknowledged(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 9)
    core.received(ok(3))
    core.closed(None, "cut")
    wait(core, clock)
    online(core, acked=3)
    assert core.may_send(4)
    send(core, 4, 9)
    assert acked(core.received(ok(0))) == [4]
    assert core.totals.frames_replayed == 6


# --- durable acknowledgements ---------------------------------------------------------------------------------------


def test_durable_mode_waits_for_every_channel_of_a_frame(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core, durable=True)
    send(core, 0, 2)
    assert core.received(ok(0, a=5, b=7)) == []
    assert core.received(ok(1, a=6)) == []
    assert acked(core.received(replies.encode_durable_ack([("a", 6)]))) == []
    assert acked(core.received(replies.encode_durable_ack([("b", 7)]))) == [1]


def test_durable_mode_passes_frames_without_channels_once_they_are_first(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core, durable=True)
    send(core, 0, 2)
    assert core.received(ok(0, a=5)) == []
    assert core.received(ok(1)) == []
    assert acked(core.received(replies.encode_durable_ack([("a", 9)]))) == [1]
    assert acked(core.received(ok(2))) == [2]


def test_durable_marks_never_move_back(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core, durable=True)
    send(core, 0, 1)
    core.received(replies.encode_durable_ack([("a", 9)]))
    core.received(replies.encode_durable_ack([("a", 3)]))
    assert acked(core.received(ok(1, a=8))) == [1]


def test_dropped_frame_waits_until_frames_before_it_are_durable(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core, durable=True)
    send(core, 0, 3)
    core.received(ok(0, a=1))
    assert core.received(refuse(1)) == []
    assert not core.may_send(4)
    effects = core.received(replies.encode_durable_ack([("a", 1)]))
    assert acked(effects) == [0]
    assert [item.rejection.first_fsn for item in rejects(effects)] == [1]
    assert hangups(effects)


def test_keepalive_is_due_only_while_confirmations_are_pending(clock: ManualClock) -> None:
    core = make_core(clock=clock, keepalive_ms=200)
    online(core, durable=True)
    send(core, 0, 0)
    assert core.keepalive_at_ns is None
    core.received(ok(0, a=1))
    core.spoke()
    assert core.keepalive_at_ns == clock.monotonic_ns() + 200_000_000
    core.received(replies.encode_durable_ack([("a", 1)]))
    assert core.keepalive_at_ns is None


def test_server_that_does_not_confirm_durability_halts_at_once(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    core.next_step()
    effects = core.dial_failed(0, unconfirmed("h0"))
    assert isinstance(halts(effects)[0].error, Incompatible)
    assert core.next_step() is None


# --- refusals -------------------------------------------------------------------------------------------------------


def test_dropped_frame_is_rejected_alone_and_the_next_connection_is_at_once(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 9)
    core.received(ok(2))
    effects = core.received(refuse(3, text="column x"))
    (reject,) = rejects(effects)
    assert (reject.rejection.first_fsn, reject.rejection.last_fsn) == (3, 3)
    assert reject.error.message == "column x"
    assert reject.error.policy is Policy.DROP
    core.closed(None, "")
    assert pause_s(core, clock) == 0
    online(core, acked=3)
    assert core.may_send(4)


def test_nothing_is_sent_or_believed_after_a_refusal(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 5)
    core.received(refuse(0))
    assert not core.may_send(6)
    assert core.received(ok(5)) == []


def test_refusal_with_unanswered_frames_before_it_drops_nothing(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 5)
    effects = core.received(refuse(3))
    assert not rejects(effects)
    assert acked(effects) == []
    assert hangups(effects)


@pytest.mark.parametrize("wire_seq", [-1, 50])
def test_refusal_of_what_was_never_sent_drops_nothing(clock: ManualClock, wire_seq: int) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 1)
    effects = core.received(refuse(wire_seq))
    assert not rejects(effects)
    assert acked(effects) == []


def test_refusal_before_anything_was_sent_moves_nothing(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core, acked=6, published=9)
    effects = core.received(refuse(0))
    assert not rejects(effects)
    assert [(error.first_fsn, error.last_fsn) for error in errors(effects)] == [(7, 7)]


@pytest.mark.parametrize("category", [Category.PARSE_ERROR, Category.INTERNAL_ERROR, Category.SECURITY_ERROR])
def test_halting_categories_latch_before_the_handler_is_told(clock: ManualClock, category: Category) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 3)
    core.received(ok(1))
    effects = core.received(refuse(2, category))
    assert isinstance(effects[0], Halt)
    error = effects[0].error
    assert isinstance(error, SenderHalted)
    assert (error.category, error.first_fsn, error.last_fsn) == (category, 2, 2)
    assert errors(effects)[0].policy is Policy.HALT
    core.closed(None, "")
    assert core.next_step() is None


def test_status_that_is_not_known_halts(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 0)
    raw = bytearray(refuse(0))
    raw[0] = 0x7F
    effects = core.received(bytes(raw))
    assert halts(effects)
    assert errors(effects)[0].status == 0x7F


def test_server_that_is_not_writable_is_left_for_the_next_one(clock: ManualClock) -> None:
    core = make_core(clock=clock, hosts=2)
    online(core)
    send(core, 0, 0)
    effects = core.received(refuse(0, Category.NOT_WRITABLE))
    assert not halts(effects)
    core.closed(None, "")
    wait(core, clock)
    step = core.next_step()
    assert step is not None
    assert step[0] == 1


def test_server_that_is_never_writable_never_halts_the_sender(clock: ManualClock) -> None:
    core = make_core(clock=clock, strikes_max=2, poison_window_ms=0)
    for _ in range(50):
        wait(core, clock)
        online(core)
        send(core, 0, 0)
        core.received(refuse(0, Category.NOT_WRITABLE))
        core.closed(None, "")
    assert core.halted is None


# --- frames that end connections ------------------------------------------------------------------------------------


def retry_all(_category: Category) -> Policy:
    return Policy.RETRY


def test_frame_refused_too_often_halts_only_after_the_window(clock: ManualClock) -> None:
    core = make_core(clock=clock, policy_of=retry_all, strikes_max=4, poison_window_ms=5000)
    started_ns = clock.monotonic_ns()
    strikes = 0
    while core.halted is None:
        wait(core, clock)
        online(core)
        send(core, 0, 0)
        core.received(refuse(0, Category.WRITE_ERROR))
        core.closed(None, "")
        strikes += 1
    assert strikes >= 4
    assert clock.monotonic_ns() - started_ns >= 5_000_000_000
    assert isinstance(core.halted, SenderHalted)
    assert core.halted.category is Category.PROTOCOL_VIOLATION


def test_acceptance_of_the_frame_takes_its_strikes_back(clock: ManualClock) -> None:
    core = make_core(clock=clock, policy_of=retry_all, strikes_max=2, poison_window_ms=0)
    for _ in range(20):
        online(core)
        send(core, 0, 0)
        core.received(refuse(0, Category.WRITE_ERROR))
        core.closed(None, "")
        wait(core, clock)
        online(core)
        send(core, 0, 0)
        core.received(ok(0))
        core.closed(1001, "restarting")
        wait(core, clock)
    assert core.halted is None


@pytest.mark.parametrize("code", [1002, 1003, 1007, 1008, 1009, 1010])
def test_close_codes_that_blame_us_halt_with_the_unanswered_span(clock: ManualClock, code: int) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 4)
    core.received(ok(1))
    effects = core.closed(code, "bad frame")
    (halt,) = halts(effects)
    assert isinstance(halt.error, SenderHalted)
    assert (halt.error.first_fsn, halt.error.last_fsn) == (2, 4)
    assert errors(effects)[0].message == f"ws-close[{code}]: bad frame"


@pytest.mark.parametrize("code", [1011, 4000])
def test_other_complaints_count_as_strikes_until_they_halt(clock: ManualClock, code: int) -> None:
    core = make_core(clock=clock, strikes_max=3, poison_window_ms=0)
    for _ in range(3):
        assert core.halted is None
        wait(core, clock)
        online(core)
        send(core, 0, 0)
        core.closed(code, "oops")
    assert core.halted is not None


@pytest.mark.parametrize("code", [1000, 1001, 1012, 1013, None])
def test_orderly_closes_and_cuts_never_halt(clock: ManualClock, code: int | None) -> None:
    core = make_core(clock=clock, strikes_max=2, poison_window_ms=0)
    for _ in range(30):
        wait(core, clock)
        online(core)
        send(core, 0, 0)
        core.closed(code, "bye")
    assert core.halted is None


def test_answer_that_cannot_be_read_ends_the_connection_not_the_sender(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 0)
    effects = core.received(ok(0) + b"x")
    assert acked(effects) == []
    assert hangups(effects)
    assert core.halted is None


def test_frame_that_is_too_large_waits_for_those_before_it_then_strikes(clock: ManualClock) -> None:
    core = make_core(clock=clock, strikes_max=1, poison_window_ms=0)
    online(core)
    send(core, 0, 2)
    assert core.block(3, "frame 3 has 100 bytes, the server takes 50") == []
    assert not core.may_send(3)
    effects = core.received(ok(2))
    assert acked(effects) == [2]
    assert "takes 50" in str(halts(effects)[0].error)


def test_frames_of_another_session_get_a_connection_of_their_own(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    core.next_step()
    core.opened(0, Opening(-1, 9, limit_fsn=3))
    send(core, 0, 2)
    assert not core.may_send(3)
    assert hangups(core.received(ok(1))) == []
    assert hangups(core.received(ok(2)))
    core.closed(None, "")
    assert pause_s(core, clock) == 0


# --- connecting and pacing ------------------------------------------------------------------------------------------


def test_hosts_of_a_round_are_tried_without_a_pause(clock: ManualClock) -> None:
    core = make_core(clock=clock, hosts=3)
    effects: list[Effect] = []
    for host in range(3):
        assert pause_s(core, clock) == 0
        step = core.next_step()
        assert step is not None
        assert step[0] == host
        effects = core.dial_failed(host, UNREACHABLE)
    assert EventKind.ALL_ENDPOINTS_UNREACHABLE in kinds(effects)
    assert pause_s(core, clock) > 0


def test_pauses_double_with_jitter_and_are_bounded(clock: ManualClock) -> None:
    core = make_core(clock=clock, initial_backoff_ms=100, max_backoff_ms=1000)
    bases = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    for base in bases:
        core.next_step()
        core.dial_failed(0, UNREACHABLE)
        assert base <= wait(core, clock) < 2 * base


def test_round_of_role_rejects_waits_the_shortest_time_each_time(clock: ManualClock) -> None:
    core = make_core(clock=clock, initial_backoff_ms=100)
    for _ in range(5):
        core.next_step()
        core.dial_failed(0, DialFailure(Outcome.ROLE_SOON, "catching up"))
        assert wait(core, clock) == pytest.approx(0.1)


def test_server_that_accepts_and_hangs_up_is_not_hammered(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    connections = 0
    while clock.monotonic_ns() < 60 * 1_000_000_000:
        wait(core, clock)
        online(core)
        send(core, 0, 0)
        core.closed(None, "cut")
        connections += 1
    assert connections < 30


def test_connection_that_brought_something_is_replaced_soon(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    for acked_fsn in range(20):
        online(core, acked=acked_fsn - 1)
        send(core, acked_fsn, acked_fsn)
        core.received(ok(0))
        clock.advance(1)
        core.closed(None, "cut")
        assert pause_s(core, clock) == 0


def test_another_host_takes_over_when_a_connection_breaks(clock: ManualClock) -> None:
    core = make_core(clock=clock, hosts=2)
    assert kinds(online(core)) == [EventKind.CONNECTED]
    send(core, 0, 0)
    assert kinds(core.closed(None, "cut")) == [EventKind.DISCONNECTED]
    wait(core, clock)
    step = core.next_step()
    assert step is not None
    assert step[0] == 1
    assert kinds(core.opened(1, Opening(-1, 0))) == [EventKind.FAILED_OVER]


def test_state_is_restored_once_what_was_sent_before_is_acknowledged(clock: ManualClock) -> None:
    core = make_core(clock=clock)
    online(core)
    send(core, 0, 3)
    core.closed(None, "cut")
    wait(core, clock)
    assert kinds(online(core, published=9)) == [EventKind.RECONNECTED]
    send(core, 0, 9)
    assert kinds(core.received(ok(2))) == []
    assert kinds(core.received(ok(3))) == [EventKind.STATE_RESTORED]


def test_refused_credentials_halt_and_are_announced(clock: ManualClock) -> None:
    core = make_core(clock=clock, hosts=2)
    core.next_step()
    error = Unauthenticated(reason="h0 answered 401")
    effects = core.dial_failed(0, DialFailure(Outcome.REFUSED, "answered 401", error))
    assert EventKind.AUTH_FAILED in kinds(effects)
    assert halts(effects)[0].error is error


def test_start_without_retry_tries_every_host_once(clock: ManualClock) -> None:
    core = make_core(clock=clock, hosts=2, start="off")
    core.next_step()
    assert not halts(core.dial_failed(0, UNREACHABLE))
    core.next_step()
    (halt,) = halts(core.dial_failed(1, UNREACHABLE))
    assert isinstance(halt.error, NotConnected)
    assert len(halt.error.failures) == 2


def test_start_with_retry_gives_up_after_its_time(clock: ManualClock) -> None:
    core = make_core(clock=clock, start="on", start_ms_max=3000)
    while core.halted is None:
        wait(core, clock)
        core.dial_failed(0, UNREACHABLE)
    assert clock.monotonic_ns() >= 3_000_000_000
    assert isinstance(core.halted, NotConnected)


def test_running_sender_never_gives_up_whatever_the_start_was(clock: ManualClock) -> None:
    core = make_core(clock=clock, start="off")
    online(core)
    core.closed(None, "cut")
    for _ in range(200):
        wait(core, clock)
        core.dial_failed(0, UNREACHABLE)
    assert core.halted is None
    assert core.outage is not None
    assert core.outage.attempts == 200
    assert "connection refused" in str(core.outage)


def test_symbols_that_never_fit_halt_after_their_window(clock: ManualClock) -> None:
    core = make_core(clock=clock, gap_window_ms=10_000)
    while core.halted is None:
        wait(core, clock)
        core.cannot_begin(0, "a symbol of 900 bytes does not fit")
    assert clock.monotonic_ns() >= 10_000_000_000
    assert isinstance(core.halted, SenderHalted)
    assert core.halted.category is Category.DICTIONARY_GAP
