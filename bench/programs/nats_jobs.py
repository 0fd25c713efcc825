"""Jobs with JetStream and nats-py: `fill URL COUNT BATCH`, `work URL COUNT BATCH`.

A stream with file storage and retention by work queue, a durable pull consumer, explicit acks. BATCH messages are asked
for at a time and handled at the same time, ten of them at most. An ack of JetStream is not confirmed: what is measured
ends when the server has read the last of them.
"""

import asyncio
import json
import sys
import time
from typing import Any

import nats  # type: ignore[import-not-found]
from nats.js.api import RetentionPolicy, StorageType  # type: ignore[import-not-found]

CONCURRENCY = 10


async def fill(url: str, count: int, batch: int) -> dict[str, float]:
    """Publish so many jobs, a batch of them on its way at a time."""
    connection = await nats.connect(url)
    stream = connection.jetstream()
    await stream.add_stream(
        name="jobs", subjects=["jobs"], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
    )
    for first in range(0, count, batch):
        await asyncio.gather(*(stream.publish("jobs", body(number)) for number in range(first, first + batch)))
    await connection.close()
    return {}


def body(number: int) -> bytes:
    """The job of every peer."""
    return json.dumps({"at": 0, "number": number}).encode()


async def work(url: str, count: int, batch: int) -> dict[str, float]:
    """Handle and ack so many jobs."""
    connection = await nats.connect(url)
    subscription = await connection.jetstream().pull_subscribe("jobs", durable="workers")
    slots = asyncio.Semaphore(CONCURRENCY)
    done = 0

    async def handle(message: Any) -> None:
        nonlocal done
        async with slots:
            json.loads(message.data)
        await message.ack()
        done += 1

    cpu_s, began = time.process_time(), time.perf_counter()
    while done < count:
        await asyncio.gather(*(handle(message) for message in await subscription.fetch(batch, timeout=10)))
    await connection.flush()
    took = time.perf_counter() - began
    cpu_us = (time.process_time() - cpu_s) / count * 1e6
    await connection.close()
    return {"per_s": count / took, "cpu_us": cpu_us}


def main(action: str, url: str, count: str, batch: str) -> None:
    """Do one of the two."""
    found = asyncio.run((fill if action == "fill" else work)(url, int(count), int(batch)))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
