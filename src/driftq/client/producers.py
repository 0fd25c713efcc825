"""Producers of records and of messages, for callers that block and for those that await."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.json import encode

from driftq.client.drivers import AsyncDriver, Driver
from driftq.client.producer import Appended, AsyncAppended, AsyncProducer, MakePlan, Producer
from driftq.client.records import NewRecord
from driftq.model.broker_answers import BatchResult
from driftq.model.envelope import Envelope

_NO_ENVELOPE = Envelope()

EncodeMessage = Callable[[Any, str, Envelope], bytes]
"""From value, key and envelope to a message as it is sent, with an idempotency key."""


class TopicProducer(Producer[int]):
    """Appends records to one topic. The result of a handle is the seq of its record."""

    def append(
        self, data: Any, *, tag: str | None = None, node: str | None = None, meta: Mapping[str, str] | None = None
    ) -> Appended[int]:
        """Add a record; wait only if `max_bytes` are waiting already. Raise ClosedError after `close`."""
        return self._add(encode(NewRecord(data, tag, node, meta)))


class AsyncTopicProducer(AsyncProducer[int]):
    """Appends records to one topic. The result of a handle is the seq of its record."""

    async def append(
        self, data: Any, *, tag: str | None = None, node: str | None = None, meta: Mapping[str, str] | None = None
    ) -> AsyncAppended[int]:
        """Add a record; wait only if `max_bytes` are waiting already. Raise ClosedError after `close`."""
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
        """Add a message; wait only if `max_bytes` are waiting already. Raise ClosedError after `close`."""
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
        """Add a message; wait only if `max_bytes` are waiting already. Raise ClosedError after `close`."""
        return await self._add(self._encoded(value, key, envelope))
