"""Options of the source with a real Spark: those that Kafka users know, typed data, many topics, wrong servers."""

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from driftq.pipeline.server_connection import Wire
from tests.pipeline.topics import ask, cursor_at, fill, finished, table, write
from tests.support.process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _read(spark: "SparkSession", **options: str) -> "DataFrame":
    return spark.read.format("driftq").options(**options).load()


def test_options_of_kafka_read_a_range_and_a_stream_shows_its_group(
    spark: "SparkSession", server: ServerProcess, tmp_path: Path
) -> None:
    fill(server, "k-orders", range(100), meta={"by": "test"})
    bounds = {"startingOffsets": '{"k-orders": {"0": 11}}', "endingOffsets": '{"k-orders": {"0": 21}}'}
    rows = _read(spark, subscribe="k-orders", includeHeaders="true", minPartitions="4", **bounds)
    assert rows.rdd.getNumPartitions() >= 4
    found = rows.orderBy("seq").select("seq", "headers").collect()
    assert [row.seq for row in found] == list(range(11, 21))
    assert [(header.key, bytes(header.value)) for header in found[0].headers] == [("by", b"test")]
    stream = spark.readStream.format("driftq").options(
        **{"subscribePattern": "k-ord.*", "maxOffsetsPerTrigger": "40", "kafka.group.id": "billing"}
    )
    query = finished(
        lambda: (
            stream.load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
    )
    assert [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]] == [40, 40, 20]
    cursor_at(server, "k-orders", "billing", 100)


def test_data_is_parsed_into_columns_and_bad_rows_are_kept(spark: "SparkSession", server: ServerProcess) -> None:
    write(server, "typed", [{"id": 1, "total": 2.5, "tags": ["a"]}, {"id": "x", "total": 3}, [1], {"more": 1}])
    frame = table(spark, "typed", schema="id BIGINT, total DOUBLE, tags ARRAY<STRING>")
    rows = [(row.id, row.total, row.tags, row["_corrupt_record"]) for row in frame.orderBy("seq").collect()]
    assert rows == [
        (1, 2.5, ["a"], None),
        (None, 3.0, None, '{"id":"x","total":3}'),
        (None, None, None, "[1]"),
        (None, None, None, None),
    ]
    assert "data" not in frame.columns
    narrow = spark.read.format("driftq").schema("data string, id bigint").options(topic="typed", schema="id BIGINT")
    assert {row.id for row in narrow.load().collect()} == {1, None}


def test_data_is_a_variant(spark: "SparkSession", server: ServerProcess) -> None:
    write(server, "variants", [{"a": {"b": [1, "x"]}}, 7, None])
    frame = table(spark, "variants", dataType="variant").orderBy("seq")
    assert dict(frame.dtypes)["data"] == "variant"
    found = frame.selectExpr("variant_get(data, '$.a.b[1]', 'string') AS b", "to_json(data) AS text").collect()
    assert [(row.b, row.text) for row in found] == [("x", '{"a":{"b":[1,"x"]}}'), (None, "7"), (None, "null")]


def test_a_thousand_topics_share_tasks(spark: "SparkSession", server: ServerProcess, server_url: str) -> None:
    with Wire(server_url, None) as wire:
        for number in range(1000):
            wire.post(f"/v0/topics/thousand-{number}", {"records": [{"data": {"n": number}}]})
    frame = _read(spark, topicPattern="thousand-[0-9]+")
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(int(row.n) for row in frame.selectExpr("get_json_object(data, '$.n') AS n").collect()) == list(
        range(1000)
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_address_is_an_error_within_seconds(stream: bool, spark: "SparkSession", tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        options = {"topic": "t", "server": f"http://127.0.0.1:{closed.getsockname()[1]}"}
        began = time.monotonic()
        with pytest.raises(
            PySparkException, match=r"does not answer.*check that it runs and that the address is right"
        ):
            _fail(spark, options, str(tmp_path) if stream else None)
        assert time.monotonic() - began < 20, "it was a minute; Spark's own processes may take long on a busy machine"


def _fail(spark: "SparkSession", options: dict[str, str], checkpoint: str | None) -> Any:
    if checkpoint is None:
        return _read(spark, **options).count()
    writer = spark.readStream.format("driftq").options(**options).load().writeStream.format("noop")
    return writer.option("checkpointLocation", checkpoint).start().awaitTermination(60)


def test_a_pattern_that_matches_nothing_is_an_error(spark: "SparkSession", server: ServerProcess) -> None:
    ask(server, "PUT", "/v0/topics/there", {})
    with pytest.raises(PySparkException, match=r"no topic on .* matches 'zz\.\*'"):
        _read(spark, topicPattern="zz.*").count()
    assert _read(spark, topicPattern="zz.*", allowEmpty="true").count() == 0
