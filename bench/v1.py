"""Measure the broker API over HTTP: `python -m bench.v1`. One JSON line per workload; `docs/benchmarks.md` says more.

Every workload starts a server of its own, in the `fsync` class, and is driven from this process. A worker is a stream
that holds eight messages, and eight connections that each ack one. A message is about 110 bytes, produced by a request
of its own; only what is there before the clock starts is produced in batches.
"""

import asyncio
import json
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import uvloop

from bench.http import run_load
from bench.report import Result, Workload, report
from bench.servers import Process, driftq, start
from driftq.cli.server.load_generator import drive, http_length, http_request

WORKERS, IN_FLIGHT = 8, 8
PRODUCERS = 32
SECONDS = 4.0
FILLING = "x" * 85
NO_LIMITS = {"DRIFTQ_MAX_PARTITION_MSGS": "0", "DRIFTQ_MAX_PARTITION_BYTES": "0"}
_LINE = re.compile(rb'{"partition":(\d+),"offset":(\d+),[^\n]*\n')
_SENT = b'\\"sent\\":'


class Caller(asyncio.Protocol):
    """One connection with one request on its way; tells who waits when it is free again."""

    def __init__(self, free: "Callable[[Caller], None]") -> None:
        self._free = free
        self._transport: asyncio.Transport
        self._reply = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """A part of the answer."""
        reply = self._reply + data
        if reply.startswith(b"HTTP/1.1 204 "):
            whole = reply.endswith(b"\r\n\r\n")
        else:
            whole = 0 < http_length(reply) <= len(reply)
            assert reply.startswith(b"HTTP/1.1 200 "), reply
        self._reply = b"" if whole else reply
        if whole:
            self._free(self)

    def close(self) -> None:
        """Hang up."""
        self._transport.close()


class Worker(asyncio.Protocol):
    """One stream, and the connections its acks go out on."""

    def __init__(self, group: str, name: str, work: "Work") -> None:
        self._group = group
        self._name = name
        self._work = work
        self._rest = b""
        self.free: deque[Caller] = deque()
        self._acks: deque[bytes] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the group."""
        path = f"/v1/consume?topic=bench&group={self._group}&owner={self._name}&lease_ms=60000"
        cast("asyncio.Transport", transport).write(http_request("GET", f"{path}&max_in_flight={IN_FLIGHT}"))

    def data_received(self, data: bytes) -> None:
        """Ack each line."""
        now = time.perf_counter()
        data = self._rest + data
        end = 0
        for line in _LINE.finditer(data):
            end = line.end()
            self._work.delivered(line[0], now)
            ack = b'{"topic":"bench","group":"%b","owner":"%b","partition":%b,"offset":%b}' % (
                self._group.encode(),
                self._name.encode(),
                line[1],
                line[2],
            )
            self._acks.append(http_request("POST", "/v1/ack", ack))
        self._rest = data[end:]
        self._send()

    def _send(self) -> None:
        """The line that follows an ack may be here before its reply, which comes on another connection."""
        while self.free and self._acks:
            self.free.popleft().ask(self._acks.popleft())

    def acked(self, caller: Caller) -> None:
        """One more."""
        self.free.append(caller)
        self._send()
        self._work.acked()


class Work:
    """So many messages through one group."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.delays: list[float] = []
        self.done = asyncio.get_running_loop().create_future()
        self.more: Callable[[], None] = lambda: None

    def delivered(self, line: bytes, now: float) -> None:
        """A line has come."""
        at = line.find(_SENT)
        if at >= 0:
            self.delays.append(now - float(line[at + len(_SENT) : line.find(b",", at)]))

    def acked(self) -> None:
        """A message is done."""
        self.left -= 1
        if self.left == 0:
            self.done.set_result(None)
        self.more()


async def join(server: Process, group: str, work: Work, workers: int = WORKERS) -> list[asyncio.BaseTransport]:
    """Workers of a group."""
    loop = asyncio.get_running_loop()
    opened: list[asyncio.BaseTransport] = []
    for number in range(workers):
        worker = Worker(group, f"w{number}", work)
        for _ in range(IN_FLIGHT):
            transport, caller = await loop.create_connection(lambda w=worker: Caller(w.acked), *server.address)  # type: ignore[misc]
            worker.free.append(caller)
            opened.append(transport)
        transport, _ = await loop.create_connection(lambda w=worker: w, *server.address)  # type: ignore[misc]
        opened.append(transport)
    return opened


def produce_request() -> bytes:
    """One message, with the moment it is sent."""
    value = f'{{\\"sent\\":{time.perf_counter():.6f},\\"payload\\":\\"{FILLING}\\"}}'
    return http_request("POST", "/v1/produce", f'{{"topic":"bench","value":"{value}"}}'.encode())


async def callers(server: Process, count: int, free: Callable[[Caller], None]) -> list[Caller]:
    """Connections."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(lambda: Caller(free), *server.address))[1] for _ in range(count)]


def fill(server: Process, messages: int, *, atomic: bool = True) -> None:
    """Messages that are there before; not atomic: each is a write of its own."""
    batch = min(messages, 1000)
    value = json.dumps({"payload": FILLING})
    body = json.dumps({"topic": "bench", "messages": [{"value": value}] * batch, "atomic": atomic}).encode()
    requests = [http_request("POST", "/v1/produce/batch", body)] * (messages // batch)
    run_load(drive(server.address, [iter(requests[n::4]) for n in range(min(4, len(requests)))], http_length, 600))


# --- workloads ----------------------------------------------------------------------------------------------------


async def through(server: Process, messages: int) -> float:
    """Produce, consume, ack, with a few hundred messages on their way. Returns seconds."""
    work = Work(messages)
    to_come, idle = messages, deque[Caller]()

    def send() -> None:
        nonlocal to_come
        while idle and to_come and work.left - to_come < WORKERS * IN_FLIGHT * 4:
            to_come -= 1
            idle.popleft().ask(produce_request())

    def free(caller: Caller) -> None:
        idle.append(caller)
        send()

    work.more = send
    opened = await join(server, "g", work)
    idle.extend(await callers(server, PRODUCERS, free))
    began = time.perf_counter()
    send()
    await work.done
    took = time.perf_counter() - began
    for transport in opened:
        transport.close()
    return took


def throughput(parent: str, scale: float) -> Result:
    """Messages a second from produce to ack."""
    messages = int(20_000 * scale)
    with driftq(parent) as server:
        server.call("POST", "/v1/topics", {"name": "bench"})
        before, ours = server.cpu_seconds(), time.process_time()
        took = uvloop.run(through(server, messages))
        cpu = (server.cpu_seconds() - before) / messages * 1e6
        load = (time.process_time() - ours) / messages * 1e6
        facts = {"server_cpu_us_per_message": cpu, "load_cpu_us_per_message": load}
        return Result(messages / took, facts)


async def paced(server: Process, rate: int, messages: int) -> list[float]:
    """So many messages a second; the delay of each, from before its produce to its line."""
    work = Work(messages)
    idle: asyncio.Queue[Caller] = asyncio.Queue()
    await join(server, "g", work)
    for caller in await callers(server, PRODUCERS, idle.put_nowait):
        idle.put_nowait(caller)
    began = time.perf_counter()
    for number in range(messages):
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        request = produce_request()
        (await idle.get()).ask(request)
    await work.done
    return sorted(work.delays)


def latency(parent: str, scale: float) -> Result:
    """Delivery at a thousand messages a second."""
    rate = 1000
    messages = int(rate * SECONDS * scale)
    with driftq(parent) as server:
        server.call("POST", "/v1/topics", {"name": "bench"})
        delays = uvloop.run(paced(server, rate, messages))
    assert len(delays) == messages, f"{len(delays)} deliveries of {messages}"
    p50, p99 = delays[messages // 2] * 1000, delays[int(messages * 0.99)] * 1000
    return Result(p99, {"p50_ms": p50, "max_ms": delays[-1] * 1000})


async def work_off(server: Process, messages: int) -> float:
    """Consume and ack so many of what is there. Returns seconds."""
    work = Work(messages)
    began = time.perf_counter()
    opened = await join(server, "g", work)
    await work.done
    took = time.perf_counter() - began
    for transport in opened:
        transport.close()
    await asyncio.sleep(0.05)
    return took


def backlog(parent: str, scale: float) -> Result:
    """What a delivery and its ack cost the server with 10^6 messages behind it, in so many times that with 10^3."""
    some = int(5000 * scale)
    cpu: list[float] = []
    rates: list[float] = []
    for behind in (1000, int(1_000_000 * scale)):
        with driftq(parent, **NO_LIMITS) as server:
            server.call("POST", "/v1/topics", {"name": "bench"})
            fill(server, behind + some + 1000)
            server.wait_until_quiet()  # sealing and a checkpoint are not what is measured
            before = server.cpu_seconds()
            rates.append(some / uvloop.run(work_off(server, some)))
            cpu.append((server.cpu_seconds() - before) / some * 1e6)
    facts = {"us_of_1e3": cpu[0], "us_of_1e6": cpu[1], "per_s_of_1e3": rates[0], "per_s_of_1e6": rates[1]}
    return Result(cpu[1] / cpu[0], facts)


async def progress(server: Process, groups: int, each: int) -> None:
    """Let groups get a little way."""
    for number in range(groups):
        work = Work(each)
        opened = await join(server, f"g{number}", work, 1)
        await work.done
        for transport in opened:
            transport.close()


def restart(directory: str, scale: float) -> Result:
    """From the start of the process to its readiness with 10^6 messages and ten groups, after kill -9 and SIGTERM."""
    messages = int(1_000_000 * scale)
    took: list[float] = []
    server = start(directory, **NO_LIMITS)
    try:
        server.call("POST", "/v1/topics", {"name": "bench"})
        fill(server, messages, atomic=False)
        uvloop.run(progress(server, 10, 100))
        for number in (signal.SIGKILL, signal.SIGTERM):
            server.end(number)
            began = time.perf_counter()
            server = start(directory, **NO_LIMITS)
            server.wait_until("/v1/healthz")
            took.append(time.perf_counter() - began)
        groups = server.call("GET", "/v1/groups?topic=bench")["groups"]
        resident = server.resident_mib()
    finally:
        server.end(signal.SIGKILL)
    lags = [group["partitions"][0]["lag"] for group in groups]
    assert len(lags) == 10, f"{len(lags)} groups"
    assert all(messages - 200 < lag < messages for lag in lags), f"{lags} messages are left of {messages}"
    return Result(max(took), {"after_kill_s": took[0], "after_sigterm_s": took[1], "resident_mib": resident})


WORKLOADS = {
    "through": Workload("messages/s", throughput, 4000, 8000),
    "delivery": Workload("ms p99", latency, 20.0, least=False),
    "backlog": Workload("x the cost of 10^3", backlog, 1.15, least=False),
    "restart": Workload("s", restart, 3.0, least=False),
}


if __name__ == "__main__":
    sys.exit(report(WORKLOADS, __doc__))
