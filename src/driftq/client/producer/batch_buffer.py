"""Batches of a producer (`client/producer/send_buffer`): what gathers in them, and the handles by which callers get the
results.

batch: open → full, flushed or lingered → on its way → settled: results, or an error
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from driftq.client.transport.plan import Plan

R = TypeVar("R")

_BATCH_BYTES = 1 << 20

MakePlan = Callable[[list[bytes]], Plan[Sequence[R]]]
"""From encoded records to the call that writes them; its answer has one result per record."""


class Batch(Generic[R]):
    """Records that are sent together, and what came of them."""

    __slots__ = ("error", "flushing", "plan", "records", "results", "settled", "shown", "size")

    def __init__(self, settled: Any) -> None:
        self.plan: MakePlan[R] | None = None
        """The call that writes it, if it is not the producer's."""
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

    def outcome(self) -> Sequence[R]:
        """Return the results, or raise the error of the request that should have brought them."""
        if self.error is not None:
            self.shown = True
            raise self.error
        return self.results


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
        return self._batch.outcome()[self._index]


class AsyncAppended(_Handle[R]):
    """The handle of one append: await it for the seq of a record, or the place of a message."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, R]:
        yield from self._batch.settled.wait().__await__()
        return self._batch.outcome()[self._index]


class AppendedLines(_Handle[R]):
    """The handle of lines that were appended together."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Sequence[R]:
        """Wait for the results and return them, one per line: the seqs of the records.

        Raise the error of the write, and TimeoutError after `timeout` seconds.
        """
        if not self._batch.settled.wait(timeout):
            raise TimeoutError("the server has not answered yet")
        return self._batch.outcome()


class AsyncAppendedLines(_Handle[R]):
    """The handle of lines that were appended together: await it for the seqs of the records."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Sequence[R]]:
        yield from self._batch.settled.wait().__await__()
        return self._batch.outcome()


class AppendBuffer(Generic[R]):
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

    def add_alone(self, records: bytes, plan: MakePlan[R]) -> Batch[R]:
        """Add records that are joined already as a batch of their own."""
        if self.waiting:
            self.waiting[-1].flushing = True
        batch: Batch[R] = Batch(self._event())
        batch.plan, batch.records, batch.size, batch.flushing = plan, [records], len(records), True
        self.buffered += batch.size
        self.waiting.append(batch)
        return batch

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
