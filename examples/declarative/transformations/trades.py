"""A channel as a streaming table, and a view of what it holds. `spark` is given by spark-pipelines."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(format="parquet")
def trades() -> DataFrame:
    """Every event of the channel, once."""
    source = spark.readStream.format("holdfast").option("path", spark.conf.get("trades.path"))
    return source.option("channel", "trades").load()


@dp.materialized_view(format="parquet")
def per_symbol() -> DataFrame:
    """Computed anew at each run."""
    return spark.table("trades").groupBy("symbol").count()
