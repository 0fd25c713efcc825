"""Measure jobs as a Python user sees them, beside BullMQ and JetStream in the same run: `make bench BENCH=jobs`.

One JSON line per workload. Each run starts servers of its own; a worker, and whoever enqueues, is a process of its own
(`bench.programs`). Jobs do nothing, and are durable: a DriftQ topic is `disk`, Redis has an append-only file that is
synced every second, JetStream has file storage. Peers come from `make peers`; without one its bars are `not measured`,
and the exit status is 3. `docs/benchmarks.md` says how to read it.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.peers import Figures, missing_any, missing_bullmq, nats, node_program, python_program, run_program
from bench.report import Result, Workload, report
from bench.servers import Process, driftq, redis

JOBS = 20_000
CONCURRENCY = 10
ENQUEUED = 3_000
RATES = {200: 3.0, 2000: 2.0}
"""Jobs a second, and for how many seconds."""
REPEAT = 5
BROKER = {"DRIFTQ_DURABILITY": "disk", "DRIFTQ_MAX_PARTITION_MSGS": "0", "DRIFTQ_MAX_PARTITION_BYTES": "0"}


@contextmanager
def queue_server(parent: str) -> Iterator[Process]:
    """A DriftQ server with an empty queue and an empty topic of its broker."""
    with driftq(parent, **BROKER) as server:
        server.call("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "disk"})
        server.call("POST", "/v1/topics", {"name": "jobs", "partitions": 1})
        yield server


def fill(server: Process, kind: str, count: int) -> None:
    """Enqueue many jobs quickly."""
    for first in range(0, count, 1000):
        jobs = [{"at": 0, "number": number} for number in range(first, min(first + 1000, count))]
        if kind.endswith("queue"):
            server.call("POST", "/v0/topics/jobs", {"records": [{"data": job} for job in jobs]})
        else:
            messages = [{"value": json.dumps(job)} for job in jobs]
            server.call("POST", "/v1/produce/batch", {"topic": "jobs", "messages": messages})


# --- how many a second --------------------------------------------------------------------------------------------


def driftq_rate(parent: str, kind: str, count: int) -> Figures:
    """Jobs that one worker process handles and acks in a second, and CPU time of both processes."""
    with queue_server(parent) as server:
        fill(server, kind, count)
        before = server.cpu_seconds()
        found = run_program(python_program("driftq_jobs", "work", kind, server.url(), count))
        return {**found, "server_cpu_us": (server.cpu_seconds() - before) / count * 1e6}


def bullmq_rate(parent: str, count: int) -> float:
    """The same with BullMQ."""
    with redis(parent, appendfsync="everysec") as server:
        port = server.address[1]
        run_program(node_program("bullmq_jobs", "fill", port, count))
        return run_program(node_program("bullmq_jobs", "work", port, count))["per_s"]


def jetstream_rate(parent: str, count: int, batch: int) -> float:
    """The same with JetStream and nats-py, so many messages taken at a time."""
    with nats(parent) as server:
        url = server.url("nats")
        run_program(python_program("nats_jobs", "fill", url, count, 100, peer=True))
        return run_program(python_program("nats_jobs", "work", url, count, batch, peer=True))["per_s"]


def processed(*kinds: str) -> Callable[[str, float], Result]:
    """The slowest of our kinds of worker against JetStream with as many messages taken at a time as handlers run;
    against BullMQ, and JetStream with 100 taken at a time, as facts.
    """

    def run(parent: str, scale: float) -> Result:
        count = int(JOBS * scale)
        jetstream, bullmq = jetstream_rate(parent, count, CONCURRENCY), bullmq_rate(parent, count)
        facts: Figures = {"jetstream_per_s": jetstream, "bullmq_per_s": bullmq}
        facts["jetstream_100_per_s"] = jetstream_rate(parent, count, 100)
        rates = []
        for kind in kinds:
            found = driftq_rate(parent, kind, count)
            rates.append(found["per_s"])
            facts |= {f"{kind}_{name}": found[name] for name in ("per_s", "cpu_us", "server_cpu_us")}
        slowest = min(rates)
        return Result(slowest / jetstream, {"x_bullmq": slowest / bullmq, **facts})

    return run


# --- one by one ---------------------------------------------------------------------------------------------------


def enqueued(parent: str, scale: float) -> Result:
    """Jobs enqueued one after the other: the slower of a queue and a broker topic against BullMQ."""
    count = int(ENQUEUED * scale)
    with redis(parent, appendfsync="everysec") as server:
        bullmq = run_program(node_program("bullmq_jobs", "enqueue", server.address[1], count))["per_s"]
    with queue_server(parent) as server:
        found = {
            kind: run_program(python_program("driftq_jobs", "enqueue", kind, server.url(), count))["per_s"]
            for kind in ("queue", "group")
        }
    facts = {"bullmq_per_s": bullmq, "queue_per_s": found["queue"], "produce_per_s": found["group"]}
    return Result(found["queue"] / bullmq, {"produce_x": found["group"] / bullmq, **facts})


# --- how long one takes -------------------------------------------------------------------------------------------


def bullmq_latency(parent: str, rate: int, count: int) -> Figures:
    """From the call that enqueues a job to the start of its handler."""
    with redis(parent, appendfsync="everysec") as server:
        port = server.address[1]
        return run_program(
            node_program("bullmq_jobs", "work", port, count),
            lambda: run_program(node_program("bullmq_jobs", "send", port, count, rate)),
        )


def driftq_latency(parent: str, kind: str, rate: int, count: int) -> Figures:
    """The same of ours."""
    with queue_server(parent) as server:
        url = server.url()
        return run_program(
            python_program("driftq_jobs", "work", kind, url, count),
            lambda: run_program(python_program("driftq_jobs", "send", kind, url, count, rate)),
        )


def latency(rate: int, *kinds: str) -> Callable[[str, float], Result]:
    """The p99 of the slowest of our kinds over that of BullMQ; the p50 likewise, as a fact."""

    def run(parent: str, scale: float) -> Result:
        count = int(rate * RATES[rate] * scale)
        theirs = bullmq_latency(parent, rate, count)
        ours = {kind: driftq_latency(parent, kind, rate, count) for kind in kinds}
        facts = {f"bullmq_{name}": theirs[name] for name in ("p50_ms", "p99_ms")}
        facts |= {f"{kind}_{name}": found[name] for kind, found in ours.items() for name in ("p50_ms", "p99_ms")}
        p50, p99 = (max(found[name] for found in ours.values()) / theirs[name] for name in ("p50_ms", "p99_ms"))
        return Result(p99, {"p50_x": p50, **facts})

    return run


def _latency(rate: int, *kinds: str, bars: dict[str, float]) -> Workload:
    return Workload(
        "x p99 of BullMQ", latency(rate, *kinds), 1.2, least=False, bars=bars, repeat=REPEAT, missing=missing_bullmq
    )


def _processed(*kinds: str) -> Workload:
    bars = {"x_bullmq": 1.5}
    return Workload("x JetStream", processed(*kinds), 1.0, bars=bars, repeat=REPEAT, missing=missing_any)


QUEUE, GROUP = ("queue", "async_queue"), ("group", "async_group")
WORKLOADS = {
    "queue": _processed(*QUEUE),
    "group": _processed(*GROUP),
    "enqueue": Workload("x BullMQ", enqueued, 1.0, bars={"produce_x": 1.0}, repeat=REPEAT, missing=missing_bullmq),
    "queue_200": _latency(200, *QUEUE, bars={"p50_x": 1.5}),
    "queue_2000": _latency(2000, *QUEUE, bars={}),
    "group_200": _latency(200, *GROUP, bars={"p50_x": 1.5}),
    "group_2000": _latency(2000, *GROUP, bars={}),
}


if __name__ == "__main__":
    sys.exit(report(WORKLOADS, __doc__))
