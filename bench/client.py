"""Measure the Python client, beside redis-py in the same run: `make bench BENCH=client`. One JSON line per workload.

Each run starts servers of its own, and a client in a process of its own (`bench.programs`). A record is about 110 bytes
of JSON with a tag, given as a dict; a topic is `disk`, and Redis has an append-only file that is synced every second.
Peers come from `make peers`; without one its bars are `not measured`, and the exit status is 3.
`docs/benchmarks.md` says how to read it.
"""

import sys
from collections.abc import Callable

from bench.http import filled
from bench.peers import Figures, missing_redis_py, python_program, run_program
from bench.report import Result, Workload, report
from bench.servers import Process, driftq, redis

SECONDS = 2.0
RECORDS = 1_000_000
PRODUCED = 200_000
CONNECTIONS = {"sync": 1, "threads": 16, "tasks": 16}


def ours(server: Process, kind: str, amount: float) -> Figures:
    """What a program with DriftQ's client measures."""
    return run_program(python_program("driftq_appends", kind, server.url(), amount))


def theirs(server: Process, kind: str, amount: float) -> Figures:
    """What one with redis-py does."""
    return run_program(python_program("redis_appends", kind, server.address[1], amount, peer=True))


def appends(kind: str) -> Callable[[str, float], Result]:
    """Single appends, against single XADDs."""

    def run(parent: str, scale: float) -> Result:
        with redis(parent, appendfsync="everysec") as server:
            peer = theirs(server, kind, SECONDS * scale)
        with driftq(parent) as server:
            server.call("PUT", "/v0/topics/bench", {"durability": "disk"})
            found = ours(server, kind, SECONDS * scale)
        facts = {"per_s": found["per_s"], "cpu_us": found["cpu_us"]}
        return Result(
            found["per_s"] / peer["per_s"], {**facts, "redis_per_s": peer["per_s"], "redis_cpu_us": peer["cpu_us"]}
        )

    return run


def server_cpu(kind: str) -> Callable[[str, float], Result]:
    """CPU time of the server per append of this client, over what plain sockets cause at the same rate."""

    def run(parent: str, scale: float) -> Result:
        used = []
        rate = bare_rate = 0.0
        for bare in (False, True):
            with driftq(parent) as server:
                server.call("PUT", "/v0/topics/bench", {"durability": "disk"})
                before = server.cpu_seconds()
                if bare:
                    asked = (*server.address, CONNECTIONS[kind], rate, SECONDS * scale)
                    found = run_program(python_program("bare_appends", *asked))
                    bare_rate, calls = found["per_s"], found["answered"]
                else:
                    found = ours(server, kind, SECONDS * scale)
                    rate, calls = found["per_s"], found["calls"]
                used.append((server.cpu_seconds() - before) / calls * 1e6)
        return Result(
            used[0] / used[1], {"client_us": used[0], "bare_us": used[1], "per_s": rate, "bare_per_s": bare_rate}
        )

    return run


def producer(parent: str, scale: float) -> Result:
    """A buffered producer, against single appends of the same client."""
    with driftq(parent) as server:
        server.call("PUT", "/v0/topics/bench", {"durability": "disk"})
        single = ours(server, "sync", SECONDS * scale)
        found = ours(server, "producer", int(PRODUCED * scale))
    facts = {"x_sync": found["per_s"] / single["per_s"], "sync_per_s": single["per_s"], "cpu_us": found["cpu_us"]}
    return Result(found["per_s"], facts)


def read(parent: str, scale: float) -> Result:
    """All records of a topic as objects, against XRANGE."""
    records = int(RECORDS * scale)
    with redis(parent, appendfsync="everysec") as server:
        theirs(server, "fill", records)
        peer, raw = theirs(server, "read", records)["per_s"], theirs(server, "raw_read", records)["per_s"]
    with filled(parent, records) as server:
        found = ours(server, "read", records)["per_s"]
    return Result(found / peer, {"per_s": found, "redis_per_s": peer, "redis_raw_per_s": raw})


def to_arrow(parent: str, scale: float) -> Result:
    """All records of a topic as one table."""
    records = int(RECORDS * scale)
    with filled(parent, records) as server:
        return Result(ours(server, "arrow", records)["per_s"], {})


WORKLOADS = {
    "append": Workload("x redis-py", appends("sync"), 0.6, at_most={"cpu_us": 70.0}, missing=missing_redis_py),
    "append_threads": Workload("x redis-py", appends("threads"), 0.8, missing=missing_redis_py),
    "append_tasks": Workload("x redis-py", appends("tasks"), 1.0, at_most={"cpu_us": 90.0}, missing=missing_redis_py),
    "server_cpu": Workload("x plain sockets", server_cpu("sync"), 1.5, least=False),
    "server_cpu_threads": Workload("x plain sockets", server_cpu("threads"), 1.5, least=False),
    "server_cpu_tasks": Workload("x plain sockets", server_cpu("tasks"), 1.5, least=False),
    "producer": Workload("appends/s", producer, 60_000, bars={"x_sync": 10.0}),
    "read": Workload("x redis-py", read, 2.5, repeat=1, missing=missing_redis_py),
    "to_arrow": Workload("records/s", to_arrow, 3_000_000),
}


if __name__ == "__main__":
    sys.exit(report(WORKLOADS, __doc__))
