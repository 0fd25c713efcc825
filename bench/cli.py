"""Measure the command line as a user meets it: whole processes, from their start to their end.

`append`: a million lines from a file into a `disk` topic of a server on the same machine. `export`: the same records as
one Parquet file. `help`: how long `driftq --help` takes, the best of some, because it has nothing to wait for but the
machine.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from bench.load import body
from bench.report import Result, Workload, report
from bench.servers import driftq

LINES = 1_000_000
HELPS = 10


def command(*arguments: str, **variables: str) -> float:
    """Run one; the seconds it took."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "driftq", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | variables,
    )
    return time.perf_counter() - began


def append(parent: str, scale: float) -> Result:
    """Records a second, the start of the process included."""
    count = int(LINES * scale)
    file = Path(parent, "lines")
    filling = "x" * 85
    with file.open("w", encoding="ascii") as lines:
        lines.writelines(f'{{"id":{number},"payload":"{filling}"}}\n' for number in range(count))
    with driftq(parent) as server:
        host, port = server.address
        server.call("PUT", "/v0/topics/bench", {"durability": "disk"})
        seconds = command("append", "bench", str(file), DRIFTQ_URL=f"http://{host}:{port}")
        found = server.call("GET", "/v0/topics/bench")
        assert found["count"] == count, f"{found['count']} records, and {count} were due"
        cpu = server.cpu_seconds()
    return Result(count / seconds, {"seconds": seconds, "server_cpu_seconds": cpu})


def export(parent: str, scale: float) -> Result:
    """Records a second into a Parquet file, the start of the process included."""
    count = int(LINES * scale)
    file = Path(parent, "records.parquet")
    with driftq(parent) as server:
        host, port = server.address
        server.call("PUT", "/v0/topics/bench", {"durability": "disk"})
        for first in range(0, count, 10_000):
            server.call(
                "POST", "/v0/topics/bench?return_seqs=false", json.loads(body(min(10_000, count - first), first))
            )
        seconds = command("export", "bench", "-o", str(file), DRIFTQ_URL=f"http://{host}:{port}")
    rows = pq.read_metadata(file).num_rows
    assert rows == count, f"{rows} rows, and {count} were due"
    return Result(count / seconds, {"seconds": seconds, "bytes_per_record": file.stat().st_size / count})


def show_help(parent: str, scale: float) -> Result:
    """Milliseconds, the best of some."""
    times = [command("--help") for _ in range(max(1, int(HELPS * scale)))]
    return Result(min(times) * 1000, {"median_ms": sorted(times)[len(times) // 2] * 1000})


WORKLOADS = {
    "append": Workload("records/s", append, 300_000, 500_000),
    "export": Workload("records/s", export, 500_000, 1_000_000),
    "help": Workload("ms", show_help, 250, 150, least=False),
}


if __name__ == "__main__":
    sys.exit(report(WORKLOADS, __doc__))
