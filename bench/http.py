"""Measure the server over HTTP, beside Redis Streams in the same run: `make bench`. One JSON line per workload.

Every workload starts servers of its own and is driven from this process, so that with two cores the server has one and
the load the other. A record is about 110 bytes of JSON with a tag of its own; Redis gets the same bytes as an entry of
two fields, with its append-only file on. A ratio is taken from turns that follow one another, the median of `--repeat`.
Without redis-server the peer's workloads say so and are left out. `docs/benchmarks.md` tells how to read it.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvloop

from bench.load import body, redis_length
from bench.report import Result, Workload, report
from bench.servers import Process, driftq, missing_redis, redis
from driftq.cli.server.load_generator import LoadGenerator, again_and_again, drive, http_length, http_request

CONNECTIONS = 16
SECONDS = 4.0
SETTLE_SECONDS = 8.0
ARROW = "application/vnd.apache.arrow.stream"


# --- loads --------------------------------------------------------------------------------------------------------


def writes(topic: str, batch: int) -> list[bytes]:
    """Requests of so many records each."""
    return [http_request("POST", f"/v0/topics/{topic}?return_seqs=false", body(batch, n * batch)) for n in range(50)]


def xadds(batch: int) -> list[bytes]:
    """The same records as pipelines of XADD."""
    filling = "x" * 85
    pipelines = []
    for n in range(50):
        parts = []
        for number in range(n * batch, (n + 1) * batch):
            data = f'{{"id":{number},"payload":"{filling}"}}'
            fields = ("XADD", "bench", "*", "d", data, "t", f"order-{number}")
            parts.append(f"*{len(fields)}\r\n" + "".join(f"${len(field)}\r\n{field}\r\n" for field in fields))
        pipelines.append("".join(parts).encode())
    return pipelines


def spread(requests: Sequence[bytes], connections: int) -> list[Iterator[bytes]]:
    """Each connection its own place in the same requests."""
    return [again_and_again([*requests[n:], *requests[:n]]) for n in range(connections)]


def run_load(load: "asyncio.Future[LoadGenerator] | object") -> LoadGenerator:
    """Drive it on a fast loop."""
    return uvloop.run(load)  # type: ignore[arg-type]


def driftq_writes(parent: str, durability: str, batch: int, seconds: float) -> tuple[float, dict[str, float]]:
    """Records a second, and how the server fared."""
    with driftq(parent) as server:
        server.call("PUT", "/v0/topics/bench", {"durability": durability})
        load = run_load(drive(server.address, spread(writes("bench", batch), CONNECTIONS), http_length, seconds))
        cpu = server.cpu_seconds() / (load.replies * batch) * 1e6
        return load.per_second * batch, {"p99_ms": load.quantile(0.99), "server_cpu_us_per_record": cpu}


def redis_writes(parent: str, appendfsync: str, batch: int, seconds: float) -> float:
    """Entries a second."""
    with redis(parent, appendfsync=appendfsync) as server:
        load = run_load(drive(server.address, spread(xadds(batch), CONNECTIONS), redis_length(batch), seconds))
        return load.per_second * batch


def against_redis(durability: str, appendfsync: str, batch: int) -> Callable[[str, float], Result]:
    """How many times what Redis does."""

    def run(parent: str, scale: float) -> Result:
        theirs = redis_writes(parent, appendfsync, batch, SECONDS * scale)
        ours, facts = driftq_writes(parent, durability, batch, SECONDS * scale)
        return Result(ours / theirs, {"records_per_s": ours, "redis_per_s": theirs, **facts})

    return run


# --- reads --------------------------------------------------------------------------------------------------------


@contextmanager
def filled(parent: str, records: int, *, durability: str = "disk", **config: object) -> Iterator[Process]:
    """A server with a topic of so many records."""
    with driftq(parent) as server:
        server.call("PUT", "/v0/topics/bench", {"durability": durability, **config})
        batch = 1000
        requests = [
            http_request("POST", "/v0/topics/bench?return_seqs=false", body(batch, first))
            for first in range(0, records, batch)
        ]
        run_load(drive(server.address, [iter(requests[n::4]) for n in range(4)], http_length, 600))
        yield server


def diff(parent: str, scale: float) -> Result:
    """Pages of 1000 over the newest 200 000 records."""
    records = 200_000
    with filled(parent, records) as server:
        pages = [
            http_request("POST", "/v0/topics/bench/diff", b'{"from_seq":%d,"limit":1000}' % first)
            for first in range(0, records, 1000)
        ]
        load = run_load(drive(server.address, spread(pages, CONNECTIONS), http_length, SECONDS * scale))
        return Result(load.per_second * 1000, {"p99_ms": load.quantile(0.99)})


def arrow(parent: str, scale: float) -> Result:
    """The same as Arrow, 100 000 records a page."""
    records = 200_000
    with filled(parent, records) as server:
        pages = [
            http_request(
                "POST",
                "/v0/topics/bench/diff",
                b'{"from_seq":%d,"limit":100000}' % first,
                f"accept: {ARROW}",
                "content-type: application/json",
            )
            for first in range(0, records, 100_000)
        ]
        load = run_load(drive(server.address, spread(pages, 2), http_length, SECONDS * scale))
        return Result(load.per_second * 100_000, {"p99_ms": load.quantile(0.99)})


# --- streams ------------------------------------------------------------------------------------------------------


class Watcher(asyncio.Protocol):
    """One stream: notes when each record arrived, by the moment that was written into it."""

    def __init__(self, path: str, delays: list[float]) -> None:
        self._request = f"GET {path} HTTP/1.1\r\nhost: bench\r\naccept: text/event-stream\r\n\r\n".encode()
        self._delays = delays

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream."""
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Look for moments."""
        now = time.perf_counter()
        at = data.find(b'"sent":')
        while at >= 0:
            self._delays.append(now - float(data[at + 7 : data.find(b"}", at)]))
            at = data.find(b'"sent":', at + 1)


def watchers(parent: str, scale: float) -> Result:
    """A hundred watchers of one topic, 200 writes a second: from before the write to the last byte of its frame."""
    rate, count = 200, 100
    delays: list[float] = []
    used: list[float] = []

    async def run(server: Process) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            session = server.call("POST", "/v0/watch", {"topics": {"bench": {"tail": True}}})
            await loop.create_connection(lambda url=session["stream_url"]: Watcher(url, delays), *server.address)  # type: ignore[misc]
        reader, writer = await asyncio.open_connection(*server.address)
        await asyncio.sleep(0.5)
        used.append(server.cpu_seconds())
        began = time.perf_counter()
        for n in range(int(rate * SECONDS * scale)):
            await asyncio.sleep(max(0.0, began + n / rate - time.perf_counter()))
            record = b'{"records":[{"data":{"sent":%.6f}}]}' % time.perf_counter()
            writer.write(http_request("POST", "/v0/topics/bench?return_seqs=false", record))
            await reader.readuntil(b"}}")
        await asyncio.sleep(0.5)
        used.append(server.cpu_seconds())
        writer.close()

    with driftq(parent) as server:
        server.call("PUT", "/v0/topics/bench", {})
        uvloop.run(run(server))
        delays.sort()
        expected = int(rate * SECONDS * scale) * count
        assert len(delays) == expected, f"{len(delays)} deliveries, and {expected} were due"
        return Result(
            delays[int(len(delays) * 0.99)] * 1000,
            {
                "p50_ms": statistics.median(delays) * 1000,
                "deliveries": len(delays),
                "server_cpu_us_per_delivery": (used[1] - used[0]) / len(delays) * 1e6,
            },
        )


# --- queues -------------------------------------------------------------------------------------------------------


def claim_and_ack(server: Process, jobs: int, callers: int) -> float:
    """Seconds per job, in batches of 100."""

    async def work(node: str, left: list[int]) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        claim = http_request("POST", "/v0/topics/bench/claim", json.dumps({"node": node, "max": 100}).encode())
        while left[0] > 0:
            left[0] -= 100
            writer.write(claim)
            claimed = json.loads(await _body(reader))["claimed"]
            seqs = [job["$seq"] for job in claimed]
            ids = [job["lease_id"] for job in claimed]
            ack = json.dumps({"node": node, "seqs": seqs, "lease_ids": ids}).encode()
            writer.write(http_request("POST", "/v0/topics/bench/ack", ack))
            acked = json.loads(await _body(reader))["acked"]
            assert acked == len(seqs) == 100
        writer.close()

    async def all_of_them() -> float:
        began = time.perf_counter()
        left = [jobs]
        await asyncio.gather(*[work(f"w{n}", left) for n in range(callers)])
        return (time.perf_counter() - began) / jobs

    return uvloop.run(all_of_them())


async def _body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    start = head.lower().find(b"content-length:")
    return await reader.readexactly(int(head[start + 15 : head.find(b"\r\n", start)]))


def queue(parent: str, scale: float) -> Result:
    """Claim and ack in the fsync class; and the same per job with fifty times the jobs.

    Right behind its filling a server is slower, and so is whoever is second in a turn on a busy machine: both servers
    are left alone for a while, and then each is first in every other turn.
    """
    few, many, rounds = 20_000, int(1_000_000 * scale), 10
    jobs = few // 2 // rounds
    with (
        filled(parent, few, durability="fsync", type="queue") as small,
        filled(parent, many, durability="fsync", type="queue") as large,
    ):
        time.sleep(SETTLE_SECONDS)
        before = [server.cpu_seconds() for server in (small, large)]
        turns = [_by_turns(small, large, jobs, small_first=bool(n % 2)) for n in range(rounds)]
        used = [server.cpu_seconds() - cpu for server, cpu in zip((small, large), before, strict=True)]
    of_few, of_many = (statistics.median(turn[which] for turn in turns) for which in (0, 1))
    return Result(
        1 / of_few,
        {
            "jobs_per_s_of_a_million": 1 / of_many,
            "cost_ratio": statistics.median(large / small for small, large in turns),
            "server_cpu_us_per_job": used[0] / (jobs * rounds) * 1e6,
            "server_cpu_us_per_job_of_a_million": used[1] / (jobs * rounds) * 1e6,
        },
    )


def _by_turns(small: Process, large: Process, jobs: int, *, small_first: bool) -> tuple[float, float]:
    if small_first:
        return claim_and_ack(small, jobs, 4), claim_and_ack(large, jobs, 4)
    of_many = claim_and_ack(large, jobs, 4)
    return claim_and_ack(small, jobs, 4), of_many


# --- many ---------------------------------------------------------------------------------------------------------


def many(parent: str, scale: float) -> Result:
    """Ten thousand topics and a thousand idle watchers: what they take, and what they do to a write."""
    topics, streams = int(10_000 * scale), int(1000 * scale)

    def latency(server: Process) -> float:
        requests = [again_and_again(writes("bench", 1))]
        return run_load(drive(server.address, requests, http_length, 1.0)).quantile(0.5)

    async def watch(server: Process) -> list[asyncio.BaseTransport]:
        loop = asyncio.get_running_loop()
        opened: list[asyncio.BaseTransport] = []
        for n in range(streams):
            session = server.call("POST", "/v0/watch", {"topics": {f"t{n}": {}}})
            transport, _ = await loop.create_connection(
                lambda url=session["stream_url"]: Watcher(url, []),  # type: ignore[misc]
                *server.address,
            )
            opened.append(transport)
        await asyncio.sleep(1)
        return opened

    with driftq(parent) as server:
        server.call("PUT", "/v0/topics/bench", {})
        before = latency(server)
        puts = [http_request("PUT", f"/v0/topics/t{n}", b"{}") for n in range(topics)]
        run_load(drive(server.address, [iter(puts[n::16]) for n in range(16)], http_length, 600))
        loop = uvloop.new_event_loop()
        opened = loop.run_until_complete(watch(server))
        resident = server.resident_mib()
        after = latency(server)
        facts = {"write_ms_before": before, "write_ms_after": after, "streams": len(opened), "topics": topics}
        loop.close()
    return Result(resident, facts)


WORKLOADS = {
    "write_100": Workload("x Redis", against_redis("disk", "everysec", 100), 1.5, 2.0, missing=missing_redis),
    "write_1": Workload("x Redis", against_redis("disk", "everysec", 1), 0.35, 0.6, missing=missing_redis),
    "fsync_100": Workload("x Redis", against_redis("fsync", "always", 100), 1.3, 1.8, missing=missing_redis),
    "fsync_1": Workload("x Redis", against_redis("fsync", "always", 1), 0.6, 1.0, missing=missing_redis),
    "diff_1000": Workload("records/s", diff, 700_000, 1_500_000),
    "arrow": Workload("records/s", arrow, 4_000_000, 8_000_000),
    "watchers": Workload("ms p99", watchers, 5.0, least=False),
    "claim_ack": Workload("jobs/s", queue, 20_000, 60_000),
    "many": Workload("MiB", many, 300, least=False),
}


if __name__ == "__main__":
    sys.exit(report(WORKLOADS, __doc__))
