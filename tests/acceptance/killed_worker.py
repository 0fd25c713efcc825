"""A process made to be killed, with four workers: `killed_worker.py URL LOG`.

Each handler adds a line to LOG when it begins and one when it has done its work, each with one write, so that a kill
leaves whole lines: `begun KIND ID ATTEMPT` and `ended KIND ID ATTEMPT`. ATTEMPT is what the handler returns; no other
call of a handler has the same. It works until SIGTERM.
"""

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable
from itertools import count

from driftq.client import AsyncClient, AsyncWorker, Delivery, Job
from driftq.client.workers.handlers import WorkerOptions
from tests.acceptance.restarting import PATIENT

QUEUE, QUEUE_ONCE, GROUP, GROUP_ONCE = "queue", "queue-once", "group", "group-once"
"""The kinds of work; each is the name of its topic."""
KINDS = (QUEUE, QUEUE_ONCE, GROUP, GROUP_ONCE)
KEYS = "keys"
"""The topic of the broker that keeps which jobs of `queue-once` are done."""
READERS = "readers"
"""The group."""
_HANDLER_S = 0.004
"""At most. Short, so that many kills find work that is handled and not settled."""
_OPTIONS = WorkerOptions(lease_ms=2000, concurrency=32)


def handler(log: int, kind: str) -> Callable[[str], Awaitable[str]]:
    """Return what handles the work with this id."""
    attempts = count()

    async def handle(work: str) -> str:
        attempt = f"{os.getpid()}.{next(attempts)}"
        os.write(log, f"begun {kind} {work} {attempt}\n".encode())
        await asyncio.sleep(random.uniform(0, _HANDLER_S))
        os.write(log, f"ended {kind} {work} {attempt}\n".encode())
        return attempt

    return handle


async def main(url: str, path: str) -> None:
    """Work until a signal comes."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    handlers = {kind: handler(log, kind) for kind in KINDS}

    def of_job(kind: str) -> Callable[[Job], Awaitable[str]]:
        return lambda job: handlers[kind](str(job.data))

    def of_message(kind: str) -> Callable[[Delivery], Awaitable[str]]:
        return lambda message: handlers[kind](message.envelope.idempotency_key)

    async with AsyncClient(url, retries=PATIENT) as client:
        workers: list[AsyncWorker[Job] | AsyncWorker[Delivery]] = [
            AsyncWorker.queue(client, QUEUE, of_job(QUEUE), **_OPTIONS),
            AsyncWorker.queue(client, QUEUE_ONCE, of_job(QUEUE_ONCE), effects=KEYS, **_OPTIONS),
            AsyncWorker.group(client, GROUP, READERS, of_message(GROUP), **_OPTIONS),
            AsyncWorker.group(client, GROUP_ONCE, READERS, of_message(GROUP_ONCE), effects=True, **_OPTIONS),
        ]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(worker.run()) for worker in workers]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for worker in workers:
                worker.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
