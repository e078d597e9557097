"""Spark looks for modules whose names begin with `pyspark_` and registers their `DefaultSource`."""

from holdfast.spark.source import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
