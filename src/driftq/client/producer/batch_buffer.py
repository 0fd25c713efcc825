"""The batches of a producer (`client/producer/send_buffer`), and the handles through which callers get results.

batch: open → full, flushed, or `linger_ms` old → being sent → settled: results, or an error
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar

from driftq.client.transport.plan import Plan

R = TypeVar("R")

_BATCH_BYTES = 1 << 20
_NOTES_MAX = 10
"""How many further errors an error names."""

MakePlan = Callable[[list[bytes]], Plan[Sequence[R]]]
"""Makes the plan that writes encoded records; its answer has one result per record."""


class Batch(Generic[R]):
    """Records that are sent together, and their results."""

    __slots__ = ("count", "error", "flushing", "plan", "records", "results", "settled", "shown", "size")

    def __init__(self, settled: Any) -> None:
        self.plan: MakePlan[R] | None = None
        """Makes the call for this batch, if it is not the usual one of the producer."""
        self.records: list[bytes] = []
        self.size = 0
        self.count = 0
        """The number of appends in the batch, once it is settled."""
        self.flushing = False
        """Whether the batch is sent without waiting for more records."""
        self.results: Sequence[R] = ()
        self.error: BaseException | None = None
        self.shown = False
        """Whether the error was raised to a caller."""
        self.settled = settled
        """An event of `threading` or `asyncio`, set when the results are there."""

    @property
    def is_full(self) -> bool:
        """Whether the batch has reached its size and takes no more records."""
        return self.size >= _BATCH_BYTES

    def outcome(self) -> Sequence[R]:
        """Return the results, or raise the error of the request."""
        if self.error is not None:
            self.shown = True
            raise self.error
        return self.results


def named(error: BaseException | None) -> str:
    """Return the type and the text of an error."""
    return f"{type(error).__name__}: {error}"


class _Handle(Generic[R]):
    """The batch of one append, and its index in the batch."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch[R], index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Whether the server has answered, or the append has failed."""
        return bool(self._batch.settled.is_set())


class Appended(_Handle[R]):
    """The handle of one append; `result` waits for the answer of the server."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result and return it: the seq of a record, or the partition and offset of a message.

        Raise the error of the write, and TimeoutError after `timeout` seconds.
        """
        if not self._batch.settled.wait(timeout):
            raise TimeoutError("the server has not answered yet")
        return self._batch.outcome()[self._index]


class AsyncAppended(_Handle[R]):
    """The handle of one append: await it for the seq of a record, or the partition and offset of a message."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, R]:
        yield from self._batch.settled.wait().__await__()
        return self._batch.outcome()[self._index]


class AppendedLines(_Handle[R]):
    """The handle of lines that were appended together; `result` waits for the answer of the server."""

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
    """The batches of one producer that are not settled. It uses no locks and no clock; the producer does."""

    def __init__(self, max_batch: int, max_bytes: int, event: Callable[[], Any]) -> None:
        if max_batch < 1 or max_bytes < 1:
            raise ValueError("max_batch and max_bytes must be at least 1")
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
        """Add a record to the open batch; return the batch and the index of the record in it."""
        waiting = self.waiting
        if not waiting or len(waiting[-1].records) >= self._max_batch or waiting[-1].is_full or waiting[-1].flushing:
            waiting.append(Batch(self._event()))
        batch = waiting[-1]
        batch.records.append(record)
        batch.size += len(record)
        self.buffered += len(record)
        return batch, len(batch.records) - 1

    def add_alone(self, records: bytes, plan: MakePlan[R]) -> Batch[R]:
        """Add records that are already joined, as their own batch."""
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
        """Store the results or the error of a batch, and wake its callers."""
        batch.results, batch.error = results, error
        self.on_its_way = None
        self.buffered -= batch.size
        batch.count = len(batch.records)
        batch.records = []
        if error is not None:
            self.failed.append(batch)
        batch.settled.set()

    def flush(self) -> list[Batch[R]]:
        """Mark all batches to be sent without waiting for more; return those that are not settled."""
        for batch in self.waiting:
            batch.flushing = True
        return self.unsettled()

    def unsettled(self) -> list[Batch[R]]:
        """Return the batches whose records are not known to be written, in order."""
        return [*([self.on_its_way] if self.on_its_way is not None else []), *self.waiting]

    def unshown(self) -> list[BaseException]:
        """Return the errors of batches that were not raised to any caller; from now on they count as raised."""
        failed, self.failed = self.failed, []
        errors = [batch.error for batch in failed if batch.error is not None and not batch.shown]
        for batch in failed:
            batch.shown = True
        return errors

    def raise_unshown(self) -> None:
        """Raise the first error that was not raised to any caller, with a note for each of the others."""
        errors = self.unshown()
        if not errors:
            return
        first, *others = errors
        for error in others[:_NOTES_MAX]:
            first.add_note(f"another batch of this producer failed too: {named(error)}")
        if len(others) > _NOTES_MAX:
            first.add_note(f"{len(others) - _NOTES_MAX} more batches of this producer failed")
        raise first
