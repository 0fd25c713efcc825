"""Appends and reads with DriftQ's client: `KIND URL AMOUNT`.

AMOUNT is seconds for the kinds `sync`, `threads` and `tasks`, and records for `producer`, `read` and `arrow`.
"""

import asyncio
import json
import sys
import time

from bench.programs.loops import CALLERS, FILLING, Figures, in_tasks, in_threads, one_by_one
from driftq.client import AsyncClient, Client

TOPIC = "bench"


def value_of(number: int) -> dict[str, object]:
    """The payload of a record, about 110 bytes of JSON."""
    return {"id": number, "payload": FILLING}


async def _tasks(url: str, seconds: float) -> Figures:
    client = AsyncClient(url)
    topic = client.topic(TOPIC)
    return await in_tasks(lambda n: topic.append(value_of(n), tag=f"order-{n}"), CALLERS, seconds, client.close)


def _producer(client: Client, count: int) -> Figures:
    """From the first append to the answer to the last."""
    cpu_s, began = time.process_time(), time.perf_counter()
    with client.topic(TOPIC).producer() as producer:
        for number in range(count):
            producer.append(value_of(number), tag=f"order-{number}")
    took = time.perf_counter() - began
    return {"per_s": count / took, "cpu_us": (time.process_time() - cpu_s) / count * 1e6}


def _read(client: Client, count: int) -> Figures:
    began, found = time.perf_counter(), 0
    for _ in client.topic(TOPIC).read():
        found += 1
    assert found == count, f"{found} of {count} records were read"
    return {"per_s": count / (time.perf_counter() - began)}


def _arrow(client: Client, count: int) -> Figures:
    client.topic("empty").create()
    client.topic("empty").to_arrow()  # so that loading Arrow is not measured
    began = time.perf_counter()
    found = client.topic(TOPIC).to_arrow().num_rows
    assert found == count, f"{found} of {count} records were read"
    return {"per_s": count / (time.perf_counter() - began)}


def run(kind: str, url: str, amount: str) -> Figures:
    """Do one of them."""
    if kind == "tasks":
        return asyncio.run(_tasks(url, float(amount)))
    with Client(url) as client:
        topic = client.topic(TOPIC)
        match kind:
            case "sync":
                return one_by_one(lambda n: topic.append(value_of(n), tag=f"order-{n}"), float(amount))
            case "threads":
                return in_threads(lambda n: topic.append(value_of(n), tag=f"order-{n}"), CALLERS, float(amount))
            case "producer":
                return _producer(client, int(amount))
            case "read":
                return _read(client, int(amount))
            case _:
                return _arrow(client, int(amount))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(*sys.argv[1:])) + "\n")
