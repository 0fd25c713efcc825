"""Topics as streams."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from driftq.pipeline.server_connection import Wire
from driftq.pipeline.source.cursor_listener import CursorListener, places_in
from tests.pipeline.topics import PATIENCE_S, ask, cursor_at, fill, finished
from tests.support.process import ServerProcess, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def _start(spark: "SparkSession", place: str, *, once: bool = True, name: str | None = None, **options: str) -> Any:
    """A query into Parquet files below a place, which holds its checkpoint too."""
    reader = spark.readStream.format("driftq")
    for key, value in options.items():
        reader = reader.option(key, value)
    writer = reader.load().writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
    writer = writer.option("path", f"{place}/rows")
    if name is not None:
        writer = writer.queryName(name)
    return (writer.trigger(availableNow=True) if once else writer).start()


def _run(spark: "SparkSession", place: str, **options: Any) -> "StreamingQuery":
    """The same until all that is there has been read."""
    return finished(lambda: _start(spark, place, **options))


def _seqs(spark: "SparkSession", place: str) -> list[int]:
    return sorted(row.seq for row in spark.read.parquet(f"{place}/rows").select("seq").collect())


@contextmanager
def _running(query: "StreamingQuery") -> Iterator["StreamingQuery"]:
    try:
        yield query
    finally:
        query.stop()


def test_a_query_reads_in_batches_and_goes_on_where_it_was(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "s-batches", range(250))
    place = str(tmp_path)
    query = _run(spark, place, topic="s-batches", maxRecordsPerTrigger="100", name="s batches")
    batches = [progress["numInputRows"] for progress in query.recentProgress]
    assert [size for size in batches if size] == [100, 100, 50]
    offset = places_in(query.recentProgress[-1]["sources"][0]["endOffset"])
    assert offset["s-batches"].seq == 250
    fill(server, "s-batches", range(250, 300))
    _run(spark, place, topic="s-batches", name="s batches")
    assert _seqs(spark, place) == list(range(1, 301))
    cursor_at(server, "s-batches", "spark:s-batches", 300)


def test_a_query_that_was_killed_while_it_noted_its_first_batch_begins_again(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    """What Spark had begun to write is still there, and it would take that for the notes of another query."""
    fill(server, "s-first", range(5))
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.9df90a24-af86-4e70-81bd-467cd6762918.tmp").touch()
    _run(spark, str(tmp_path), topic="s-first")
    assert _seqs(spark, str(tmp_path)) == [1, 2, 3, 4, 5]


def test_the_place_of_a_query_and_its_lag_are_seen_in_the_server(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "s-lag", range(20))
    _run(spark, str(tmp_path), topic="s-lag", name="lagging")
    fill(server, "s-lag", range(7))
    assert cursor_at(server, "s-lag", "spark:lagging", 20)["lag"] == 7


def test_a_query_that_starts_in_the_future_delivers_nothing_older(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "s-future", range(3))
    place, hour = str(tmp_path), 3_600_000
    last = ask(server, "POST", "/v0/topics/s-future/diff", {})["records"][-1]["$ts"]
    _run(spark, place, topic="s-future", startingTimestamp=str(last + hour))
    fill(server, "s-future", range(3, 6))
    query = _run(spark, place, topic="s-future", startingTimestamp=str(last + hour))
    assert list(places_in(query.recentProgress[-1]["sources"][0]["endOffset"])) == ["s-future"]
    assert _seqs(spark, place) == []


def test_a_query_at_latest_that_dies_in_its_first_batch_skips_nothing(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "s-latest", range(10))
    place = str(tmp_path)
    reader = spark.readStream.format("driftq").option("topic", "s-latest").option("startingSeq", "latest")
    frame = reader.load()
    fill(server, "s-latest", range(10, 15))

    def fail(rows: Any, batch: int) -> None:
        raise RuntimeError(f"batch {batch} dies with {rows.count()} rows")

    query = (
        frame.writeStream.foreachBatch(fail)
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="dies with 5 rows"):
        query.awaitTermination(PATIENCE_S)
    fill(server, "s-latest", range(15, 18))
    _run(spark, place, topic="s-latest", startingSeq="latest")
    assert _seqs(spark, place) == list(range(11, 19))


def test_a_topic_that_was_made_again_stops_a_query_until_it_is_told_to_go_on(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "s-again", range(8))
    place = str(tmp_path)
    _run(spark, place, topic="s-again")
    ask(server, "DELETE", "/v0/topics/s-again")
    fill(server, "s-again", range(3))
    with pytest.raises(
        PySparkException, match=r"topic 's-again' has lost the end of an earlier topic of this name \(recreated\)"
    ):
        _run(spark, place, topic="s-again")
    query = _run(spark, place, topic="s-again", onDataLoss="skip")
    assert _seqs(spark, place) == [1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8]
    assert places_in(query.recentProgress[-1]["sources"][0]["endOffset"])["s-again"].lost == 1


def test_a_topic_that_was_deleted_and_not_made_again_stops_a_query_by_name(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "s-gone", range(8))
    fill(server, "s-stays", range(8))
    place, both = str(tmp_path), "s-gone,s-stays"
    _run(spark, place, topics=both)
    ask(server, "DELETE", "/v0/topics/s-gone")
    fill(server, "s-stays", range(2))
    with pytest.raises(PySparkException, match="topic 's-gone' was deleted after seq 8 was read"):
        _run(spark, place, topics=both)
    _run(spark, place, topics=both, onDataLoss="skip")
    assert len(_seqs(spark, place)) == 18


def test_records_that_were_evicted_under_a_query_are_rows_of_it(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    ask(server, "PUT", "/v0/topics/s-evicted", {"cap_records": 10})
    fill(server, "s-evicted", range(5))
    place = str(tmp_path)
    _run(spark, place, topic="s-evicted", onDataLoss="rows")
    fill(server, "s-evicted", range(5, 30))
    _run(spark, place, topic="s-evicted", onDataLoss="rows")
    rows = spark.read.parquet(f"{place}/rows").orderBy("seq").collect()
    assert [row.seq for row in rows if row.kind == "record"] == [*range(1, 6), *range(21, 31)]
    gaps = [(row.gap_from, row.gap_to, row.reason) for row in rows if row.kind == "tombstone"]
    assert gaps == [(6, 20, "cap")]


def test_a_live_query_sees_new_topics_of_its_pattern_and_reports_the_head(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "s-live-1", range(4))
    with _running(_start(spark, str(tmp_path), once=False, topicPattern="s-live-.*")) as query:
        query.processAllAvailable()
        fill(server, "s-live-2", range(6))
        fill(server, "s-live-1", range(1))
        query.processAllAvailable()
        (source,) = query.recentProgress[-1]["sources"]
        latest = places_in(source["latestOffset"])
    assert {topic: place.seq for topic, place in latest.items()} == {"s-live-1": 5, "s-live-2": 6}
    rows = spark.read.parquet(f"{tmp_path}/rows").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in rows} == {"s-live-1": 5, "s-live-2": 6}


def test_the_api_key_is_in_no_file_of_a_checkpoint(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "s-key", range(3))
    query = _run(spark, str(tmp_path), topic="s-key", apiKey="hunter2-secret")
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    assert "hunter2" not in json.dumps([progress.json for progress in query.recentProgress])


def test_the_place_of_a_query_is_told_to_the_server_that_it_reads(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    """Whatever the session's is: a topic of that name may be there too."""
    (tmp_path / "other").mkdir()
    with serving(tmp_path / "other") as other:
        other.wait_ready()
        for each, count in ((server, 20), (other, 3)):
            fill(each, "s-two-places", range(count))
        url = f"http://{other.address}"
        _run(spark, str(tmp_path), name="two-places", topic="s-two-places", server=url)
        cursor_at(other, "s-two-places", "spark:two-places", 3)
    assert server.get("/v0/topics/s-two-places/cursors/spark:two-places")[0] == 404


def test_the_cursor_of_a_query_goes_back_where_the_query_begins_anew(server: ServerProcess) -> None:
    """Under the same name with a new checkpoint: a cursor that stays ahead would hide its lag."""
    fill(server, "s-anew", range(20))
    epoch = server.get("/v0/topics/s-anew/segments")[1]["epoch"]
    with Wire(f"http://{server.address}", None) as wire:
        for batch, seq in enumerate((20, 5)):
            CursorListener(wire).tell("spark:anew", {"s-anew": {"epoch": epoch, "seq": seq, "began": 0}}, batch)
    assert server.get("/v0/topics/s-anew/cursors/spark:anew")[1]["lag"] == 15
