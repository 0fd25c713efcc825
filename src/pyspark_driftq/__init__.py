"""Makes `format("driftq")` known to any Spark session: Spark looks into packages called `pyspark_*` for this name."""

from driftq.pipeline.source.data_source import DriftqSource as DefaultSource

__all__ = ["DefaultSource"]
