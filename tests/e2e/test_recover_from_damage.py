"""The page `docs/howto/recover-from-damage.md`, walked: each procedure on a store with that damage, as real files.

A section's shell lines are run one after the other; a comment `exit code N` says how a line ends, otherwise with 0. Its
Python is run in between, in the order of the page.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast import Store
from holdfast.cli.main import app
from holdfast.disk.appendlog import read_log_file
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import CorruptData, InvalidConfig
from tests.e2e.page import blocks_of, expected_code
from tests.tidy.tree import ROOT
from tests.unit.store.left_behind import flip, logs, make_store, segments

PAGE = (ROOT / "docs" / "howto" / "recover-from-damage.md").read_text(encoding="utf-8")
HOLDFAST = Path(sys.executable).with_name("holdfast")

_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, str]:
    return dict(_SECTION.findall(PAGE))


def damage_record(store: Path) -> None:
    path = logs(store)[0]
    found = read_log_file(LocalFilesystem(), path, last=False)
    flip(path, found.records[9].position - found.header.start_position + 60)


def end_too_early(store: Path) -> None:
    path = logs(store)[0]
    path.write_bytes(path.read_bytes()[:-1000])


def damage_segment(store: Path) -> None:
    flip(segments(store)[1], 3000)


def lose_catalog(store: Path) -> None:
    for path in store.glob("catalog.db*"):
        path.unlink()


def damage_catalog(store: Path) -> None:
    (store / "catalog.db").write_bytes(b"this was a database " * 400)


def damage_acks(store: Path) -> None:
    (path,) = (store / "ack").glob("*.log")
    flip(path, 20)


def nothing(_store: Path) -> None:
    pass


SCENES: list[tuple[str, Callable[[Path], None]]] = [
    ("First of all", damage_record),
    ("The write-ahead log", damage_record),
    ("A log file that ends too early", end_too_early),
    ("Segments", damage_segment),
    ("The catalog", lose_catalog),
    ("The catalog", damage_catalog),
    ("The acknowledgement log", damage_acks),
    ("Reading past wrong checksums", damage_record),
    ("After a repair", nothing),
]


def run_shell(line: str, directory: Path) -> tuple[int, str]:
    """A line of the page as a process of its own: exit code and what it printed."""
    command = line.split("#", maxsplit=1)[0].split()
    if command[0] == "holdfast":
        command[0] = str(HOLDFAST)
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def run_here(line: str, directory: Path) -> tuple[int, str]:
    """The same in this process, which is a second faster; other commands are processes of their own."""
    command = line.split("#", maxsplit=1)[0].split()
    if command[0] != "holdfast":
        return run_shell(line, directory)
    with contextlib.chdir(directory):
        done = CliRunner().invoke(app, command[1:])
    return done.exit_code, done.output


def run_section(title: str, directory: Path, run: Callable[[str, Path], tuple[int, str]] = run_here) -> str:
    """Type what the section says; returns what was printed."""
    printed = ""
    for block in blocks_of(sections()[title]):
        if block.language == "python":
            with contextlib.chdir(directory), contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.body, title, "exec"), {})
            printed += out.getvalue()
            continue
        for command in block.commands():
            code, told = run(command, directory)
            assert code == expected_code(command), f"{command}\n{told}"
            printed += told
    return printed


def count_events(store: Path) -> dict[str, int]:
    with Store.open(store) as opened:
        return {name: sum(batch.num_rows for batch in opened.read(name)) for name in opened.channels()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_store(tmp_path / "data")
    return tmp_path


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(("title", "damage"), SCENES, ids=lambda item: item if isinstance(item, str) else item.__name__)
def test_procedure_of_the_page_works_as_it_is_written(
    directory: Path, title: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(directory / "data", directory / "data.copy")
    damage(directory / "data")
    if "cp -r" in sections()[title]:
        shutil.rmtree(directory / "data.copy")
    run_section(title, directory)
    if title not in {"First of all", "Reading past wrong checksums"}:
        events = count_events(directory / "data")
        assert events["trades"] == 1500 or title == "A log file that ends too early"
        assert events["orders"] >= 40


def test_every_section_with_commands_is_walked() -> None:
    with_commands = {title for title, body in sections().items() if blocks_of(body)}
    assert with_commands == {title for title, _ in SCENES}


def test_links_inside_the_page_lead_to_its_sections() -> None:
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in sections()}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors


def test_first_commands_change_nothing_in_the_store(directory: Path) -> None:
    damage_record(directory / "data")
    before = {
        path: path.read_bytes() for path in (directory / "data").rglob("*") if path.is_file() and path.name != "lock"
    }
    printed = run_section("First of all", directory, run_shell)
    assert "orders" in printed
    after = {
        path: path.read_bytes() for path in (directory / "data").rglob("*") if path.is_file() and path.name != "lock"
    }
    assert after == before


def test_store_refuses_to_open_until_its_log_is_repaired(directory: Path) -> None:
    damage_record(directory / "data")
    with pytest.raises(CorruptData):
        Store.open(directory / "data")
    run_section("The write-ahead log", directory, run_shell)
    with Store.open(directory / "data") as store:
        (loss,) = store.losses()
        assert (loss.channel, loss.reason, loss.events) == ("orders", "damage", 2)


def test_consent_is_told_and_refused_twice_in_a_row(directory: Path) -> None:
    end_too_early(directory / "data")
    with pytest.raises(CorruptData):
        Store.open(directory / "data")
    printed = run_section("A log file that ends too early", directory)
    assert "orders" in printed
    with pytest.raises(InvalidConfig, match="once without it"):
        Store.open(directory / "data", truncate_bad_tail=True)
    Store.open(directory / "data").close()
    Store.open(directory / "data", truncate_bad_tail=True).close()


def test_good_copy_put_back_after_a_repair_is_entered_again(directory: Path) -> None:
    store = directory / "data"
    with Store.open(store) as opened:  # so that only the segments hold the events
        opened.commit("orders", pa.record_batch({"id": [1]}))
    Store.open(store).close()
    path = segments(store)[1]
    good = path.read_bytes()
    flip(path, 3000)
    assert run_here("holdfast repair data --apply", directory)[0] == 0
    lost = 1500 - count_events(store)["trades"]
    assert lost > 0
    path.write_bytes(good)
    assert run_here("holdfast repair data", directory)[0] == 1
    assert run_here("holdfast repair data --apply", directory)[0] == 0
    assert run_here("holdfast verify data", directory)[0] == 0
    assert count_events(store)["trades"] == 1500
