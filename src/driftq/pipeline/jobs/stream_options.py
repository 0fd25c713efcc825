"""What jobs that read streams can be told in common."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from driftq.pipeline.spark.failures import in_one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_RECORDS = 500_000
_BYTES = 256 << 20
"""Of records in one batch, as far as one can tell before: a quarter of what one commit may have."""


class StreamOptions(Struct, frozen=True, kw_only=True):
    """How a stream is read."""

    once: Annotated[bool, Meta(description="Read what there is, then end; else go on until stopped.")] = False
    interval_s: Annotated[
        Annotated[float, Meta(ge=0)],
        Meta(description="Seconds between two batches; 0 is as soon as there is something."),
    ] = 1.0
    max_records: Annotated[Annotated[int, Meta(ge=1)], Meta(description="Records in one batch at most.")] = _RECORDS

    def limits(self) -> dict[str, str]:
        """As options of the source."""
        return {"maxRecordsPerTrigger": str(self.max_records), "maxBytesPerTrigger": str(_BYTES)}


def triggered(writer: "DataStreamWriter", options: StreamOptions) -> "DataStreamWriter":
    """A query that is run as the options say."""
    if options.once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{options.interval_s} seconds")


def in_short(function: "Callable[[DataFrame, int], None]") -> "Callable[[DataFrame, int], None]":
    """A function for `foreachBatch` whose failures are one line.

    Spark looks through all that such a function raised with a regular expression that takes a frame of the stack for
    every letter: pages of Java's, which a stop in the middle of a batch raises, are more than it has.
    """

    def take(rows: "DataFrame", batch: int) -> None:
        try:
            function(rows, batch)
        except Exception as error:  # noqa: BLE001  # raised again, without its pages
            raise in_one_line(error) from None

    return take
