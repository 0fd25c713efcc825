"""Measure the pipeline: topics read by Spark on two cores, beside Spark's own Parquet scan of the same rows.

`source`: sealed segments of 110-byte records into nothing, the columns seq, ts and data; the facts tell how that
compares to the Parquet scan (`of_parquet`), to the same rows over HTTP as JSON (`times_json`), and what all columns
take. `cold`: a topic in the cold tier through `read_topic`, as a part of the Parquet scan. `session`: seconds to a
session in a new process, from a class-data archive, the best of some. `job`: seconds of a whole process that archives
10^5 records and ends. `sink_…`: those of `bench.spark_sink`.

Readers take turns and each figure is the best of some rounds: what disturbs one is not what is measured.
"""

import atexit
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench import spark_sink
from bench.report import Result, Workload, report
from bench.servers import Process, driftq, scratch
from driftq.pipeline import read_topic, session, warm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 5_000_000
COLD_ROWS = 5_000_000
JOB_ROWS = 100_000
ROUNDS = 12
STARTS = 5
_WRITE = 50_000
_JSON_ROWS = 200_000
_MOVE_SECONDS = 120.0
_MOSTLY = 0.9
_THREE = "seq bigint, ts timestamp, data string"
_ARROW = "application/vnd.apache.arrow.stream"
_kept = ExitStack()
atexit.register(_kept.close)


@cache
def _spark() -> "SparkSession":
    spark = session(master="local[2]", conf={"spark.driver.memory": "2g"})
    _kept.callback(spark.stop)
    return spark


def _fill(server: Process, rows: int) -> None:
    """Records whose line is 110 bytes long, from Arrow."""
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    for first in range(0, rows, _WRITE):
        data = [f'{{"id":"{number:010}","payload":"{"x" * 79}"}}' for number in range(first, min(rows, first + _WRITE))]
        sink = pa.BufferOutputStream()
        table = pa.table({"data": data})
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        connection.request("POST", "/v0/topics/bench", sink.getvalue().to_pybytes(), {"content-type": _ARROW})
        reply = connection.getresponse()
        assert reply.status < 300, reply.read()
        reply.read()
    connection.close()
    server.wait_until_quiet()


@cache
def _world(rows: int, cold: bool) -> tuple[Process, str]:
    """A server with a full topic, and the same rows as Parquet files."""
    directory = _kept.enter_context(scratch())
    settings = {"DRIFTQ_COLD_DIR": f"{directory}/cold", "DRIFTQ_HOT_RETAIN_SEGMENTS": "0"} if cold else {}
    server = _kept.enter_context(driftq(directory, DRIFTQ_SEGMENT_MAX_EVENTS="100000", **settings))
    server.call("PUT", "/v0/topics/bench", {"durability": "disk"})
    _fill(server, rows)
    deadline = time.monotonic() + _MOVE_SECONDS
    while cold and _cold_share(server, rows) < _MOSTLY and time.monotonic() < deadline:
        time.sleep(0.5)
    files = f"{directory}/rows"
    _table(server).coalesce(8).write.option("compression", "zstd").parquet(files)
    return server, files


def _cold_share(server: Process, rows: int) -> float:
    """How much of the topic is in the cold tier."""
    segments: list[dict[str, Any]] = server.call("GET", "/v0/topics/bench/segments")["segments"]
    return float(sum(row["live"] for row in segments if row["tier"] == "cold") / rows)


def _url(server: Process) -> str:
    host, port = server.address
    return f"http://{host}:{port}"


def _table(server: Process, schema: str | None = None) -> "DataFrame":
    reader = _spark().read.format("driftq").option("server", _url(server)).option("topic", "bench")
    return (reader if schema is None else reader.schema(schema)).load()


def _seconds(make: Callable[[], "DataFrame"]) -> float:
    began = time.perf_counter()
    make().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def _best(readers: dict[str, Callable[[], "DataFrame"]]) -> dict[str, float]:
    """Seconds of each reader, after a round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(ROUNDS + 1):
        for name, reader in readers.items():
            times[name].append(_seconds(reader))
    return {name: min(found[1:]) for name, found in times.items()}


def _json_rate(server: Process, rows: int) -> float:
    """Rows a second of a plain client that reads the topic as JSON, page by page."""
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    place, began = 0, time.perf_counter()
    while place < rows:
        asked = {"from_seq": place, "limit": 1000, "max_batch_bytes": 8 << 20}
        connection.request("POST", "/v0/topics/bench/diff", json.dumps(asked), {"content-type": "application/json"})
        place = json.loads(connection.getresponse().read())["next_from_seq"]
    connection.close()
    return rows / (time.perf_counter() - began)


def source(parent: str, scale: float) -> Result:
    """Rows a second of three columns."""
    rows = int(ROWS * scale)
    server, files = _world(rows, cold=False)
    times = _best(
        {
            "three": lambda: _table(server, _THREE),
            "parquet": lambda: _spark().read.parquet(files).select("seq", "ts", "data"),
            "all": lambda: _table(server),
        }
    )
    by_json = _json_rate(server, min(rows, _JSON_ROWS))
    value = rows / times["three"]
    return Result(
        value,
        {
            "of_parquet": times["parquet"] / times["three"],
            "all_columns": rows / times["all"],
            "times_json": value / by_json,
            "parquet_rows": rows / times["parquet"],
            "json_rows": by_json,
        },
    )


def cold(parent: str, scale: float) -> Result:
    """Speed as a part of the Parquet scan."""
    rows = int(COLD_ROWS * scale)
    server, files = _world(rows, cold=True)
    spark, names = _spark(), ["seq", "ts", "data"]
    times = _best(
        {
            "topic": lambda: read_topic(spark, "bench", columns=names, server=_url(server)),
            "parquet": lambda: spark.read.parquet(files).select(*names),
        }
    )
    facts = {"rows_per_second": rows / times["topic"], "cold_share": _cold_share(server, rows)}
    return Result(times["parquet"] / times["topic"], facts)


_START = """
import time
began = time.perf_counter()
from driftq.pipeline import session
spark = session(master="local[2]")
print(time.perf_counter() - began)
"""


def start(parent: str, scale: float) -> Result:
    """Seconds to a session, the best of some."""
    warm()
    found = []
    for _ in range(max(1, int(STARTS * scale))):
        ran = subprocess.run([sys.executable, "-c", _START], check=True, capture_output=True, text=True, cwd=parent)
        found.append(float(ran.stdout))
    return Result(min(found), {"median": sorted(found)[len(found) // 2]})


def job(parent: str, scale: float) -> Result:
    """Seconds of `driftq pipeline run archive --once`, from the start of the process to its end."""
    warm()
    rows = int(JOB_ROWS * scale)
    with driftq(parent) as server:
        server.call("PUT", "/v0/topics/bench", {"durability": "disk"})
        _fill(server, rows)
        options = ("--topics", "bench", "--lake", f"{parent}/lake", "--once", "--json")
        command = [sys.executable, "-m", "driftq", "pipeline", "run", "archive", "--url", _url(server), *options]
        own = os.environ | {"DRIFTQ_PIPELINE_DIR": f"{parent}/runs"}
        began = time.perf_counter()
        ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=parent, env=own)
        seconds = time.perf_counter() - began
    archived = json.loads(ran.stdout.splitlines()[-1])["facts"]["rows"]
    assert archived == rows, f"{archived} of {rows} rows were archived"
    return Result(seconds, {"rows": archived})


WORKLOADS = {
    "source": Workload(
        "rows/s", source, 2_500_000, bars={"of_parquet": 0.5, "all_columns": 1_200_000, "times_json": 5}, repeat=1
    ),
    "cold": Workload("x", cold, 0.9, repeat=1),
    "session": Workload("s", start, 3.0, least=False, repeat=1),
    "job": Workload("s", job, 15.0, least=False, repeat=1),
    **{f"sink_{name}": workload for name, workload in spark_sink.WORKLOADS.items()},
}


if __name__ == "__main__":
    sys.exit(report(WORKLOADS, __doc__))
