"""The sink: streams and DataFrames into topics, exactly once, whatever is repeated."""

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driftq.client import Client
from tests.pipeline.topics import ask, finished, fresh, records, values, write
from tests.support.process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS = "cast(id as string) as data"


def numbers(spark: "SparkSession", first: int, last: int, partitions: int = 2) -> "DataFrame":
    """Records that are numbers, in the order of their partitions."""
    return spark.range(first, last, 1, partitions).selectExpr(NUMBERS)


def stream(spark: "SparkSession", source: Path, topic: str, checkpoint: str, **options: str) -> None:
    """Everything that is in a directory of Parquet files and was not written yet, into a topic."""
    rows = spark.readStream.schema("data string").option("maxFilesPerTrigger", "2").parquet(str(source))
    writer = rows.writeStream.format("driftq").option("topic", topic).option("checkpointLocation", checkpoint)
    finished(writer.options(**options).trigger(availableNow=True).start)


def test_a_batch_write_appends_in_the_order_of_its_partitions(spark: "SparkSession", server: ServerProcess) -> None:
    topic = fresh()
    for first in (0, 10_000):
        numbers(spark, first, first + 10_000).write.format("driftq").mode("append").option("topic", topic).save()
    assert values(server, topic) == list(range(20_000))


def test_tag_node_and_meta_arrive(spark: "SparkSession", server: ServerProcess) -> None:
    topic = fresh()
    rows = spark.sql("SELECT '{\"a\":1}' data, 't' tag, 'n' node, map('k', 'v') meta, 7L seq, 'elsewhere' topic")
    rows.write.format("driftq").mode("append").option("topic", topic).save()
    [record] = records(server, topic)
    assert {name: record[name] for name in ("$seq", "$tag", "$node", "data", "meta")} == {
        "$seq": 1,
        "$tag": "t",
        "$node": "n",
        "data": {"a": 1},
        "meta": {"k": "v"},
    }


def test_rows_go_to_the_topics_they_name_where_none_is_set(spark: "SparkSession", server: ServerProcess) -> None:
    even, odd = fresh("even"), fresh("odd")
    rows = numbers(spark, 0, 1000).selectExpr("data", f"if(cast(data as int) % 2 = 0, '{even}', '{odd}') topic")
    rows.write.format("driftq").mode("append").save()
    assert values(server, even) == list(range(0, 1000, 2))
    assert values(server, odd) == list(range(1, 1000, 2))


def repeated(server: ServerProcess) -> int:
    """The number of commits of the server that were repetitions."""
    with Client(f"http://{server.address}") as client:
        return int(client.metrics()["repeated_commits"])


def nightly(spark: "SparkSession", topic: str, batch: int) -> None:
    """Ten rows of a batch of writer `nightly`."""
    writer = numbers(spark, batch * 10, batch * 10 + 10).write.format("driftq").mode("append")
    writer.option("topic", topic).option("writer", "nightly").option("batch", batch).save()


def test_a_writer_and_a_batch_are_written_once_and_a_lower_batch_is_refused(
    spark: "SparkSession", server: ServerProcess
) -> None:
    topic, before = fresh(), repeated(server)
    for batch in (0, 0, 6):
        nightly(spark, topic, batch)
    assert values(server, topic) == [*range(10), *range(60, 70)]
    assert repeated(server) == before + 1
    with pytest.raises(Exception, match=r"batch 3 of writer 'nightly' is not above its last batch, 6"):
        nightly(spark, topic, 3)
    assert len(values(server, topic)) == 20


def test_a_writer_in_foreach_batch_continues_with_a_new_checkpoint(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    source, topic = tmp_path / "in", fresh()

    def write(rows: "DataFrame", batch: int) -> None:
        writer = rows.write.format("driftq").mode("append").option("topic", topic)
        writer.option("writer", "copy").option("batch", batch).save()

    def run(checkpoint: Path) -> None:
        rows = spark.readStream.schema("data string").option("maxFilesPerTrigger", "1").parquet(str(source))
        writer = rows.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(write)
        finished(writer.trigger(availableNow=True).start)

    numbers(spark, 0, 30, 3).write.parquet(str(source))
    run(tmp_path / "first")
    assert sorted(values(server, topic)) == list(range(30))
    last = max((tmp_path / "first/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    run(tmp_path / "first")
    assert sorted(values(server, topic)) == list(range(30))
    run(tmp_path / "second")
    assert sorted(values(server, topic)) == sorted([*range(30), *range(30)])


def test_a_row_that_stands_for_a_gap_is_refused_by_name(spark: "SparkSession", server: ServerProcess) -> None:
    source, topic = fresh(), fresh()
    ask(server, "PUT", f"/v0/topics/{source}", {"cap_records": 5})
    write(server, source, list(range(9)))
    rows = spark.read.format("driftq").option("topic", source).option("onDataLoss", "rows").load()
    with pytest.raises(Exception, match=rf"1 rows are tombstones.* of topic '{source}'"):
        rows.write.format("driftq").mode("append").option("topic", topic).save()
    kept = rows.where("kind = 'record'")
    kept.write.format("driftq").mode("append").option("topic", topic).save()
    assert len(values(server, topic)) == kept.count()


def test_a_thread_that_did_not_call_session_can_write(spark: "SparkSession", server: ServerProcess) -> None:
    topic, failures = fresh(), []

    def write_here() -> None:
        try:
            numbers(spark, 0, 10).write.format("driftq").mode("append").option("topic", topic).save()
        except Exception as error:  # noqa: BLE001  # shown by the test
            failures.append(error)

    thread = threading.Thread(target=write_here)
    thread.start()
    thread.join()
    assert failures == []
    assert sorted(values(server, topic)) == list(range(10))


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("overwrite", {}, "only be appended to a topic: use mode"),
        ("append", {"topic": "@orders"}, "belongs to the broker API"),
        ("append", {"batch": "1"}, "set option writer, too"),
        ("append", {"writer": "x"}, "option writer needs option batch"),
        ("append", {"createTopic": "false"}, "there is no topic"),
        ("append", {"createTopic": "no"}, "there is no topic"),
        ("append", {"createTopic": "maybe"}, "createTopic is 'maybe' and must be true or false"),
    ],
)
def test_what_a_topic_cannot_do_is_refused_in_words(
    spark: "SparkSession", mode: str, options: dict[str, str], said: str
) -> None:
    writer = numbers(spark, 0, 1).write.format("driftq").mode(mode)
    with pytest.raises(Exception, match=said):
        writer.options(**{"topic": fresh("refused"), **options}).save()


def test_a_refused_record_fails_the_write_by_name_or_goes_to_the_error_topic(
    spark: "SparkSession", server: ServerProcess
) -> None:
    topic, errors = fresh(), fresh("errors")
    rows = spark.sql("SELECT explode(array('1', '{broken', '3')) data, 'k' tag").repartition(1)
    writer = rows.write.format("driftq").mode("append").option("topic", topic)
    with pytest.raises(Exception, match=r"refuses a record of partition 0 with tag 'k'.*beginning '{broken'"):
        writer.save()
    writer.option("errorTopic", errors).save()
    assert values(server, topic) == [1, 3]
    [note] = values(server, errors)
    assert (note["topic"], note["record"]["data"], note["error"]["code"]) == (topic, "{broken", "invalid_request")


def test_a_failed_write_leaves_nothing_to_be_seen(spark: "SparkSession", server: ServerProcess) -> None:
    topic = fresh()
    ask(server, "PUT", f"/v0/topics/{topic}", {"type": "queue"})
    rows = numbers(spark, 0, 30_000).selectExpr("if(data = '29999', cast(raise_error('no') as string), data) as data")
    with pytest.raises(Exception, match="no"):
        rows.write.format("driftq").mode("append").option("topic", topic).save()
    assert values(server, topic) == []
    assert server.get(f"/v0/topics/{topic}")[1]["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 0}


def test_a_task_that_is_repeated_writes_its_rows_once(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    topic, flag = fresh(), str(tmp_path / "failed")

    def fail_once(batches):  # type: ignore[no-untyped-def]
        for number, batch in enumerate(batches):
            yield batch
            if number == 1 and not os.path.exists(flag):
                open(flag, "w").close()
                raise RuntimeError("the first attempt")

    rows = numbers(spark, 0, 150_000, 1).mapInArrow(fail_once, "data string")
    rows.write.format("driftq").mode("append").option("topic", topic).save()
    assert os.path.exists(flag)
    assert values(server, topic) == list(range(150_000))


def test_a_stream_writes_each_batch_once_and_goes_on_after_a_restart(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path, checkpoint: str
) -> None:
    source, topic = tmp_path / "in", fresh()
    numbers(spark, 0, 4000, 4).write.parquet(str(source))
    stream(spark, source, topic, checkpoint)
    assert sorted(values(server, topic)) == list(range(4000))
    numbers(spark, 4000, 5000, 1).write.mode("append").parquet(str(source))
    stream(spark, source, topic, checkpoint)
    assert sorted(values(server, topic)) == list(range(5000))


def test_a_batch_that_spark_has_not_noted_as_done_is_not_written_again(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path, checkpoint: str
) -> None:
    """What a kill between the topic's commit and Spark's own log leaves behind."""
    source, topic = tmp_path / "in", fresh()
    numbers(spark, 0, 4000, 4).write.parquet(str(source))
    stream(spark, source, topic, checkpoint)
    before = values(server, topic)
    last = max((Path(checkpoint) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (last, last.with_name(f".{last.name}.crc")):
        path.unlink(missing_ok=True)
    stream(spark, source, topic, checkpoint)
    assert last.exists()
    assert values(server, topic) == before


def test_a_stream_that_would_rewrite_its_topic_is_refused(spark: "SparkSession", checkpoint: str) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) data").groupBy("data").count()
    writer = rows.selectExpr("data").writeStream.format("driftq").outputMode("complete").option("topic", fresh())
    with pytest.raises(Exception, match="only be appended to a topic: use outputMode"):
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
