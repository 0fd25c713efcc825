"""`read_lake()` and `history()`: archived records as a DataFrame, without a jar.

Delta's log names the files of the newest version, so Spark's own Parquet reader gets exactly these. The log also has
the day of each file and its first and last seq: files outside the range that is asked for are not opened.
"""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from driftq.pipeline.errors import AbsentError
from driftq.pipeline.lake.delta_tables import Lake, LakeTable
from driftq.pipeline.lake.table_layout import DAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = "topic, seq, ts, node, tag, meta, data"
_SCHEMA = (
    "topic string, epoch bigint, seq bigint, ts timestamp_ltz, node string, tag string, meta map<string,string>, "
    f"data string, {DAY} date"
)


def read_lake(
    spark: "SparkSession",
    lake: str | Path,
    topic: str,
    *,
    from_seq: int | None = None,
    to_seq: int | None = None,
    from_day: date | None = None,
    to_day: date | None = None,
) -> "DataFrame":
    """Return the archived records of a topic, from all its epochs. Seqs and days are inclusive, and prune files.

    The files are fixed by the call: call it again to see newer records. Raises AbsentError if the lake has no such
    topic.
    """
    from pyspark.sql import functions as f

    table = _table_of(Lake(lake), topic)
    bounds = ((DAY, from_day, to_day), ("seq", from_seq, to_seq))
    files = [row["path"] for row in _files(table) if all(_may_have(row, *bound) for bound in bounds)]
    reader = spark.read.schema(_SCHEMA)
    rows = reader.option("basePath", str(table.path)).parquet(*files) if files else spark.createDataFrame([], _SCHEMA)
    rows = rows.where(f.col("topic") == topic)
    for name, first, last in bounds:
        if first is not None:
            rows = rows.where(f.col(name) >= f.lit(first))
        if last is not None:
            rows = rows.where(f.col(name) <= f.lit(last))
    return rows


def history(spark: "SparkSession", lake: str | Path, topic: str, **options: str) -> "DataFrame":
    """Return the lake and the live topic as one table: each record of this epoch once, without a seam.

    Records up to the mark of the table come from the lake, later ones from the server. `options` are those of the
    format `driftq`, such as `server`.
    """
    from driftq.client import Client
    from driftq.pipeline.source.read_options import server_of
    from driftq.pipeline.spark_session import SERVER_CONF, key_of

    table = _table_of(Lake(lake), topic)
    server = server_of(options, spark.conf.get(SERVER_CONF, None))
    with Client(server, key_of(spark)) as client:
        epoch = client.topic(topic).segments().epoch
    mark = table.mark(topic, epoch)
    old = read_lake(spark, lake, topic, to_seq=mark).where(f"epoch = {epoch}")
    asked = options | {"server": server, "topic": topic, "startingSeq": str(mark + 1)}
    new = spark.read.format("driftq").options(**asked)
    return old.selectExpr(*_COLUMNS.split(", ")).unionByName(new.load().selectExpr(*_COLUMNS.split(", ")))


def _table_of(lake: Lake, topic: str) -> LakeTable:
    found = next((table for table in lake.archives() if table.holds(topic)), None)
    if found is None:
        raise AbsentError(f"the lake {lake.root} has no topic {topic!r}; `driftq pipeline run archive` copies topics")
    return found


def _files(table: LakeTable) -> list[dict[str, Any]]:
    """Return path, day, and first and last seq of the files of the newest version."""
    actions = pa.table(DeltaTable(table.path).get_add_actions(flatten=True)).to_pylist()
    names = {table.path.joinpath(path).name: path for path in table.files()}
    return [
        {"path": names[Path(row["path"]).name], DAY: (day, day), "seq": (row.get("min.seq"), row.get("max.seq"))}
        for row in actions
        for day in (row.get(f"partition.{DAY}"),)
    ]


def _may_have(row: dict[str, Any], name: str, first: Any, last: Any) -> bool:
    """Whether a file may have rows between two values. A file without statistics may."""
    low, high = row[name]
    return (first is None or high is None or high >= first) and (last is None or low is None or low <= last)
