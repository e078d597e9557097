"""The demo's proof can fail: each kind of planted flaw is counted as what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.cli.demo.check import AcceptedRows, ChannelResult, StoredRows, compare
from holdfast.cli.demo.events import ROWS, first_id, make_batch, make_events, make_frame
from holdfast.cli.demo.ledger import Ledger
from holdfast.cli.demo.run import DemoResult, Life, count_different, read_back
from holdfast.cli.demo.show import Show
from holdfast.cli.demo.writer import Answered, Closed, Opened, Sent
from holdfast.store.verify import VerifyReport
from holdfast.testing import CrashFilesystem, ManualClock


def ints(*numbers: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def compared(*ids: int, accepted: int = 5, sent: int = 5, first_seq: int = 1, altered: int = 0) -> ChannelResult:
    """Events 1 to `accepted` were accepted under the same seqs; `ids` are stored, in that order."""
    wanted = np.arange(1, accepted + 1, dtype=np.int64)
    seqs = np.arange(first_seq, first_seq + len(ids), dtype=np.int64)
    stored = StoredRows(ints(*ids), seqs, altered)
    return compare("trades", sent=sent, accepted=AcceptedRows(wanted, wanted), stored=stored)


def flaws(result: ChannelResult) -> dict[str, int]:
    names = ("lost", "duplicated", "out_of_order", "moved", "altered", "invented")
    return {name: getattr(result, name) for name in names if getattr(result, name)}


def test_everything_there_once_and_in_order_is_flawless() -> None:
    result = compared(1, 2, 3, 4, 5)
    assert flaws(result) == {}
    assert result.flawless
    assert (result.sent, result.accepted, result.stored) == (5, 5, 5)


def test_event_that_was_never_answered_may_be_stored_or_not() -> None:
    assert compared(1, 2, 3, accepted=3).flawless
    assert compared(1, 2, 3, 4, accepted=3).flawless


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ((1, 2, 3, 4), {"lost": 1}),
        ((2, 3, 4, 5), {"lost": 1, "moved": 4}),
        ((1, 2, 4, 5), {"lost": 1, "moved": 2}),
        ((), {"lost": 5}),
        ((1, 2, 3, 4, 5, 5), {"duplicated": 1}),
        ((1, 2, 2, 3, 4, 5), {"duplicated": 1, "moved": 3}),
        ((1, 2, 3, 4, 5, 1, 2), {"duplicated": 2, "out_of_order": 2}),
        ((1, 3, 2, 4, 5), {"out_of_order": 1, "moved": 2}),
        ((1, 2, 3, 4, 5, 99), {"invented": 1}),
        ((1, 2, 3, 4, 5, 0, -7), {"invented": 2}),
    ],
)
def test_each_planted_flaw_is_counted_as_what_it_is(ids: tuple[int, ...], found: dict[str, int]) -> None:
    result = compared(*ids)
    assert flaws(result) == found
    assert not result.flawless


def test_event_under_another_seq_than_its_receipt_is_moved() -> None:
    assert flaws(compared(1, 2, 3, 4, 5, first_seq=2)) == {"moved": 5}


def test_altered_values_are_not_flawless() -> None:
    assert not compared(1, 2, 3, 4, 5, altered=1).flawless


# --------------------------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize("channel", ROWS)
def test_event_follows_from_its_id_alone(channel: str) -> None:
    together = make_batch(channel, 1, 500)
    for first in (1, 77, 499):
        assert make_events(channel, ints(first)).equals(together.slice(first - 1, 1))


def test_frames_carry_consecutive_ids() -> None:
    for channel, rows in ROWS.items():
        ids = [
            value
            for fsn in (1, 2, 3)
            for entry in make_frame(fsn)
            if entry.channel == channel
            for value in entry.batch.column("id").to_pylist()
        ]
        assert ids == list(range(1, 3 * rows + 1))
        assert first_id(channel, 4) == 3 * rows + 1


def test_altered_row_in_a_store_is_noticed_when_it_is_read_back() -> None:
    store = Store.open("/demo", filesystem=CrashFilesystem(), clock=ManualClock(), inline=True)
    batch = make_batch("trades", 1, 20)
    prices = batch.column("price").to_pylist()
    prices[7] += 0.01
    altered = batch.set_column(batch.schema.get_field_index("price"), "price", pa.array(prices))
    store.commit("trades", make_batch("trades", 21, 20))
    store.commit("trades", altered)
    stored = read_back(store, "trades")
    store.close()
    assert stored.altered == 1
    assert stored.ids.tolist() == [*range(21, 41), *range(1, 21)]
    assert stored.seqs.tolist() == list(range(1, 41))
    assert count_different(altered, batch) == 1


# --------------------------------------------------------------------------------------------------------------- ledger


def answer(fsn: int, *, duplicate: bool = False) -> Answered:
    return Answered(fsn, duplicate, {channel: (fsn - 1) * rows + 1 for channel, rows in ROWS.items()})


def test_ledger_tells_with_which_frame_to_go_on() -> None:
    ledger = Ledger()
    for fsn in (1, 2, 3):
        ledger.note(Sent(fsn))
    ledger.note(answer(1))
    assert (ledger.sent_fsn, ledger.answered_fsn) == (3, 1)
    for fsn in (2, 3, 4):
        ledger.note(Sent(fsn))
    ledger.note(answer(2, duplicate=True))
    ledger.note(Closed(1))
    assert (ledger.resent, ledger.duplicates, ledger.answered_fsn) == (2, 1, 2)
    assert ledger.sent_events("trades") == 4 * ROWS["trades"]


def test_ledger_knows_id_and_seq_of_every_accepted_event() -> None:
    ledger = Ledger()
    for fsn in (1, 2):
        ledger.note(Sent(fsn))
        ledger.note(answer(fsn))
    rows = ledger.accepted("quotes")
    assert rows.ids.tolist() == rows.seqs.tolist() == list(range(1, 2 * ROWS["quotes"] + 1))


def test_answer_out_of_turn_is_refused() -> None:
    ledger = Ledger()
    ledger.note(Sent(1))
    with pytest.raises(ChildProcessError, match="answered frame 2, expected was frame 1"):
        ledger.note(answer(2))


# ------------------------------------------------------------------------------------------------------------- the show


def demo_result(row: ChannelResult) -> DemoResult:
    opened = Opened(1, 12.0, log_records=3, recovered_frames=2, recovered_events=4, torn_bytes_cut=7, segments=1)
    return DemoResult(
        held=row.flawless,
        seed=42,
        directory=None,
        kills=1,
        writing_seconds=2.0,
        sent=row.sent,
        accepted=row.accepted,
        stored=row.stored,
        lost=row.lost,
        duplicated=row.duplicated,
        out_of_order=row.out_of_order,
        changed=row.moved + row.altered + row.invented,
        resent_frames=1,
        duplicate_frames=1,
        accepted_per_second=1.0,
        read_per_second=1.0,
        lives=(Life(1, True, 1.5, opened, 5, 2, 1, 1), Life(2, False, 1.5, opened, 5, 0, 2, 1)),
        channels=(row,),
        verify=VerifyReport("store", True, None, 1, 1, 1, 1, 1, ()),
    )


def test_verdict_is_good_only_when_the_promise_held(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(quiet=False)
    show.result(demo_result(compared(1, 2, 3, 4, 5)))
    assert "5 events accepted, 1 kill: 0 lost, 0 duplicated, 0 out of order." in capsys.readouterr().out
    show.result(demo_result(compared(1, 2, 4, 4)))
    text = capsys.readouterr().out
    assert "The promise did not hold: 2 lost, 1 duplicated" in text
    assert "--seed 42" in text


def test_quiet_show_prints_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    show = Show(quiet=True)
    result = demo_result(compared(1, 2, 3, 4, 5))
    show.begin(tmp_path, seconds=1.0, kills=1, seed=1)
    with show.moving(1.0):
        show.opened(1, result.lives[0].opened)
        show.progress(1, accepted=1, seconds=0.1)
        show.ended(result.lives[0])
    show.result(replace(result, held=False))
    show.keep(tmp_path)
    assert capsys.readouterr().out == ""
