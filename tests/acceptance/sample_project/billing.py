"""A user's project: it is type-checked as strictly as ours, and says which types it expects to get."""

import asyncio
from collections.abc import Awaitable
from typing import assert_type

import pandas
import polars

from driftq.client import (
    ApiError,
    AsyncClient,
    AsyncStream,
    AsyncWorker,
    CaughtUp,
    Client,
    DeadLetter,
    Delivery,
    Envelope,
    Job,
    NewRecord,
    Record,
    Retry,
    RetryPolicy,
    Stream,
    Tombstone,
    TopicGone,
    WatchEvent,
    Worker,
)


def charge(job: Job) -> None:
    """A handler of jobs."""
    if job.deliveries > 3:
        raise DeadLetter("too often")
    if job.data is None:
        raise Retry(after=1.5)


def send(message: Delivery) -> str:
    """A handler of messages, whose result is kept."""
    return f"sent {message.key} for {message.envelope.tenant_id}"


def blocking() -> list[Record | Tombstone]:
    """Every kind of call, with its type."""
    with Client("http://127.0.0.1:4000", timeout=5, retries=2) as client:
        invoices = client.topic("invoices")
        assert_type(invoices.create(durability="fsync").created, bool)
        assert_type(invoices.update(ttl_ms=None, cap_records=5).config.cap_records, int)
        assert_type(invoices.replace(durability="fsync").created, bool)
        assert_type(invoices.append({"amount": 5}, tag="new").last_seq, int)
        assert_type(invoices.write([NewRecord(1), {"data": 2}]).count, int)
        assert_type(invoices.info().head_seq, int)
        assert_type(invoices.to_pandas(), pandas.DataFrame)
        assert_type(invoices.to_polars(), polars.DataFrame)
        assert_type(invoices.watch(), Stream[Record | Tombstone])
        for event in client.watch({"invoices": 0}):
            assert_type(event, WatchEvent)
            assert_type(event.item, Record | Tombstone | CaughtUp | TopicGone)
        names = [row.topic for row in client.topics()]
        assert_type(names, list[str])
        claimed = client.topic("jobs").claim(10).claimed
        assert_type(claimed, list[Job])
        assert_type(client.topic("jobs").ack(claimed).acked, int)
        envelope = Envelope(run_id="r", retry_policy=RetryPolicy(max_attempts=3))
        client.broker.produce("mail", {"to": "x"}, key="x", envelope=envelope)
        with client.broker.consume("mail", "senders") as stream:
            for delivery in stream:
                assert_type(delivery, Delivery)
                assert_type(delivery.attempts, int)
                client.broker.ack(delivery)
        assert_type(client.broker.idempotency.begin("mail", "senders", "k").result, bytes)
        worker = Worker.queue(client, "jobs", charge, concurrency=4)
        assert_type(worker, Worker[Job])
        worker.run()
        Worker.group(client, "mail", "senders", send, effects=True).run()
        try:
            return list(invoices.read(10))
        except ApiError as error:
            assert_type(error.retry_after, float | None)
            raise


async def awaiting() -> int:
    """The same calls, awaited."""
    async with AsyncClient() as client:
        invoices = client.topic("invoices")
        written = await invoices.append(1)
        assert_type(written.first_seq, int)
        assert_type(invoices.read(), AsyncStream[Record | Tombstone])
        total = 0
        async for item in invoices.read():
            if isinstance(item, Record):
                assert_type(item.seq, int)
                total += 1
        group = await client.broker.groups("mail")
        assert_type([row.lag for one in group for row in one.partitions], list[int])

        async def handle(message: Delivery) -> None:
            await client.broker.produce("next", message.value)

        running: Awaitable[None] = AsyncWorker.group(client, "mail", "senders", handle).run()
        await asyncio.wait_for(running, 5)
        return total
