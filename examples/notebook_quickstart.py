"""Spark on a Holdfast store, cell by cell: run it as a script, or paste the cells into a notebook.

    pip install "holdfast[spark]"
    python examples/notebook_quickstart.py [FOLDER]

It makes a small store, reads it as a table, follows it as a stream, and shows that a second run of the stream reads
only what is new.
"""

# %% a store with some trades; in real life a server has it, and programs send to it
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from holdfast import Store
from holdfast.spark import session

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="holdfast-quickstart-"))


def trade(first: int, count: int) -> None:
    """Store some trades; they are in a segment when the store is closed."""
    ids = range(first, first + count)
    symbols = [("BTC", "ETH")[n % 2] for n in ids]
    with Store.open(folder / "store") as store:
        store.commit("trades", pa.record_batch({"id": list(ids), "symbol": symbols, "price": [n * 0.5 for n in ids]}))


trade(first=1, count=1000)

# %% a session that knows the format; give master="spark://…" for a cluster
spark = session("quickstart", conf={"spark.driver.memory": "1g", "spark.log.level": "ERROR"})

# %% the channel as a table
trades = spark.read.format("holdfast").option("path", str(folder / "store")).option("channel", "trades").load()
trades.groupBy("symbol").count().orderBy("symbol").show()

# %% the channel as a stream into Parquet, until all that is there was read
stream = spark.readStream.format("holdfast").option("path", str(folder / "store")).option("channel", "trades")


def land() -> int:
    """Read what is new since the last time; returns how many events that were."""
    writer = stream.load().writeStream.format("parquet").option("path", str(folder / "lake"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(step["numInputRows"] for step in query.recentProgress)


print(f"first run: {land()} events")  # noqa: T201

# %% what comes later is read later, and nothing twice
trade(first=1001, count=500)
print(f"second run: {land()} events")  # noqa: T201
print(f"in the lake: {spark.read.parquet(str(folder / 'lake')).count()} events")  # noqa: T201

# %%
spark.stop()
