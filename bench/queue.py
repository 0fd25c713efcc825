"""Measure queues in process: `python -m bench.queue`. Claims of 100 jobs, each acked with one call, on the real disk.

One JSON line per workload. The same work is done on a small and on a large queue: what a job costs must not depend on
how many there are, and the exit code says whether it does not. `us_per_job` is processor time of the loop, so that a
busy machine disturbs it less.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from driftq.config import Settings
from driftq.engine.ingest import make_rows
from driftq.model.topic import Durability, TopicConfig
from driftq.seam.clock import SystemClock
from driftq.seam.disk import OsDisk
from driftq.seam.runtime import AsyncioRuntime
from driftq.server import Server

TOPIC = "bench"
BATCH = 100
BLOCK = 1000
SMALL, LARGE = 20_000, 1_000_000
DEARER_MAX = 1.5
"""A job of the large queue may cost so many times one of the small queue; the rest is noise."""


async def claim_and_ack(directory: str, jobs: int, batches: int, config: TopicConfig) -> dict[str, object]:
    """Work off some of a queue's jobs, one batch behind the other."""
    runtime = AsyncioRuntime(asyncio.get_running_loop())
    server = Server(Settings(data_dir=directory), OsDisk(), SystemClock(), runtime)
    engine, queues = server.engine, server.queues
    await runtime.future(engine.put_topic(TOPIC, config))
    block = make_rows([b'{"id":%d,"payload":"%b"}' % (number, b"x" * 85) for number in range(BLOCK)])
    for _ in range(jobs // BLOCK):
        await runtime.future(engine.append(TOPIC, block))
    segments = engine.topic(TOPIC).segments
    while engine.filing.busy or any(segment.sealing and not segment.sealed for segment in segments):
        await asyncio.sleep(0.005)
    await runtime.future(engine.checkpointer.run())
    began_s, cpu_s = time.perf_counter(), time.thread_time()
    for _ in range(batches):
        topic, _ = queues.backlog.look(TOPIC)
        claimed = await runtime.future(queues.claimer.claim(topic, "worker", BATCH, None))
        settled = await runtime.future(queues.settler.ack(TOPIC, "worker", claimed.seqs, ()))
        assert settled.done == BATCH
    cpu_s, took_s = time.thread_time() - cpu_s, time.perf_counter() - began_s
    await runtime.future(server.close())
    done = batches * BATCH
    return {"jobs_per_s": round(done / took_s), "us_per_job": round(1e6 * cpu_s / done, 2)}


def measure(directory: Path, jobs: int, batches: int, config: TopicConfig) -> dict[str, object]:
    """One run, on a directory of its own."""
    path = tempfile.mkdtemp(dir=directory)
    try:
        return uvloop.run(claim_and_ack(path, jobs, batches, config))
    finally:
        shutil.rmtree(path)


def main() -> int:
    """Every workload, small and large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batches", type=int, default=150)
    options = parser.parse_args()
    good = True
    for durability in (Durability.FSYNC, Durability.DISK):
        for durable in (False, True):
            config = TopicConfig(type="queue", durability=durability, leases_durable=durable)
            costs = []
            for jobs in (SMALL, LARGE):
                runs = [measure(options.dir, jobs, options.batches, config) for _ in range(options.repeat)]
                middle = {name: statistics.median([float(str(run[name])) for run in runs]) for name in runs[0]}
                costs.append(middle["us_per_job"])
                print(json.dumps({"class": durability, "leases_durable": durable, "jobs": jobs, **middle}), flush=True)
            good = good and costs[1] <= DEARER_MAX * costs[0]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
