"""The console in a real Chromium, in front of a real server."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from holdfast import Consumer, Sender, Store
from holdfast.errors import Unauthenticated
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port
from tests.tidy.tree import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt install chromium")]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PICTURES = ROOT / "build" / "console"
"""What the pages looked like in the last run; not part of the repository."""
PATIENCE_MS = PATIENCE_S * 1000


VICTIM = """
import os, sys
from holdfast import Sender
sender = Sender(addr=f"127.0.0.1:{sys.argv[1]}")
sender.send("trades", {"n": 2, "text": ""})
assert sender.drain(60)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Visit:
    """A page, and what its script complained about."""

    def __init__(self, browser: Browser, url: str, *, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(url)

    def sees(self, text: str) -> None:
        """Wait until the text is on the page."""
        expect(self.page.locator("body")).to_contain_text(text)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedProcess]:
    found = ServedProcess(tmp_path / "data", "--admin", f"127.0.0.1:{free_port()}", port=free_port()).start()
    yield found
    found.kill()


@pytest.fixture
def visit(browser: Browser, server: ServedProcess) -> Iterator[Visit]:
    found = Visit(browser, server.admin)
    yield found
    assert found.complaints == []
    found.context.close()


def send(server: ServedProcess, channel: str, *values: int) -> None:
    with Sender(addr=f"127.0.0.1:{server.port}") as sender:
        sender.send(channel, [{"n": value, "text": f"event {value}"} for value in values])
        assert sender.drain(PATIENCE_S)


def keep(page: Page, name: str) -> None:
    """A picture for people."""
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def test_page_shows_channels_and_follows_new_events(visit: Visit, server: ServedProcess) -> None:
    visit.sees("accepting")
    visit.sees("No channel yet")
    send(server, "trades", *range(40))
    expect(visit.page.get_by_role("row", name="trades")).to_contain_text("40")
    send(server, "trades", 40, 41)
    expect(visit.page.get_by_role("row", name="trades")).to_contain_text("42")
    keep(visit.page, "overview")


def test_event_can_be_looked_into(visit: Visit, server: ServedProcess) -> None:
    send(server, "trades", 1, 2, 3)
    visit.page.get_by_role("link", name="trades").first.click()
    visit.page.get_by_role("button", name="Look").nth(1).click()
    expect(visit.page.locator("#event")).to_contain_text('"text": "event 2"')
    visit.sees("Nobody follows this channel")
    keep(visit.page, "channel")


def test_killed_server_is_seen_as_an_outage_and_its_return_too(visit: Visit, server: ServedProcess) -> None:
    send(server, "trades", 1)
    visit.sees("accepting")
    server.kill()
    visit.sees("no answer for")
    server.start()
    visit.sees("back after")
    expect(visit.page.locator("#status")).to_have_text("accepting")
    send(server, "trades", 2)
    expect(visit.page.get_by_role("row", name="trades")).to_contain_text("2")


def test_refusals_and_dead_letters_can_be_looked_into(visit: Visit, server: ServedProcess) -> None:
    send(server, "trades", 1, 2)
    with Sender(addr=f"127.0.0.1:{server.port}", error_handler=lambda _error: None) as sender:
        sender.send("trades", {"n": "no number"})
        sender.drain(PATIENCE_S)
    with Consumer.from_conf(f"ws::addr=127.0.0.1:{server.port};", channel="trades", durable="billing") as consumer:
        next(iter(consumer)).reject("cannot be billed")
    page = visit.page
    page.keyboard.press("e")
    refused = page.get_by_role("row", name="SCHEMA_MISMATCH").first
    expect(refused).to_contain_text("column 'n': expected int64, found string")
    expect(refused).to_contain_text("connection")
    expect(refused.get_by_role("link", name="trades")).to_be_visible()
    keep(page, "errors")
    page.get_by_role("link", name="trades.dead").first.click()
    page.get_by_role("button", name="Look").click()
    expect(page.locator("#event")).to_contain_text("cannot be billed")
    keep(page, "dead-letter")


def test_killed_sender_is_shown_as_away_and_one_that_says_goodbye_is_not(visit: Visit, server: ServedProcess) -> None:
    send(server, "trades", 1)
    victim = subprocess.run([sys.executable, "-c", VICTIM, str(server.port)], check=False, timeout=PATIENCE_S)
    assert victim.returncode == -signal.SIGKILL
    with Sender(addr=f"127.0.0.1:{server.port}") as sender:
        sender.send("trades", {"n": 3, "text": ""})
        assert sender.drain(PATIENCE_S)
        page = visit.page
        page.keyboard.press("n")
        expect(page.locator("table").first.locator("tbody tr")).to_have_count(2)
        visit.sees("away for")
        visit.sees("connected for")
        keep(page, "senders")
    expect(page.locator("table").first.locator("tbody tr")).to_have_count(1)


def test_accept_latency_is_measured_and_shown(visit: Visit, server: ServedProcess) -> None:
    tile = visit.page.locator(".tile", has_text="Accepted within")
    expect(tile).to_contain_text("–")
    send(server, "trades", 1)
    expect(tile.locator(".value")).to_contain_text(re.compile(r"\d m?s"))


def test_segments_say_who_still_needs_them(browser: Browser, tmp_path: Path) -> None:
    with Store.open(tmp_path / "data") as store:
        fast = store.subscriber("fast", channels=["trades"])
        store.subscriber("slow", channels=["trades"])
        for number in range(3):
            store.commit("trades", pa.record_batch({"n": [number]}))
            store.flush()
        leases = [fast.poll(PATIENCE_S) for _ in range(3)]
        assert leases[1] is not None
        leases[1].ack()
    with ServedProcess(tmp_path / "data") as server:
        visit = Visit(browser, f"{server.admin}/#/channel/trades")
        segments = visit.page.locator(".strip rect title")
        expect(segments).to_have_count(3)
        texts = [text.partition("; ")[2] for text in segments.all_text_contents()]
        assert texts == ["needed by fast, slow", "needed by slow", "needed by fast, slow"]
        expect(visit.page.get_by_role("row", name="fast")).to_contain_text("1")
        assert visit.complaints == []
        keep(visit.page, "segments")
        visit.context.close()


def test_keyboard_reaches_search_rows_and_theme(visit: Visit, server: ServedProcess) -> None:
    send(server, "apples", 1)
    send(server, "pears", 1)
    visit.sees("pears")
    page = visit.page
    page.keyboard.press("/")
    page.keyboard.type("pea")
    expect(page.get_by_role("heading", level=1)).to_have_text("Channels")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("pears")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_thousand_channels_are_searched_without_drawing_them_all(browser: Browser, tmp_path: Path) -> None:
    batch = pa.record_batch({"n": [1]})
    with Store.open(tmp_path / "data") as store:
        futures = [store.commit_async(f"channel.{number:04}", batch) for number in range(1000)]
        for future in futures:
            future.result(PATIENCE_S)
    server = ServedProcess(tmp_path / "data").start()
    try:
        visit = Visit(browser, f"{server.admin}/#/channels")
        visit.sees("900 are hidden")
        expect(visit.page.locator("tbody tr")).to_have_count(100)
        visit.page.locator("#search").fill("0999")
        expect(visit.page.locator("tbody tr")).to_have_count(1)
        visit.sees("channel.0999")
        assert visit.complaints == []
        visit.context.close()
    finally:
        server.kill()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone_in_light_and_dark(browser: Browser, server: ServedProcess, scheme: str) -> None:
    send(server, "trades", 1)
    visit = Visit(browser, server.admin, width=390, scheme=scheme)
    visit.sees("trades")
    page = visit.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the page is wider than the phone"
    light = "rgb(251, 251, 249)"
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == light) == (scheme == "light")
    keep(page, f"phone-{scheme}")
    visit.context.close()


def test_credential_is_asked_for_and_rights_are_those_of_the_api(browser: Browser, tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text(
        """
auth:
  users:
    writer: {password: "${WRITER}"}
    reader: {password: "${READER}"}
access:
  - {principal: writer, allow: ["*"]}
  - {principal: reader, allow: consume, channels: [trades]}
"""
    )
    passwords = {"WRITER": "of the writer", "READER": "of the reader"}
    server = ServedProcess(tmp_path / "data", "-c", str(config), environment=passwords).start()
    try:
        with Sender(addr=f"127.0.0.1:{server.port}", username="writer", password="of the writer") as sender:
            sender.send("trades", {"n": 1})
            sender.send("secrets", {"n": 1})
            assert sender.drain(PATIENCE_S)
        with pytest.raises(Unauthenticated):
            Sender(addr=f"127.0.0.1:{server.port}", username="writer", password="wrong")
        visit = Visit(browser, server.admin)
        page = visit.page
        page.get_by_label("User").fill("writer")
        page.get_by_label("Password").fill("of the writer")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("row", name="refused lately, no frames")).to_be_visible()
        visit.context.close()
        visit = Visit(browser, server.admin)
        page = visit.page
        page.get_by_label("User").fill("reader")
        page.get_by_label("Password").fill("of the reader")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("row", name="trades")).to_be_visible()
        assert "secrets" not in page.content()
        assert page.get_by_text("Events accepted").count() == 0, "figures of the whole server are for administrators"
        page.goto(f"{server.admin}/#/channel/secrets")
        visit.sees("secrets")
        expect(page.locator(".empty")).to_contain_text("secrets")
        assert visit.complaints == []
        visit.context.close()
    finally:
        server.kill()
