"""The sink of the data pipeline: rows of 110 bytes through Spark on `local[2]` into a `disk` topic, end to end.

Rows come from Parquet, so that reading them costs little; the time is that of the whole write, up to the commit that is
on stable storage, and the topic is asked whether it has them all. A small write goes before, as in a session that has
been used.

    python -m bench.spark_sink [--scale X] [batch] [stream]
"""

import sys
import time
from pathlib import Path
from typing import Any

from bench.report import Result, Workload, report
from bench.servers import Process, driftq
from driftq.pipeline import session

ROWS = 3_000_000
BATCHES = 3
_DATA = """concat('{"id":', lpad(id, 9, '1'), ',"payload":"', repeat('x', 85), '"}') AS data"""


def batch(parent: str, scale: float) -> Result:
    """One `df.write`."""

    def write(rows: Path, topic: str, url: str) -> None:
        writer = _spark(url).read.parquet(str(rows)).write.format("driftq").mode("append")
        writer.option("server", url).option("topic", topic).save()

    return _measured(parent, scale, write)


def stream(parent: str, scale: float) -> Result:
    """A stream of a few large micro-batches."""

    def write(rows: Path, topic: str, url: str) -> None:
        reader = _spark(url).readStream.schema("data string").option("maxFilesPerTrigger", 2)
        writer = reader.parquet(str(rows)).writeStream.format("driftq").option("server", url).option("topic", topic)
        writer = writer.option("checkpointLocation", str(rows.parent / f"checkpoint-{topic}"))
        writer.trigger(availableNow=True).start().awaitTermination()

    return _measured(parent, scale, write)


def _measured(parent: str, scale: float, write: Any) -> Result:
    count = int(ROWS * scale)
    with driftq(parent) as server:
        host, port = server.address
        url = f"http://{host}:{port}"
        few, many = Path(parent, "few"), Path(parent, "many")
        for path, rows in ((few, 10_000), (many, count)):
            _spark(url).range(0, rows, 1, 2 * BATCHES).selectExpr(_DATA).write.parquet(str(path))
        for topic in ("few", "many"):
            server.call("PUT", f"/v0/topics/{topic}", {"durability": "disk"})
        write(few, "few", url)
        cpu, began = server.cpu_seconds(), time.perf_counter()
        write(many, "many", url)
        seconds = time.perf_counter() - began
        return Result(count / seconds, {"seconds": seconds, "server_cpu_seconds": _checked(server, count) - cpu})


def _checked(server: Process, count: int) -> float:
    found = server.call("GET", "/v0/topics/many")
    assert found["count"] == count, f"{found['count']} records, and {count} were due"
    return server.cpu_seconds()


def _spark(url: str) -> Any:
    return session(url, master="local[2]")


WORKLOADS = {
    "batch": Workload("rows/s", batch, 300_000, 400_000),
    "stream": Workload("rows/s", stream, 300_000, 400_000),
}


if __name__ == "__main__":
    sys.exit(report(WORKLOADS, __doc__))
