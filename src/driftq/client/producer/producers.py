"""Producers of records and of messages, each in a blocking and an asyncio form."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.json import encode

from driftq.client.producer.batch_buffer import Appended, AppendedLines, AsyncAppended, AsyncAppendedLines, MakePlan
from driftq.client.producer.send_buffer import AsyncProducer, Producer
from driftq.client.transport.drivers import AsyncDriver, Driver
from driftq.client.transport.new_records import JsonLinesReader, NewRecord
from driftq.client.transport.plan import Plan
from driftq.model.message import Envelope
from driftq.model.v1_answers import BatchResult

_NO_ENVELOPE = Envelope()

EncodeMessage = Callable[[Any, str, Envelope], bytes]
"""Encodes a message from its value, key and envelope, and adds an idempotency key."""


class WriteRecords(Protocol):
    """Makes the plan that writes encoded records to a topic; its answer is their seqs."""

    def __call__(
        self, records: list[bytes], *, node: str | None = None, create: bool | None = None
    ) -> Plan[Sequence[int]]:
        """Return the plan that writes these records."""
        ...


class TopicProducer(Producer[int]):
    """Appends records to one topic. The result of a handle is the seq of its record."""

    def __init__(self, driver: Driver, write: WriteRecords, linger_ms: float, max_batch: int, max_bytes: int) -> None:
        super().__init__(driver, write, linger_ms, max_batch, max_bytes)
        self._write = write

    def append_lines(
        self,
        lines: bytes | JsonLinesReader,
        *,
        tag: str | None = None,
        node: str | None = None,
        create: bool | None = None,
    ) -> AppendedLines[int]:
        """Add a record for each line of JSON, in one write, all or none; wait for room as `append` does.

        The lines are checked but not decoded. `tag` is ignored for a `JsonLinesReader`, which has its own. Raise
        ValueError with the number of a line that is not JSON, and ClosedError after `close`.
        """
        checked = JsonLinesReader(lines, tag=tag) if isinstance(lines, bytes) else lines
        return self._add_alone(checked.records, partial(self._write, node=node, create=create))

    def append(
        self, data: Any, *, tag: str | None = None, node: str | None = None, meta: Mapping[str, str] | None = None
    ) -> Appended[int]:
        """Add a record; wait only while `max_bytes` are buffered. Raise ClosedError after `close`."""
        return self._add(encode(NewRecord(data, tag, node, meta)))


class AsyncTopicProducer(AsyncProducer[int]):
    """Appends records to one topic. The result of a handle is the seq of its record."""

    def __init__(
        self, driver: AsyncDriver, write: WriteRecords, linger_ms: float, max_batch: int, max_bytes: int
    ) -> None:
        super().__init__(driver, write, linger_ms, max_batch, max_bytes)
        self._write = write

    async def append_lines(
        self,
        lines: bytes | JsonLinesReader,
        *,
        tag: str | None = None,
        node: str | None = None,
        create: bool | None = None,
    ) -> AsyncAppendedLines[int]:
        """Add a record for each line of JSON, in one write, all or none, like `TopicProducer.append_lines`."""
        checked = JsonLinesReader(lines, tag=tag) if isinstance(lines, bytes) else lines
        return await self._add_alone(checked.records, partial(self._write, node=node, create=create))

    async def append(
        self, data: Any, *, tag: str | None = None, node: str | None = None, meta: Mapping[str, str] | None = None
    ) -> AsyncAppended[int]:
        """Add a record; wait only while `max_bytes` are buffered. Raise ClosedError after `close`."""
        return await self._add(encode(NewRecord(data, tag, node, meta)))


class MessageProducer(Producer[BatchResult]):
    """Produces messages to one topic of the broker. The result of a handle is the message's partition and offset."""

    def __init__(
        self,
        driver: Driver,
        plan: MakePlan[BatchResult],
        encoded: EncodeMessage,
        linger_ms: float,
        max_batch: int,
        max_bytes: int,
    ) -> None:
        super().__init__(driver, plan, linger_ms, max_batch, max_bytes)
        self._encoded = encoded

    def produce(self, value: Any, *, key: str = "", envelope: Envelope = _NO_ENVELOPE) -> Appended[BatchResult]:
        """Add a message; wait only while `max_bytes` are buffered. Raise ClosedError after `close`."""
        return self._add(self._encoded(value, key, envelope))


class AsyncMessageProducer(AsyncProducer[BatchResult]):
    """Produces messages to one topic of the broker. The result of a handle is the message's partition and offset."""

    def __init__(
        self,
        driver: AsyncDriver,
        plan: MakePlan[BatchResult],
        encoded: EncodeMessage,
        linger_ms: float,
        max_batch: int,
        max_bytes: int,
    ) -> None:
        super().__init__(driver, plan, linger_ms, max_batch, max_bytes)
        self._encoded = encoded

    async def produce(
        self, value: Any, *, key: str = "", envelope: Envelope = _NO_ENVELOPE
    ) -> AsyncAppended[BatchResult]:
        """Add a message; wait only while `max_bytes` are buffered. Raise ClosedError after `close`."""
        return await self._add(self._encoded(value, key, envelope))
