"""A process made to be killed, with four workers: `killed_worker.py URL LOG MODE`.

MODE is `tasks` (each is an `AsyncWorker`, all on one loop) or `threads` (each is a `Worker` with threads of its own).

Each handler adds a line to LOG when it begins and one when it has done its work, each with one write, so that a kill
leaves whole lines: `begun KIND ID ATTEMPT` and `ended KIND ID ATTEMPT`. No two calls of handlers have the same ATTEMPT.
The handler returns it, so that a commit stores it, or None for work with an even id, whose message is committed by its
ack. It works until SIGTERM.
"""

import asyncio
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from itertools import count

from driftq.client import AsyncClient, AsyncWorker, Client, Delivery, Job, Worker
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
_THREADED = WorkerOptions(lease_ms=2000, concurrency=8)


class Attempts:
    """What the handlers of one kind write down."""

    def __init__(self, log: int, kind: str) -> None:
        self._log = log
        self._kind = kind
        self._numbers = count()

    def begin(self, work: str) -> str:
        """Write that a handler begins; return its attempt."""
        attempt = f"{os.getpid()}.{next(self._numbers)}"
        os.write(self._log, f"begun {self._kind} {work} {attempt}\n".encode())
        return attempt

    def end(self, work: str, attempt: str) -> str | None:
        """Write that a handler has done its work; return what the handler returns."""
        os.write(self._log, f"ended {self._kind} {work} {attempt}\n".encode())
        return attempt if has_result(work) else None


def has_result(work: str) -> bool:
    """Whether the handler of the work with this id returns its attempt, and not None."""
    return int(work) % 2 == 1


def in_tasks(attempts: Attempts) -> Callable[[str], Awaitable[str | None]]:
    """Return the coroutine function that handles the work with this id."""

    async def handle(work: str) -> str | None:
        attempt = attempts.begin(work)
        await asyncio.sleep(random.uniform(0, _HANDLER_S))
        return attempts.end(work, attempt)

    return handle


def in_threads(attempts: Attempts) -> Callable[[str], str | None]:
    """Return the plain function that handles the work with this id."""

    def handle(work: str) -> str | None:
        attempt = attempts.begin(work)
        time.sleep(random.uniform(0, _HANDLER_S))
        return attempts.end(work, attempt)

    return handle


async def work_in_tasks(url: str, log: int) -> None:
    """Work until a signal comes."""
    handlers = {kind: in_tasks(Attempts(log, kind)) for kind in KINDS}

    def of_job(kind: str) -> Callable[[Job], Awaitable[str | None]]:
        return lambda job: handlers[kind](str(job.data))

    def of_message(kind: str) -> Callable[[Delivery], Awaitable[str | None]]:
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


def work_in_threads(url: str, log: int) -> None:
    """Work until a signal comes. The process ends with status 1 if a worker raises."""
    handlers = {kind: in_threads(Attempts(log, kind)) for kind in KINDS}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def of_job(kind: str) -> Callable[[Job], str | None]:
        return lambda job: handlers[kind](str(job.data))

    def of_message(kind: str) -> Callable[[Delivery], str | None]:
        return lambda message: handlers[kind](message.envelope.idempotency_key)

    def run(worker: Worker[Job] | Worker[Delivery]) -> None:
        try:
            worker.run()
        except BaseException:  # noqa: BLE001  # the test sees that the process has ended, and why
            traceback.print_exc()
            os._exit(1)

    with Client(url, retries=PATIENT) as client:
        workers: list[Worker[Job] | Worker[Delivery]] = [
            Worker.queue(client, QUEUE, of_job(QUEUE), **_THREADED),
            Worker.queue(client, QUEUE_ONCE, of_job(QUEUE_ONCE), effects=KEYS, **_THREADED),
            Worker.group(client, GROUP, READERS, of_message(GROUP), **_THREADED),
            Worker.group(client, GROUP_ONCE, READERS, of_message(GROUP_ONCE), effects=True, **_THREADED),
        ]
        running = [threading.Thread(target=run, args=(worker,)) for worker in workers]
        for thread in running:
            thread.start()
        signal.sigwait({signal.SIGTERM})
        for worker in workers:
            worker.stop()
        for thread in running:
            thread.join()


def main(url: str, path: str, mode: str) -> None:
    """Work in one of the two ways."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    if mode == "threads":
        work_in_threads(url, log)
    else:
        asyncio.run(work_in_tasks(url, log))


if __name__ == "__main__":
    main(*sys.argv[1:])
