"""A driver that is killed: it writes a channel to Parquet, a folder per micro-batch, and says so on its output.

    python driver_process.py ADDR FOLDER [available-now]

It registers nothing: Spark finds the source by the name of our module.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession


def main(addr: str, folder: str, *, ends: bool) -> None:
    """Run the query until it ends or is killed."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.Builder().master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "600m").config("spark.log.level", "ERROR")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = builder.getOrCreate()

    def land(frame: DataFrame, batch_id: int) -> None:
        frame.write.mode("overwrite").parquet(f"{folder}/out/batch={batch_id}")
        sys.stdout.write(f"batch {batch_id}\n")
        sys.stdout.flush()

    stream = spark.readStream.format("holdfast").option("addr", addr).option("channel", "events")
    limited = stream if ends else stream.option("maxEventsPerTrigger", "40")
    frame = limited.option("subscriber", "lake").load()
    write = frame.writeStream.foreachBatch(land).option("checkpointLocation", f"{folder}/checkpoint")
    write = write.trigger(availableNow=True) if ends else write.trigger(processingTime="100 milliseconds")
    write.start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], ends=sys.argv[3:] == ["available-now"])
