"""A server that is killed loses nothing that it had synced, so no reader of the pipeline stops."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.test_route import route
from tests.pipeline.topics import ask, fill, finished, table, values
from tests.support.process import ServerProcess, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def _copy(spark: "SparkSession", url: str, place: Path) -> None:
    """Read what is new of the topic into files."""
    rows = spark.readStream.format("driftq").option("topic", "synced").option("server", url).load()
    files = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))

    def start() -> "StreamingQuery":
        return files.option("path", str(place / "rows")).trigger(availableNow=True).start()

    finished(start)


def _numbers(rows: "DataFrame") -> list[int]:
    found = rows.selectExpr("seq", "cast(get_json_object(data, '$.n') AS int) AS n").orderBy("seq").collect()
    return [row.n for row in found]


def _read_all(spark: "SparkSession", server: ServerProcess, place: Path, count: int) -> None:
    url = f"http://{server.address}"
    expected = list(range(count))
    assert _numbers(table(spark, "synced", server=url)) == expected
    _copy(spark, url, place / "stream")
    assert _numbers(spark.read.parquet(str(place / "stream" / "rows"))) == expected
    route(url, place / "route", topics=["synced"], to="routed", sql="SELECT data FROM source")
    assert sorted(value["n"] for value in values(server, "routed")) == expected


def test_readers_go_on_after_a_kill_of_a_server_whose_topic_was_synced(spark: "SparkSession", tmp_path: Path) -> None:
    directory = tmp_path / "server"
    directory.mkdir()
    for name in ("stream", "route"):
        (tmp_path / name).mkdir()
    for count in (700, 1000, 1300):
        with serving(directory) as server:  # it is killed at the end of the block
            server.wait_ready()
            fill(server, "synced", range(count - 300 if count > 700 else 0, count))
            state = ask(server, "GET", f"/v0/topics/synced?wait_synced={count}&wait_ms=30000")
            assert state["synced_seq"] == state["head_seq"]
            _read_all(spark, server, tmp_path, count)
            assert [hole for hole in ask(server, "GET", "/v0/topics/synced/segments")["holes"] if hole] == []
