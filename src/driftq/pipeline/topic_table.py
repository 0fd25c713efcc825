"""`read_topic()`: a whole topic as a DataFrame, with its cold part read by Spark's own Parquet reader.

Cold segments are Parquet files, which Spark scans without any Python. It can read them directly only if every executor
sees the files, they belong to this server, and their live rows are those that the server reports. The rest of the
topic, from the first segment for which this is not true, comes from the source. The rows are the same either way.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.server_connection import Wire
from driftq.pipeline.source.read_columns import ALL, PARTITION_TAG, check_schema, ddl, names_of
from driftq.pipeline.source.read_options import ReadOptions, api_key_of, parse
from driftq.pipeline.source.split_plan import SeqGap, TopicFiles
from driftq.pipeline.source.split_reader import loss
from driftq.pipeline.source.topic_listing import TopicListing
from driftq.pipeline.spark_session import SERVER_CONF, is_local, key_of
from driftq.system.hang_guard import Patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE = "seq bigint, ts timestamp_ltz, node string, tag string, meta string, data string"
_TEXTS = {"topic", "seq", "ts", "node", "tag", "data"}
CALCULATED = {
    "kind": "'record'",
    "meta": "from_json(meta, 'map<string,string>')",
    "headers": "transform(map_entries(from_json(meta, 'map<string,string>')), "
    "each -> struct(each.key AS key, cast(each.value AS binary) AS value))",
    "partition": rf"try_cast(nullif(regexp_extract(tag, '^{PARTITION_TAG.pattern}\\z', 1), '') as int)",
    **{name: f"get_json_object(data, '$.{name}')" for name in ("key", "value", "envelope", "routing")},
}
"""SQL expressions for the columns that are not in the files."""


class _Cold(NamedTuple):
    """The part of a topic that Spark's Parquet reader can scan."""

    files: list[str]
    dead: list[int]
    last: int
    whole: bool
    """Whether all rows of the files are inside the range."""


def read_topic(
    spark: "SparkSession", topic: str, *, columns: Sequence[str] | None = None, **given: str | bool | int
) -> "DataFrame":
    """Return a topic as a DataFrame. `columns` defaults to all; `given` are options of the format `driftq`."""
    known = spark.conf.get(SERVER_CONF, None)
    options = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}
    asked = parse({**options, "topic": topic}, server=known)
    if asked.schema is not None or asked.as_variant:
        raise PipelineError("read_topic does not parse data: use from_json or parse_json on its rows, or spark.read")
    wanted = (
        list(columns)
        if columns is not None
        else names_of(with_gaps=asked.with_gaps, with_v1=asked.with_v1, with_headers=asked.with_headers)
    )
    if not wanted:
        raise PipelineError("read_topic needs at least one column: leave `columns` out to get all")
    check_schema((name, ALL.get(name, "")) for name in wanted)
    schema = ddl(wanted)
    with Wire(asked.server, api_key_of(options, key_of(spark))) as wire:
        wire.check()
        topics = TopicListing(wire, asked)
        (manifest,) = topics.wanted()
        start, end = topics.begin(manifest), topics.end(manifest)
        cold = _cold(manifest, start, end) if _executors_see(spark, manifest) else None
        if cold is None:
            return _live(spark, topic, schema, options)
        gaps = topics.gaps(manifest, start, min(end, cold.last))
    if gaps and asked.on_data_loss == "fail":
        raise loss(manifest.topic, gaps)
    found = _scan(spark, manifest.topic, cold, max(start + 1, manifest.earliest), min(end, cold.last), asked, wanted)
    if gaps and asked.on_data_loss == "rows":
        found = found.unionByName(_gap_rows(spark, manifest.topic, gaps, schema, wanted))
    if cold.last < end:
        unbound = {name: value for name, value in options.items() if name.lower() not in _BOUNDS}
        rest = unbound | {"startingSeq": str(cold.last + 1), "endingSeq": str(end)}
        found = found.unionByName(_live(spark, topic, schema, rest))
    return found


_BOUNDS = frozenset(("startingseq", "startingtimestamp", "endingseq", "endingtimestamp"))


def _live(spark: "SparkSession", topic: str, schema: str, options: dict[str, str]) -> "DataFrame":
    return spark.read.format("driftq").schema(schema).options(**options).option("topic", topic).load()


def _executors_see(spark: "SparkSession", manifest: TopicFiles) -> bool:
    """Whether the cold directory of this server is visible on the driver and on every executor."""
    root, server_id = manifest.cold_root, manifest.server_id
    if root is None or not any(segment.tier == "cold" for segment in manifest.segments):
        return False

    def sees(_: object) -> bool:
        mark = Path(root, ".driftq.id")
        try:
            return Patience().call(lambda: mark.read_text(encoding="ascii"), str(mark)).strip() == server_id
        except (OSError, ValueError):
            return False

    if not sees(None):
        return False
    if is_local(spark):
        return True
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001  # a remote session has no context, so executors cannot be checked
        return False
    slots = max(2, context.defaultParallelism)
    return all(context.parallelize(range(slots), slots).map(sees).collect())


def _cold(manifest: TopicFiles, start: int, end: int) -> _Cold | None:
    """Return the cold segments from the start of the range up to the first one that Spark cannot scan."""
    try:
        from driftq.pipeline.source import local_segments as in_place
    except ImportError as error:
        raise PipelineError(
            f"to read the topic's files, this process needs a module that it cannot import: {error}"
        ) from error

    at, files, dead, whole = max(start + 1, manifest.earliest), [], [], True
    for segment in sorted(manifest.segments, key=lambda each: each.first):
        if segment.last < at:
            continue
        if segment.tier != "cold" or segment.first > at or at > end:
            break
        assert manifest.cold_root is not None
        path = Path(manifest.cold_root, segment.file)
        try:
            dead += in_place.dead_seqs(path, segment, manifest.earliest)
        except in_place.Elsewhere:
            break
        files.append(str(path))
        whole = whole and segment.first >= at and segment.last <= end
        at = segment.last + 1
        while (hole := next((gap for gap in manifest.holes if gap.first <= at <= gap.last), None)) is not None:
            at = hole.last + 1
    return _Cold(files, dead, at - 1, whole) if files else None


def _scan(
    spark: "SparkSession", topic: str, cold: _Cold, first: int, last: int, asked: ReadOptions, wanted: list[str]
) -> "DataFrame":
    """Return the rows of the files. Seqs are read as bigint: Spark would read the unsigned column as slow decimals."""
    from pyspark.sql import functions as f

    # A file that is gone or damaged is an error: a setting of the session must not turn its rows into silence.
    reader = spark.read.schema(_FILE).options(ignoreMissingFiles=False, ignoreCorruptFiles=False)
    rows = reader.parquet(*cold.files)
    if not cold.whole:
        rows = rows.where(f"seq >= {first} and seq <= {last}")
    for column, text in (("tag", asked.tag), ("node", asked.node)):
        if text is not None:
            rows = rows.where(f.col(column) == f.lit(text))
    if asked.tag_prefix is not None:
        rows = rows.where(f.col("tag").startswith(asked.tag_prefix))
    if cold.dead:
        gone = spark.createDataFrame([(seq,) for seq in cold.dead], "seq bigint")
        rows = rows.join(f.broadcast(gone), "seq", "left_anti")
    rows = rows.withColumn("topic", f.lit(topic))
    return rows.select(
        *(
            f.col(name)
            if name in _TEXTS
            else f.expr(f"cast({CALCULATED.get(name, 'null')} as {ALL[name]})").alias(name)
            for name in wanted
        )
    )


def _gap_rows(
    spark: "SparkSession", topic: str, gaps: Sequence[SeqGap], schema: str, wanted: Sequence[str]
) -> "DataFrame":
    rows = []
    for gap in gaps:
        known = {"topic": topic, "seq": gap.last, "kind": "tombstone", "gap_from": gap.first, "gap_to": gap.last}
        known["reason"] = gap.told
        rows.append(tuple(known.get(name) for name in wanted))
    return spark.createDataFrame(rows, schema)
