"""Buffered producers: many appends become few requests.

An append encodes its record, adds it to the open batch and returns a handle. A sender (a thread, or a task) sends one
batch at a time, so the records of a producer keep their order; while one batch is on its way the next one fills.

    batch:    open → full or lingered → sent → settled: results, or an error
    producer: open → closing: everything that was appended is sent → closed

Invariants
- A batch is closed when it has `max_batch` records or 1 MiB, and at the latest `linger_ms` after its first record while
  nothing is on its way. A batch carries idempotency keys, so a retry never writes it twice.
- At most `max_bytes` wait or are on their way: an append that would exceed this waits for room. A single record that is
  larger than `max_bytes` waits until nothing else does.
- A batch that fails fails all its handles and no others. A failure that no handle has shown is raised by `flush` and
  `close`, so no failure is lost.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from driftq.client.closing import AsyncClosing, Closing, Kind
from driftq.client.drivers import AsyncDriver, Driver
from driftq.client.errors import ClosedError
from driftq.client.plan import Plan
from driftq.seam.threads import start_thread

R = TypeVar("R")

LINGER_MS = 2.0
BATCH_RECORDS = 500
BUFFER_BYTES = 16 << 20
_BATCH_BYTES = 1 << 20

MakePlan = Callable[[list[bytes]], Plan[Sequence[R]]]
"""From encoded records to the call that writes them; its answer has one result per record."""


class Batch(Generic[R]):
    """Records that are sent together, and what came of them."""

    __slots__ = ("error", "flushing", "records", "results", "settled", "shown", "size")

    def __init__(self, settled: Any) -> None:
        self.records: list[bytes] = []
        self.size = 0
        self.flushing = False
        """Whether it is to be sent without waiting for more."""
        self.results: Sequence[R] = ()
        self.error: BaseException | None = None
        self.shown = False
        """Whether a caller has got the error."""
        self.settled = settled
        """An event of `threading` or `asyncio`."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be added."""
        return self.size >= _BATCH_BYTES

    def outcome(self, index: int) -> R:
        """Return the result of one record, or raise why there is none."""
        if self.error is not None:
            self.shown = True
            raise self.error
        return self.results[index]


class _Handle(Generic[R]):
    """One append: its batch, and its place there."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch[R], index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Whether the server has answered, or the append has failed."""
        return bool(self._batch.settled.is_set())


class Appended(_Handle[R]):
    """The handle of one append."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result and return it: the seq of a record, or the place of a message.

        Raise the error of the write, and TimeoutError after `timeout` seconds.
        """
        if not self._batch.settled.wait(timeout):
            raise TimeoutError("the server has not answered yet")
        return self._batch.outcome(self._index)


class AsyncAppended(_Handle[R]):
    """The handle of one append: await it for the seq of a record, or the place of a message."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, R]:
        yield from self._batch.settled.wait().__await__()
        return self._batch.outcome(self._index)


class _Buffer(Generic[R]):
    """The batches of one producer that are not settled. It knows no locks and no clock."""

    def __init__(self, max_batch: int, max_bytes: int, event: Callable[[], Any]) -> None:
        if max_batch < 1 or max_bytes < 1:
            raise ValueError("max_batch and max_bytes are at least 1")
        self._max_batch = max_batch
        self._max_bytes = max_bytes
        self._event = event
        self.waiting: deque[Batch[R]] = deque()
        self.on_its_way: Batch[R] | None = None
        self.buffered = 0
        self.failed: list[Batch[R]] = []
        self.closed = False

    def has_room(self, size: int) -> bool:
        """Whether a record of this size may be added now."""
        return not self.buffered or self.buffered + size <= self._max_bytes

    def add(self, record: bytes) -> tuple[Batch[R], int]:
        """Add a record to the open batch; return the batch and the record's place in it."""
        waiting = self.waiting
        if not waiting or len(waiting[-1].records) >= self._max_batch or waiting[-1].is_full or waiting[-1].flushing:
            waiting.append(Batch(self._event()))
        batch = waiting[-1]
        batch.records.append(record)
        batch.size += len(record)
        self.buffered += len(record)
        return batch, len(batch.records) - 1

    def is_ready(self) -> bool:
        """Whether the first batch should be sent without waiting for more."""
        if not self.waiting:
            return False
        first = self.waiting[0]
        return (
            len(self.waiting) > 1
            or self.closed
            or first.flushing
            or first.is_full
            or len(first.records) >= self._max_batch
        )

    def take(self) -> Batch[R]:
        """Return the first batch, to be sent now."""
        self.on_its_way = self.waiting.popleft()
        return self.on_its_way

    def settle(self, batch: Batch[R], results: Sequence[R], error: BaseException | None) -> None:
        """Keep what came of a batch."""
        batch.results, batch.error = results, error
        self.on_its_way = None
        self.buffered -= batch.size
        batch.records = []
        if error is not None:
            self.failed.append(batch)
        batch.settled.set()

    def flush(self) -> list[Batch[R]]:
        """Let everything be sent without waiting for more; return the batches that are not settled."""
        for batch in self.waiting:
            batch.flushing = True
        return [*([self.on_its_way] if self.on_its_way is not None else []), *self.waiting]

    def raise_unshown(self) -> None:
        """Raise the first failure that no caller has got."""
        failed, self.failed = self.failed, []
        for batch in failed:
            if not batch.shown and batch.error is not None:
                batch.shown = True
                raise batch.error


class Producer(Closing, Generic[R]):
    """Gathers appends into batches and sends them from a thread. May be used by many threads."""

    def __init__(self, driver: Driver, plan: MakePlan[R], linger_ms: float, max_batch: int, max_bytes: int) -> None:
        self._driver = driver
        self._plan = plan
        self._linger_s = linger_ms / 1000
        self._buffer: _Buffer[R] = _Buffer(max_batch, max_bytes, threading.Event)
        lock = threading.Lock()
        self._work, self._room = threading.Condition(lock), threading.Condition(lock)
        self._process = os.getpid()
        self._thread = start_thread("driftq-producer", self._run)

    def _add(self, record: bytes) -> Appended[R]:
        if os.getpid() != self._process:
            raise RuntimeError("a producer does not work in a forked child; make one there")
        buffer = self._buffer
        with self._work:
            while not buffer.closed and not buffer.has_room(len(record)):
                self._room.wait()
            if buffer.closed:
                raise ClosedError("the producer is closed")
            batch, index = buffer.add(record)
            # The sender waits for the first record of a batch, and for its last.
            if index == 0 or buffer.is_ready():
                self._work.notify()
        return Appended(batch, index)

    def flush(self) -> None:
        """Wait until everything that was appended is written. Raise the first failure that no handle has shown."""
        with self._work:
            batches = self._buffer.flush()
            self._work.notify()
        for batch in batches:
            batch.settled.wait()
        self._buffer.raise_unshown()

    def close(self) -> None:
        """Write everything that was appended, then stop. Raise the first failure that no handle has shown."""
        self._stop()
        self._buffer.raise_unshown()

    def __exit__(self, kind: Kind, error: BaseException | None, at: Any) -> None:
        self._stop()
        if error is None:
            self._buffer.raise_unshown()

    def _stop(self) -> None:
        with self._work:
            self._buffer.closed = True
            self._work.notify()
            self._room.notify_all()
        self._thread.join()

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
                results = self._driver.run(self._plan(batch.records))
            except BaseException as error:  # noqa: BLE001  # it belongs to the callers whose records these are
                failure = error
            with self._work:
                buffer.settle(batch, results, failure)
                self._room.notify_all()


class AsyncProducer(AsyncClosing, Generic[R]):
    """Gathers appends into batches and sends them from a task of the running loop."""

    def __init__(
        self, driver: AsyncDriver, plan: MakePlan[R], linger_ms: float, max_batch: int, max_bytes: int
    ) -> None:
        self._driver = driver
        self._plan = plan
        self._linger_s = linger_ms / 1000
        self._buffer: _Buffer[R] = _Buffer(max_batch, max_bytes, asyncio.Event)
        self._work, self._room = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def _add(self, record: bytes) -> AsyncAppended[R]:
        buffer = self._buffer
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="driftq-producer")
            self._task.add_done_callback(self._ended)
        while not buffer.closed and not buffer.has_room(len(record)):
            self._room.clear()
            await self._room.wait()
        if buffer.closed:
            raise ClosedError("the producer is closed")
        batch, index = buffer.add(record)
        if index == 0 or buffer.is_ready():
            self._work.set()
        return AsyncAppended(batch, index)

    async def flush(self) -> None:
        """Wait until everything that was appended is written. Raise the first failure that no handle has shown."""
        batches = self._buffer.flush()
        self._work.set()
        for batch in batches:
            await batch.settled.wait()
        self._buffer.raise_unshown()

    async def close(self) -> None:
        """Write everything that was appended, then stop. Raise the first failure that no handle has shown."""
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

    def _ended(self, _: asyncio.Task[None]) -> None:
        """Fail what a task that was cancelled leaves, so that no caller waits for it without end."""
        self._buffer.closed = True
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
                results = await self._driver.run(self._plan(batch.records))
            except BaseException as error:  # noqa: BLE001  # it belongs to the callers whose records these are
                failure = error
            buffer.settle(batch, results, failure)
            self._room.set()
            if isinstance(failure, asyncio.CancelledError):
                raise failure

    async def _linger(self) -> None:
        """Wait for more records, until the first batch is ready or its time is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._linger_s
        while not self._buffer.is_ready() and loop.time() < until:
            self._work.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._work.wait()
            except TimeoutError:
                return
