"""Measure queues in process: `python -m bench.queue`. Claims of 100 jobs, each acked with one call, on the real disk.

One JSON line per workload: a class, and whether leases are durable. The same work is done on a small and on a large
queue: what a job costs must not depend on how many there are. `small_us` and `large_us` are processor time of the loop,
so that a busy machine disturbs them less.
"""

import asyncio
import sys
import time
from collections.abc import Callable

import uvloop

from bench.report import Result, Workload, report
from bench.servers import scratch
from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.engine.state.segment import SEALING
from driftq.model.topic_config import Durability, TopicConfig
from driftq.server import Server
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk
from driftq.system.runtime import AsyncioRuntime

TOPIC = "bench"
BATCH = 100
BATCHES = 150
BLOCK = 1000
SMALL, LARGE = 20_000, 1_000_000
DEARER_MAX = 1.5
"""A job of the large queue may cost so many times one of the small queue; the rest is noise."""


async def claim_and_ack(directory: str, jobs: int, batches: int, config: TopicConfig) -> tuple[float, float]:
    """Work off some of a queue's jobs, one batch behind the other. Returns jobs a second, and microseconds each."""
    runtime = AsyncioRuntime(asyncio.get_running_loop())
    server = Server(Settings(data_dir=directory), OsDisk(), SystemClock(), runtime)
    engine, queues = server.engine, server.queues
    await runtime.future(engine.put_topic(TOPIC, config))
    block = make_rows([b'{"id":%d,"payload":"%b"}' % (number, b"x" * 85) for number in range(BLOCK)])
    for _ in range(jobs // BLOCK):
        await runtime.future(engine.append(TOPIC, block))
    segments = engine.topic(TOPIC).segments
    while engine.segment_files.busy or any(segment.state is SEALING for segment in segments):
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
    return done / took_s, 1e6 * cpu_s / done


def dearer(durability: Durability, *, durable: bool) -> Callable[[str, float], Result]:
    """What a job of a large queue costs, in so many times one of a small queue."""
    config = TopicConfig(type="queue", durability=durability, leases_durable=durable)

    def run(parent: str, scale: float) -> Result:
        found: list[tuple[float, float]] = []
        for jobs in (SMALL, LARGE):
            with scratch(parent) as directory:
                found.append(uvloop.run(claim_and_ack(directory, jobs, int(BATCHES * scale), config)))
        (small_rate, small_us), (large_rate, large_us) = found
        facts = {"small_per_s": small_rate, "large_per_s": large_rate, "small_us": small_us, "large_us": large_us}
        return Result(large_us / small_us, facts)

    return run


WORKLOADS = {
    f"{durability}{'_durable' if durable else ''}": Workload(
        "x the cost of a small queue", dearer(durability, durable=durable), DEARER_MAX, least=False
    )
    for durability in (Durability.FSYNC, Durability.DISK)
    for durable in (False, True)
}


if __name__ == "__main__":
    sys.exit(report(WORKLOADS, __doc__))
