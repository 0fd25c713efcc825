"""Buffered producers: many appends become few requests.

An append encodes its record, adds it to the open batch and returns a handle. A sender (a thread, or a task) sends one
batch at a time, so the records of a producer keep their order. While one batch is being sent, the next one fills.

    batch:    open → full, flushed, or `linger_ms` old → sent → settled: results, or an error
    producer: open → closing: all appended records are sent → closed

Invariants
- Lines of JSON that are appended together are their own batch; no record is added to it or to the batch before it.
- A batch takes no more records when it has `max_batch` records or 1 MiB. If no other batch is being sent, it is sent at
  the latest `linger_ms` after its first record. It has idempotency keys, so a retry never writes it twice.
- At most `max_bytes` are buffered, including the batch that is being sent: an append that would exceed this waits for
  room. A single record above `max_bytes` waits until the buffer is empty.
- If a batch fails, all its handles fail and no others. `flush` and `close` raise the first error that no handle has
  raised, with a note for each further one, so no error is lost.
- A process that ends without `close` writes the rest at its exit, and waits up to 10 s for it. An error is logged for
  what is not written then, and for the rest of an asyncio producer whose event loop ends.
- In a forked child the producers of its parent raise RuntimeError: their senders run in the parent, which writes all
  their records.
"""

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Generic
from weakref import WeakSet

from driftq.client.errors import ClosedError
from driftq.client.producer.batch_buffer import (
    AppendBuffer,
    Appended,
    AppendedLines,
    AsyncAppended,
    AsyncAppendedLines,
    MakePlan,
    R,
    named,
)
from driftq.client.transport.closing import AsyncClosing, Closing, Kind
from driftq.client.transport.drivers import AsyncDriver, Driver
from driftq.client.transport.thread_pool import start_thread

LINGER_MS = 2.0
BATCH_RECORDS = 500
BUFFER_BYTES = 16 << 20
_EXIT_S = 10.0
"""How long a process that ends waits for a producer. After one that takes longer, it waits for no other."""

_log = logging.getLogger(__name__)


class Producer(Closing, Generic[R]):
    """Gathers appends into batches and sends them from its own thread. Several threads may use it."""

    def __init__(self, driver: Driver, plan: MakePlan[R], linger_ms: float, max_batch: int, max_bytes: int) -> None:
        self._driver = driver
        self._plan = plan
        self._linger_s = linger_ms / 1000
        self._buffer: AppendBuffer[R] = AppendBuffer(max_batch, max_bytes, threading.Event)
        lock = threading.Lock()
        self._work, self._room = threading.Condition(lock), threading.Condition(lock)
        self._is_forked = False
        self._thread = start_thread("driftq-producer", self._run)
        _open_producers.add(self)

    def _add(self, record: bytes) -> Appended[R]:
        self._check_process()
        with self._work:
            self._wait_for_room(len(record))
            batch, index = self._buffer.add(record)
            # The sender waits for the first record of a batch, and then until the batch is ready.
            if index == 0 or self._buffer.is_ready():
                self._work.notify()
        return Appended(batch, index)

    def _add_alone(self, records: bytes, plan: MakePlan[R]) -> AppendedLines[R]:
        self._check_process()
        with self._work:
            self._wait_for_room(len(records))
            batch = self._buffer.add_alone(records, plan)
            self._work.notify()
        return AppendedLines(batch, 0)

    def _wait_for_room(self, size: int) -> None:
        buffer = self._buffer
        while not buffer.closed and not buffer.has_room(size):
            self._room.wait()
        if buffer.closed:
            raise ClosedError("the producer is closed")

    def flush(self) -> None:
        """Wait until all appended records are written. Raise the first error that no handle has raised, with a note
        for each further one.
        """
        self._check_process()
        with self._work:
            batches = self._buffer.flush()
            self._work.notify()
        for batch in batches:
            batch.settled.wait()
        self._buffer.raise_unshown()

    def close(self) -> None:
        """Write all appended records, then stop. Raise the first error that no handle has raised, with a note for each
        further one.
        """
        self._check_process()
        self._stop()
        self._buffer.raise_unshown()

    def __exit__(self, kind: Kind, error: BaseException | None, at: Any) -> None:
        if error is None:
            self.close()
        elif not self._is_forked:
            self._stop()

    def _stop(self) -> None:
        self.send_rest()
        self._thread.join()
        _open_producers.discard(self)

    def send_rest(self) -> None:
        """Accept no more records, and send those that are buffered without waiting for more."""
        with self._work:
            self._buffer.closed = True
            self._work.notify()
            self._room.notify_all()

    def _check_process(self) -> None:
        if self._is_forked:
            raise RuntimeError(_FORKED)

    def ended_within(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds until all records are sent; log those that are not written. Return whether all
        were sent.
        """
        self._thread.join(wait_s)
        _log_lost(self._buffer)
        return not self._thread.is_alive()

    def forget(self) -> None:
        """Fail all calls and handles, in a child process that was just forked. The locks may be held forever."""
        self._is_forked = True
        for batch in self._buffer.unsettled():
            batch.error = RuntimeError(_FORKED)
            batch.settled = threading.Event()
            batch.settled.set()

    def _run(self) -> None:
        buffer = self._buffer
        while True:
            with self._work:
                while not buffer.waiting:
                    if buffer.closed:
                        return
                    self._work.wait()
                if not buffer.is_ready():
                    self._work.wait_for(buffer.is_ready, self._linger_s)
                batch = buffer.take()
            results: Sequence[R] = ()
            failure: BaseException | None = None
            try:
                results = self._driver.run((batch.plan or self._plan)(batch.records))
            except BaseException as error:  # noqa: BLE001  # the handles of these records raise it
                failure = error
            with self._work:
                buffer.settle(batch, results, failure)
                self._room.notify_all()


_FORKED = "a producer cannot be used in a forked child process; create a new one there"
_open_producers: WeakSet[Producer[Any]] = WeakSet()


@atexit.register
def _close_all() -> None:
    producers, wait_s = list(_open_producers), _EXIT_S
    for producer in producers:
        producer.send_rest()
    for producer in producers:
        if not producer.ended_within(wait_s):
            wait_s = 0.0


def _forget_all() -> None:
    for producer in list(_open_producers):
        producer.forget()
    _open_producers.clear()


os.register_at_fork(after_in_child=_forget_all)


def _log_lost(buffer: AppendBuffer[Any]) -> None:
    """Log the appends that are not written when their producer ends without `close`, and the errors of others."""
    for batch in buffer.failed:
        if not batch.shown:
            _log.error("%d appends of a producer that was not closed failed: %s", batch.count, named(batch.error))
    count = sum(len(batch.records) for batch in buffer.unsettled())
    if count:
        _log.error("%d appends of a producer that was not closed are lost or not confirmed", count)


class AsyncProducer(AsyncClosing, Generic[R]):
    """Gathers appends into batches and sends them from a task of the running event loop."""

    def __init__(
        self, driver: AsyncDriver, plan: MakePlan[R], linger_ms: float, max_batch: int, max_bytes: int
    ) -> None:
        self._driver = driver
        self._plan = plan
        self._linger_s = linger_ms / 1000
        self._buffer: AppendBuffer[R] = AppendBuffer(max_batch, max_bytes, asyncio.Event)
        self._work, self._room = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def _add(self, record: bytes) -> AsyncAppended[R]:
        await self._wait_for_room(len(record))
        batch, index = self._buffer.add(record)
        if index == 0 or self._buffer.is_ready():
            self._work.set()
        return AsyncAppended(batch, index)

    async def _add_alone(self, records: bytes, plan: MakePlan[R]) -> AsyncAppendedLines[R]:
        await self._wait_for_room(len(records))
        batch = self._buffer.add_alone(records, plan)
        self._work.set()
        return AsyncAppendedLines(batch, 0)

    async def _wait_for_room(self, size: int) -> None:
        buffer = self._buffer
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="driftq-producer")
            self._task.add_done_callback(self._ended)
        while not buffer.closed and not buffer.has_room(size):
            self._room.clear()
            await self._room.wait()
        if buffer.closed:
            raise ClosedError("the producer is closed")

    async def flush(self) -> None:
        """Wait until all appended records are written. Raise the first error that no handle has raised, with a note
        for each further one.
        """
        batches = self._buffer.flush()
        self._work.set()
        for batch in batches:
            await batch.settled.wait()
        self._buffer.raise_unshown()

    async def close(self) -> None:
        """Write all appended records, then stop. Raise the first error that no handle has raised, with a note for each
        further one.
        """
        await self._stop()
        self._buffer.raise_unshown()

    async def __aexit__(self, kind: Kind, error: BaseException | None, at: Any) -> None:
        await self._stop()
        if error is None:
            self._buffer.raise_unshown()

    async def _stop(self) -> None:
        self._buffer.closed = True
        self._work.set()
        self._room.set()
        if self._task is not None:
            await self._task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail the batches that a cancelled task leaves, so that no caller waits for them forever."""
        self._buffer.closed = True
        if task.cancelled():
            _log_lost(self._buffer)
        while self._buffer.waiting:
            self._buffer.settle(self._buffer.take(), (), ClosedError("the producer's task was cancelled"))
        self._room.set()

    async def _run(self) -> None:
        buffer = self._buffer
        while True:
            while not buffer.waiting:
                if buffer.closed:
                    return
                self._work.clear()
                await self._work.wait()
            await self._linger()
            batch = buffer.take()
            results: Sequence[R] = ()
            failure: BaseException | None = None
            try:
                results = await self._driver.run((batch.plan or self._plan)(batch.records))
            except BaseException as error:  # noqa: BLE001  # the handles of these records raise it
                failure = error
            buffer.settle(batch, results, failure)
            self._room.set()
            if isinstance(failure, asyncio.CancelledError):
                raise failure

    async def _linger(self) -> None:
        """Wait for more records until the first batch is ready, at most `linger_ms`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._linger_s
        while not self._buffer.is_ready() and loop.time() < until:
            self._work.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._work.wait()
            except TimeoutError:
                return
