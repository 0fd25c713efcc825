"""Appends and reads with redis-py: `KIND PORT AMOUNT`, as `driftq_appends` does; `fill` writes what `read` reads.

A record is an entry of two fields, its JSON and its tag. A reader ends with a dict in its hands, as with
DriftQ's client; `raw_read` leaves the JSON as it is.
"""

import asyncio
import json
import sys
import time

import redis  # type: ignore[import-not-found]
import redis.asyncio  # type: ignore[import-not-found]

from bench.programs.loops import CALLERS, FILLING, Figures, in_tasks, in_threads, one_by_one

STREAM = "bench"
PAGE = 1000


def _entry(number: int) -> dict[str, str]:
    return {"d": json.dumps({"id": number, "payload": FILLING}), "t": f"order-{number}"}


async def _tasks(port: int, seconds: float) -> Figures:
    client = redis.asyncio.Redis(host="127.0.0.1", port=port)
    return await in_tasks(lambda n: client.xadd(STREAM, _entry(n)), CALLERS, seconds, client.aclose)


def _fill(client: "redis.Redis", count: int) -> Figures:
    for first in range(0, count, PAGE):
        with client.pipeline(transaction=False) as pipeline:
            for number in range(first, first + PAGE):
                pipeline.xadd(STREAM, _entry(number))
            pipeline.execute()
    return {}


def _read(client: "redis.Redis", count: int, *, raw: bool) -> Figures:
    began, found, at = time.perf_counter(), 0, b"-"
    while page := client.xrange(STREAM, at, count=PAGE):
        for _, fields in page:
            if not raw:
                json.loads(fields[b"d"])
            found += 1
        at = b"(" + page[-1][0]
    assert found == count, f"{found} of {count} records were read"
    return {"per_s": count / (time.perf_counter() - began)}


def run(kind: str, port: str, amount: str) -> Figures:
    """Do one of them."""
    if kind == "tasks":
        return asyncio.run(_tasks(int(port), float(amount)))
    client = redis.Redis(host="127.0.0.1", port=int(port))
    match kind:
        case "sync":
            return one_by_one(lambda n: client.xadd(STREAM, _entry(n)), float(amount))
        case "threads":
            return in_threads(lambda n: client.xadd(STREAM, _entry(n)), CALLERS, float(amount))
        case "fill":
            return _fill(client, int(amount))
        case _:
            return _read(client, int(amount), raw=kind == "raw_read")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(*sys.argv[1:])) + "\n")
