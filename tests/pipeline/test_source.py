"""Topics as tables."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition, LessThanOrEqual
from pyspark.sql.types import StructType

from driftq.pipeline import register
from driftq.pipeline.topic_table import CALCULATED
from tests.pipeline.topics import ask, fill, table
from tests.support.process import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _seqs(frame: "DataFrame") -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


@pytest.fixture(scope="module")
def orders(server: ServerProcess) -> str:
    """A topic of 2500 records, every tenth deleted."""
    fill(server, "orders", range(2500), meta={"by": "test"}, node="x")
    ask(server, "POST", "/v0/topics/orders/delete", {"match": "t3"})
    return "orders"


def test_every_column_of_a_record_is_there(spark: "SparkSession", server: ServerProcess) -> None:
    records = [{"data": {"a": [1, 2.5]}, "tag": "x", "node": "n", "meta": {"k": "v"}}, {"data": None}]
    ask(server, "POST", "/v0/topics/all-columns", {"records": records})
    first, second = table(spark, "all-columns").orderBy("seq").collect()
    assert (first.topic, first.seq, first.node, first.tag, first.meta, first.data) == (
        *("all-columns", 1, "n", "x"),
        *({"k": "v"}, '{"a":[1,2.5]}'),
    )
    assert (second.seq, second.node, second.tag, second.meta, second.data) == (2, None, None, None, "null")
    said = ask(server, "POST", "/v0/topics/all-columns/diff", {})["records"][0]["$ts"]
    assert first.ts.replace(tzinfo=UTC) == datetime.fromtimestamp(said / 1000, UTC)


def test_deleted_records_are_absent_and_a_schema_chooses_columns(spark: "SparkSession", orders: str) -> None:
    frame = spark.read.format("driftq").schema("data string, seq bigint").option("topic", orders).load()
    rows = {row.seq: json.loads(row.data)["n"] for row in frame.collect()}
    assert rows == {n + 1: n for n in range(2500) if n % 10 != 3}


def test_a_read_is_split_and_bounded(spark: "SparkSession", orders: str) -> None:
    frame = table(spark, orders, splitRecords="300", startingSeq="101", endingSeq="1500")
    assert frame.rdd.getNumPartitions() == 5
    assert _seqs(frame) == [n + 1 for n in range(100, 1500) if n % 10 != 3]


def test_options_choose_by_tag_and_node(spark: "SparkSession", orders: str) -> None:
    assert table(spark, orders, tag="t4").count() == 250
    assert table(spark, orders, tagPrefix="t").count() == 2250
    assert table(spark, orders, node="y").count() == 0


def test_filters_of_one_query_do_not_narrow_another_of_the_same_table(
    spark: "SparkSession", orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = table(spark, orders)
    assert frame.where("seq <= 10").count() == 9
    assert frame.count() == 2250
    assert _seqs(frame.where("seq <= 3").union(frame.where("seq >= 2499"))) == [1, 2, 3, 2499, 2500]
    assert frame.where("seq = 5 or tag = 't1'").count() == 251
    chosen = frame.where("seq between 11 and 40 and tag in ('t1', 't2') and node = 'x' and data like '%n%'")
    assert _seqs(chosen) == [12, 13, 22, 23, 32, 33]
    chosen.explain()
    assert "Filter (" in capsys.readouterr().out


class _Pushing(DataSource):
    """A source of ten rows that takes every filter: what Spark's planner makes of that is not in its hands."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "pushing"

    def schema(self) -> str:
        """One column."""
        return "seq bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader that knows the highest seq wanted."""

        class Reader(DataSourceReader):
            most = 10

            def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
                for each in filters:
                    if isinstance(each, LessThanOrEqual):
                        self.most = each.value
                    else:
                        yield each

            def read(self, partition: InputPartition) -> Iterator[Any]:
                yield from ((seq,) for seq in range(1, self.most + 1))

        return Reader()


@pytest.fixture
def pushing(spark: "SparkSession", server_url: str) -> Iterator["SparkSession"]:
    """The session with Spark's own setting for filters on, as another format may need it."""
    conf = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(conf, "true")
    register(spark, server_url)
    yield spark
    spark.conf.set(conf, "false")


def test_spark_carries_pushed_filters_to_other_queries_so_no_option_can_offer_them(pushing: "SparkSession") -> None:
    """If this fails, Spark keeps pushed filters with the scan, and decision 13 can be taken again."""
    pushing.dataSource.register(_Pushing)
    frame = pushing.read.format("pushing").load()
    assert frame.where("seq <= 3").count() == 3
    assert frame.count() == 3, "ten rows would be right"


def test_the_setting_of_another_format_does_not_change_a_result(pushing: "SparkSession", orders: str) -> None:
    frame = table(pushing, orders)
    assert frame.where("seq <= 10").count() == 9
    assert frame.count() == 2250
    assert _seqs(frame.where("seq <= 3").union(frame.where("seq >= 2499"))) == [1, 2, 3, 2499, 2500]
    assert frame.where("tag = 't1'").alias("a").join(frame.where("tag = 't2'").alias("b"), "node").count() == 62_500
    frame.createOrReplaceTempView("orders_of_all")
    found = pushing.sql(
        "WITH few AS (SELECT * FROM orders_of_all WHERE seq <= 100) "
        "SELECT (SELECT count(*) FROM few WHERE tag = 't1') AS one, (SELECT count(*) FROM orders_of_all) AS every, "
        "(SELECT count(*) FROM orders_of_all WHERE ts IS NOT NULL AND node = 'x') AS known"
    )
    assert found.collect()[0].asDict() == {"one": 10, "every": 2250, "known": 2250}
    kept = frame.where("seq > 2400").cache()
    assert (kept.count(), frame.where("tag is null").count(), frame.count()) == (90, 0, 2250)
    kept.unpersist()


def test_several_topics_and_a_pattern(spark: "SparkSession", server: ServerProcess) -> None:
    fill(server, "many-1", range(3))
    fill(server, "many-2", range(4))
    both = spark.read.format("driftq").option("topics", "many-1,many-2").load()
    assert {row.topic: row["count"] for row in both.groupBy("topic").count().collect()} == {"many-1": 3, "many-2": 4}
    assert spark.read.format("driftq").option("topicPattern", "many-.*").load().count() == 7


def test_a_read_from_a_time(spark: "SparkSession", server: ServerProcess) -> None:
    fill(server, "timed", range(5))
    last = ask(server, "POST", "/v0/topics/timed/diff", {})["records"][-1]["$ts"]
    assert table(spark, "timed", startingTimestamp=str(last + 1)).count() == 0
    assert table(spark, "timed", startingTimestamp=str(last), endingTimestamp=str(last + 1)).count() == 5
    assert table(spark, "timed", endingTimestamp=str(last)).count() == 0


def test_messages_of_the_broker_have_their_own_columns(spark: "SparkSession", server: ServerProcess) -> None:
    ask(server, "POST", "/v1/topics", {"name": "runs", "partitions": 2})
    ask(server, "POST", "/v1/produce", {"topic": "runs", "key": "k", "value": "hello", "envelope": {"run_id": "r1"}})
    for frame in (table(spark, "@runs"), table(spark, "runs", api="v1")):
        (row,) = frame.collect()
        assert (row.key, row.value, json.loads(row.envelope)["run_id"]) == ("k", "hello", "r1")
        assert row.partition in (0, 1)
        assert row.tag == f"p{row.partition}"


def test_the_partition_of_a_tag_that_is_none_is_null_on_every_path(
    spark: "SparkSession", server: ServerProcess
) -> None:
    tags = ["p\u00b2", "p99999999999", "p2147483648", "p2147483647", "p7", "p", "pp7"]
    ask(server, "POST", "/v0/topics/odd-tags", {"records": [{"data": 1, "tag": tag} for tag in tags]})
    expected = [None, None, None, 2147483647, 7, None, None]
    live = spark.read.format("driftq").schema("seq bigint, partition int").option("topic", "odd-tags").load()
    assert [row.partition for row in live.orderBy("seq").collect()] == expected
    scanned = spark.createDataFrame(list(enumerate(tags)), "seq int, tag string").orderBy("seq")
    assert [row[0] for row in scanned.selectExpr(CALCULATED["partition"]).collect()] == expected


def test_evicted_records_fail_the_read_are_rows_or_are_skipped(spark: "SparkSession", server: ServerProcess) -> None:
    ask(server, "PUT", "/v0/topics/capped", {"cap_records": 10})
    fill(server, "capped", range(25))
    with pytest.raises(PySparkException, match=r"topic 'capped' has lost seqs 1\.\.15 \(cap\).*onDataLoss=rows"):
        table(spark, "capped", startingSeq="1").count()
    assert _seqs(table(spark, "capped", startingSeq="1", onDataLoss="skip")) == list(range(16, 26))
    assert _seqs(table(spark, "capped")) == list(range(16, 26))
    rows = table(spark, "capped", withGaps="true").orderBy("seq").collect()
    assert (rows[0].kind, rows[0].gap_from, rows[0].gap_to, rows[0].reason, rows[0].seq) == (
        *("tombstone", 1, 15, "cap", 15),
    )
    assert [row.kind for row in rows[1:]] == ["record"] * 10


def test_what_is_wrong_is_said_when_the_table_is_made(spark: "SparkSession", orders: str) -> None:
    with pytest.raises(PySparkException, match="did you mean startingSeq"):
        table(spark, orders, startingSeqs="1")
    with pytest.raises(PySparkException, match="there is no topic 'nowhere'"):
        table(spark, "nowhere").count()


def test_sql_knows_the_format(spark: "SparkSession", orders: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMP VIEW o USING driftq OPTIONS (topic '{orders}')")
    (row,) = spark.sql("SELECT count(*) AS n, max(seq) AS last FROM o").collect()
    assert (row.n, row.last) == (2250, 2500)


def test_a_table_in_a_catalog_is_refused_when_it_is_made(spark: "SparkSession", orders: str) -> None:
    """Spark 4.3 reads one without its options, so it could be made and never read."""
    with pytest.raises(PySparkException, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE ot USING driftq OPTIONS (topic '{orders}')")


def test_times_are_times_whatever_a_session_calls_a_timestamp(spark: "SparkSession", orders: str) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert dict(table(spark, orders).dtypes)["ts"] == "timestamp"
        assert table(spark, orders, endingSeq="2").count() == 2
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_the_api_key_is_in_no_plan(spark: "SparkSession", orders: str, capsys: pytest.CaptureFixture[str]) -> None:
    table(spark, orders, apiKey="hunter2-secret").explain(True)
    assert "hunter2" not in capsys.readouterr().out
