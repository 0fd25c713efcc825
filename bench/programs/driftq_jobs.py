"""Jobs with DriftQ's client: `work KIND URL COUNT`, `send KIND URL COUNT RATE`, `enqueue KIND URL COUNT`.

KIND is `queue` or `group`, with `async_` before it for a worker on the caller's loop. A worker prints a line when it
is about to run, and ends when it has handled COUNT jobs and every one of them is acked.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.programs.loops import Figures, at_a_rate, quantiles_ms
from driftq.client import AsyncClient, AsyncWorker, Client, Worker

NAME, GROUP = "jobs", "workers"
CONCURRENCY = 10


def work(kind: str, url: str, count: int) -> Figures:
    """Handle so many jobs. Returns how long it took, and how long each was on its way."""
    delays: list[int] = []
    stop: list[Callable[[], None]] = []

    def handled(sent_at: int) -> None:
        delays.append(time.monotonic_ns() - sent_at)
        if len(delays) == count:
            stop[0]()

    def plain(item: Any) -> None:
        handled(item.data["at"] if kind.endswith("queue") else item.json()["at"])

    async def awaited(item: Any) -> None:
        plain(item)

    async def run_async() -> tuple[float, int]:
        async with AsyncClient(url) as client:
            if kind == "async_queue":
                worker: AsyncWorker[Any] = AsyncWorker.queue(client, NAME, awaited, concurrency=CONCURRENCY)
            else:
                worker = AsyncWorker.group(client, NAME, GROUP, awaited, concurrency=CONCURRENCY)
            stop.append(worker.stop)
            say({"ready": True})
            began = time.perf_counter()
            await worker.run()
            return time.perf_counter() - began, worker.stats.acked

    def run_plain() -> tuple[float, int]:
        with Client(url) as client:
            if kind == "queue":
                worker: Worker[Any] = Worker.queue(client, NAME, plain, concurrency=CONCURRENCY)
            else:
                worker = Worker.group(client, NAME, GROUP, plain, concurrency=CONCURRENCY)
            stop.append(worker.stop)
            say({"ready": True})
            began = time.perf_counter()
            worker.run()
            return time.perf_counter() - began, worker.stats.acked

    cpu_s = time.process_time()
    took, acked = asyncio.run(run_async()) if kind.startswith("async") else run_plain()
    assert acked >= count, f"{acked} of {count} jobs are acked"
    return {"per_s": count / took, "cpu_us": (time.process_time() - cpu_s) / count * 1e6, **quantiles_ms(delays)}


async def send(kind: str, url: str, count: int, rate: float) -> Figures:
    """Enqueue jobs at a steady rate, each with the moment of its call."""
    async with AsyncClient(url) as client:
        topic, broker = client.topic(NAME), client.broker

        async def one() -> None:
            sent = {"at": time.monotonic_ns()}
            if kind.endswith("queue"):
                await topic.append(sent)
            else:
                await broker.produce(NAME, json.dumps(sent))

        await at_a_rate(one, count, rate)
    return {}


def enqueue(kind: str, url: str, count: int) -> Figures:
    """Enqueue one job at a time, the next when the last is acked."""
    with Client(url) as client:
        topic, broker = client.topic(NAME), client.broker
        began = time.perf_counter()
        for number in range(count):
            sent = {"at": 0, "number": number}
            if kind.endswith("queue"):
                topic.append(sent)
            else:
                broker.produce(NAME, json.dumps(sent))
        return {"per_s": count / (time.perf_counter() - began)}


def say(found: object) -> None:
    """Print a line of JSON."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main(action: str, kind: str, url: str, count: str, rate: str = "0") -> None:
    """Do one of the three."""
    if action == "work":
        say(work(kind, url, int(count)))
    elif action == "send":
        say(asyncio.run(send(kind, url, int(count), float(rate))))
    else:
        say(enqueue(kind, url, int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
