"""A session starts quietly, from a class-data archive, and knows its server."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyarrow import RecordBatch

from driftq.pipeline import register, session
from driftq.pipeline.jobs.stream_options import in_short
from tests.pipeline.topics import PATIENCE_S, ask, fill, values, write
from tests.support.process import ServerProcess, environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_START_AND_COUNT = """
from driftq.pipeline import session
spark = session("http://127.0.0.1:1", master="local[1]", short=True)
assert spark.range(10).count() == 10
assert spark.conf.get("spark.driftq.server") == "http://127.0.0.1:1"
spark.stop()
"""
_FOLLOW_AND_GO = """
import sys, time
from driftq.pipeline import session
from driftq.pipeline.source import cursor_listener as progress
url, topic, how, checkpoint = sys.argv[1:]
tell = progress.CursorListener.tell
progress.CursorListener.tell = lambda *args: (time.sleep(0.5), tell(*args))
spark = session(url, **{how: "local[1]"}, short=True)
rows = spark.readStream.format("driftq").option("topic", topic).load()
writer = rows.writeStream.format("noop").queryName("going").option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
"""

_ROWS_THAT_NOBODY_WANTS = """
import sys
from pyspark.errors import PySparkException
from driftq.pipeline import session
spark = session(sys.argv[1], master="local[2]", short=True)
rows = spark.read.format("driftq").option("topic", sys.argv[2]).option("splitRecords", "25000").load()
assert len(rows.take(3)) == 3
try:
    rows.selectExpr("data", "assert_true(seq < 30000)").write.format("noop").mode("overwrite").save()
except PySparkException as error:
    assert "is not true" in str(error), error
else:
    sys.exit("a query that fails")
"""


def test_a_session_prints_nothing_and_leaves_nothing_in_the_working_directory(tmp_path: Path) -> None:
    assert _ran(tmp_path, _START_AND_COUNT) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_the_java_of_the_wheel_is_as_quiet_and_its_classes_are_kept_too(tmp_path: Path) -> None:
    """It comes without an archive of its own classes, and without packages that others have."""
    programs, cache = tmp_path / "programs", tmp_path / "cache"
    programs.mkdir()
    for name in (
        "bash",
        "chmod",
        "ls",
        "mv",
        "readlink",
        "sh",
        "whoami",
    ):  # what Hadoop calls, and the shell around Java
        (programs / name).symlink_to(shutil.which(name) or name)
    alone = {"PATH": str(programs), "JAVA_HOME": "", "DRIFTQ_CACHE_DIR": str(cache)}
    assert _ran(programs, "from driftq.pipeline import warm; warm()", **alone) == (0, "", "")
    kept = {path.name.split("-")[0] for path in cache.glob("*.jsa")}
    assert kept == {"java", "spark"}
    assert _ran(programs, _START_AND_COUNT, **alone) == (0, "", "")


def test_nothing_is_printed_where_spark_hangs_up_on_a_worker(server: ServerProcess, tmp_path: Path) -> None:
    """Workers of Spark's own print a traceback each time, of a pipe that is broken."""
    write(server, "unwanted", [{"text": "x" * 200, "n": n} for n in range(50_000)])
    assert _ran(tmp_path, _ROWS_THAT_NOBODY_WANTS, f"http://{server.address}", "unwanted") == (0, "", "")


@pytest.mark.parametrize("plain", ["0", "1"])
@pytest.mark.parametrize("how", ["master", "remote"])
def test_a_program_that_just_ends_has_reported_the_positions_of_its_queries(
    server: ServerProcess, tmp_path: Path, how: str, plain: str
) -> None:
    """Spark calls its listeners some time after a batch; here each report takes half a second."""
    topic = f"followed-{how}-{plain}"
    fill(server, topic, range(3))
    arguments = (f"http://{server.address}", topic, how, str(tmp_path / "checkpoint"))
    code, _, printed = _ran(tmp_path, _FOLLOW_AND_GO, *arguments, DRIFTQ_PLAIN_SPARK=plain)
    assert code == 0
    assert "Exception" not in printed
    assert ask(server, "GET", f"/v0/topics/{topic}/cursors/spark:going")["seq"] == 3


def _ran(directory: Path, program: str, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """A program of its own process: how it ended and what it printed."""
    cache = {"DRIFTQ_CACHE_DIR": os.environ["DRIFTQ_CACHE_DIR"]} if "DRIFTQ_CACHE_DIR" in os.environ else {}
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=directory,
        env=environment(**cache | variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ran.returncode, ran.stdout, ran.stderr


def test_the_session_has_no_web_page_and_runs_in_utc(spark: "SparkSession") -> None:
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_rows_come_through_sockets_of_this_user_alone(spark: "SparkSession") -> None:
    socket_directory = Path(spark.conf.get("spark.python.unix.domain.socket.dir") or "")
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.range(1).mapInArrow(lambda batches: batches, "id bigint").count() == 1
    assert [path for path in socket_directory.iterdir() if path.is_socket()]
    assert socket_directory.parent.stat().st_mode & 0o077 == 0


def test_python_processes_of_a_local_session_import_pyspark_as_it_is_installed(spark: "SparkSession") -> None:
    """And not from a zip of sources, which each of them would have to compile."""

    def told(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        for _ in batches:
            yield RecordBatch.from_pydict({"place": [pyspark.__file__]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(told, "place string").collect()
    assert row.place == pyspark.__file__


def test_a_thread_that_asks_for_the_session_can_write(spark: "SparkSession", server: ServerProcess) -> None:
    def put() -> None:
        rows = session(f"http://{server.address}").range(3).selectExpr("cast(id AS string) AS data")
        rows.write.format("driftq").option("topic", "from-a-thread").mode("append").save()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(put).result()
    assert sorted(values(server, "from-a-thread")) == [0, 1, 2]


def test_a_stop_in_the_middle_of_a_batch_ends_it(spark: "SparkSession", checkpoint: str) -> None:
    """Where a batch raises pages, Spark overflows its stack over them and the query never says how it ended."""
    begun = threading.Event()

    def take(rows: "DataFrame", batch: int) -> None:
        begun.set()
        spark.range(1 << 40).selectExpr("sum(hash(id))").collect()

    writer = spark.readStream.format("rate").load().writeStream.foreachBatch(in_short(take))
    query = writer.option("checkpointLocation", checkpoint).start()
    assert begun.wait(PATIENCE_S)
    query.stop()
    told = str(query.exception())
    assert "PipelineError" in told
    assert "DAGScheduler" not in told


def test_any_session_learns_the_format_and_its_server_by_one_call(spark: "SparkSession", server: ServerProcess) -> None:
    fill(server, "registered", range(3))
    register(spark, f"http://{server.address}")
    found = spark.read.format("driftq").option("topic", "registered").load().where("tag = 't1' and seq > 1")
    assert [row.data for row in found.collect()] == ['{"n":1}']
