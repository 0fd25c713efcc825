"""Options that all jobs with streaming queries share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from driftq.pipeline.spark.failures import in_one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_RECORDS = 500_000
_BYTES = 256 << 20
"""Limit for the estimated bytes of records in one batch: a quarter of the limit of one commit."""


class StreamOptions(Struct, frozen=True, kw_only=True):
    """How a job reads its stream: once or continuously, and the limits of a batch."""

    once: Annotated[bool, Meta(description="Read all existing records, then end. Default: run until stopped.")] = False
    interval_s: Annotated[
        Annotated[float, Meta(ge=0)],
        Meta(description="Seconds between two batches; 0 starts a batch as soon as there are records."),
    ] = 1.0
    max_records: Annotated[Annotated[int, Meta(ge=1)], Meta(description="Maximum number of records in one batch.")] = (
        _RECORDS
    )
    allow_empty: Annotated[
        bool, Meta(description="Do not fail if no topic matches; read topics that are created later.")
    ] = False

    def limits(self) -> dict[str, str]:
        """Return the limits of a batch, and whether there must be a topic, as options of the source."""
        limits = {"maxRecordsPerTrigger": str(self.max_records), "maxBytesPerTrigger": str(_BYTES)}
        return limits | {"allowEmpty": str(self.allow_empty).lower()}


def triggered(writer: "DataStreamWriter", options: StreamOptions) -> "DataStreamWriter":
    """Set the trigger of a query: once, or with the interval of the options."""
    if options.once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{options.interval_s} seconds")


def in_short(function: "Callable[[DataFrame, int], None]") -> "Callable[[DataFrame, int], None]":
    """Return a function for `foreachBatch` whose errors are one line.

    Spark searches the whole error text with a regular expression that uses one stack frame per character. A Java stack
    trace, as a stop in the middle of a batch raises it, is too long for that.
    """

    def take(rows: "DataFrame", batch: int) -> None:
        try:
            function(rows, batch)
        except Exception as error:  # noqa: BLE001  # raised again in one line
            raise in_one_line(error) from None

    return take
