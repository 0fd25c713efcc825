"""Registers `format("driftq")`: Spark looks for `DefaultSource` in all packages named `pyspark_*`."""

from driftq.pipeline.source.data_source import DriftqSource as DefaultSource

__all__ = ["DefaultSource"]
