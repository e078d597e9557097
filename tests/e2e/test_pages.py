"""The pages that tell people what to type: it is typed, in the order of the page, against real processes.

Which blocks are not run, and why, stands on the pages. `recover-from-damage.md` has its own test, which damages stores.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Sender, Store
from tests.e2e.page import RUN_LANGUAGES, Block, PageRun, blocks_of
from tests.e2e.served import PATIENCE_S
from tests.tidy.tree import ROOT

HOWTO = ROOT / "docs" / "howto"
TRADES = [{"symbol": "ABC", "price": 10.5}, {"symbol": "XYZ", "price": 7.25}]
pytestmark = pytest.mark.timeout(900)  # many processes, one after the other
KEEP = "data: data\nretention: {mode: limits}\n"

_SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def without_spark(text: str) -> str:
    """The page without the sections that start Spark."""
    return _SECTION.sub(lambda found: "" if "holdfast pipeline run lake" in found[0] else found[0], text)


def serve(run: PageRun, *, settings: str = "data: data\n") -> None:
    """A server as pages suppose it, in a terminal that they do not use."""
    run.block(Block("yaml", "stage.yaml", settings, ""))
    run.block(Block("sh", "terminal 0", "holdfast serve -c stage.yaml\n", ""))
    run.block(Block("text", "terminal 0", "holdfast ready …\n", ""))


def served_trades(run: PageRun) -> None:
    serve(run, settings=KEEP)
    with Sender(addr=run.moved("127.0.0.1:9000")) as sender:
        sender.send("trades", TRADES)
        sender.send("logs.web", {"line": "hello"})
        assert sender.drain(PATIENCE_S)


def a_store(run: PageRun) -> None:
    with Store.open(run.folder / "data") as store:
        store.commit("trades", pa.RecordBatch.from_pylist(TRADES))


def served_trades_and_a_store(run: PageRun) -> None:
    a_store(run)
    (run.folder / "data").rename(run.folder / "store")
    served_trades(run)


def a_bucket(run: PageRun) -> None:
    """A tier whose server has lost its disk."""
    (run.folder / "bucket").mkdir()
    serve(run, settings=f"data: lost\ntier: {{url: 'file://{run.folder}/bucket', prefix: plant-7}}\n")
    with Sender(addr=run.moved("127.0.0.1:9000"), request_durable_ack="on") as sender:
        sender.send("orders", [{"id": number} for number in range(3)])
        assert sender.drain(PATIENCE_S)
    run.end_terminal("terminal 0")
    shutil.rmtree(run.folder / "lost")


def the_examples(run: PageRun) -> None:
    for path in (ROOT / "examples" / "dataflow").iterdir():
        run.block(Block("yaml", f"examples/dataflow/{path.name}", path.read_text(encoding="utf-8"), ""))


STAGES: dict[str, Callable[[PageRun], None]] = {
    "consume-events": served_trades,
    "free-a-full-disk": a_store,
    "otlp": the_examples,
    "read-and-query": served_trades_and_a_store,
    "restore-from-the-tier": a_bucket,
    "upgrade": a_store,
}
"""What a page supposes to be there; the others suppose nothing."""
WITH_TESTS_OF_THEIR_OWN = {"send-events", "read-with-spark", "run-a-pipeline", "recover-from-damage"}
OTHERS = sorted({path.stem for path in HOWTO.glob("*.md")} - WITH_TESTS_OF_THEIR_OWN)


def test_readme_works_as_it_is_written(tmp_path: Path) -> None:
    with PageRun(tmp_path) as run:
        run.run(page("README.md"))


def test_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    with PageRun(tmp_path) as run:
        run.run(without_spark(page("docs/tutorial.md")))


@pytest.mark.long
def test_tutorial_works_with_its_spark_section(tmp_path: Path) -> None:
    with PageRun(tmp_path) as run:
        run.run(page("docs/tutorial.md"))


def test_page_on_sending_works_and_stores_what_it_says(tmp_path: Path) -> None:
    with PageRun(tmp_path) as run:
        serve(run)
        run.run(page("docs/howto/send-events.md"))
        run.end_terminal("terminal 0")
    with Store.open(tmp_path / "data") as store:
        stored = {name: [row for part in store.read(name) for row in part.to_pylist()] for name in store.channels()}
    assert [row["price"] for row in stored["trades"]] == [12.5, 12.6, 7.0, 12.7, 12.8]
    assert [row["sensor"] for row in stored["measures"]] == ["a", "b", "c", "d"]
    assert [row["id"] for row in stored["orders"]] == [1]
    assert len(list((tmp_path / "slots" / "app-1" / "rejected").iterdir())) == 2


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_howto_works_as_it_is_written(tmp_path: Path, name: str) -> None:
    with PageRun(tmp_path) as run:
        if name in STAGES:
            STAGES[name](run)
        run.run(page(f"docs/howto/{name}.md"))


@pytest.mark.long
def test_page_on_spark_works_as_one_program(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(page("docs/howto/read-with-spark.md")) if block.language == "python"]
    end = "for query in spark.streams.active:\n    query.processAllAvailable()\n    query.stop()\nspark.stop()\n"
    with PageRun(tmp_path) as run:
        served_trades(run)
        run.block(Block("python", "page.py", "".join(block.body for block in blocks) + end, ""))
        run.block(Block("sh", "", "python page.py\n", ""))


@pytest.mark.long
def test_pipeline_of_the_page_runs_and_ends(tmp_path: Path) -> None:
    (file, *_) = [block for block in blocks_of(page("docs/howto/run-a-pipeline.md")) if block.language == "yaml"]
    with PageRun(tmp_path) as run:
        served_trades(run)
        run.block(Block("yaml", "lake.yaml", file.body, ""))
        run.block(Block("sh", "", "holdfast pipeline validate lake.yaml --plan\n", ""))
        run.block(Block("sh", "", "holdfast pipeline run lake.yaml --available-now\n", ""))


def test_every_block_that_is_not_run_says_why() -> None:
    pages = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *HOWTO.glob("*.md")]
    reasons = [block.reason for path in pages for block in blocks_of(path.read_text(encoding="utf-8")) if block.reason]
    assert all(len(reason.split()) >= 2 for reason in reasons)
    left_out = [block for path in pages for block in blocks_of(path.read_text(encoding="utf-8")) if block.reason]
    assert {block.language for block in left_out} <= RUN_LANGUAGES
