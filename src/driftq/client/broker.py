"""The broker API (http-v1): topics with partitions, messages, groups, runs, dead letters, idempotency keys."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Literal

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from driftq.client.batch_calls import each
from driftq.client.errors import ApiError
from driftq.client.idempotency import AsyncIdempotency, Idempotency
from driftq.client.messages import Delivery, MessageStream, StoredMessage, stored_messages
from driftq.client.producer.batch_buffer import MakePlan
from driftq.client.producer.producers import AsyncMessageProducer, EncodeMessage, MessageProducer
from driftq.client.producer.send_buffer import BATCH_RECORDS, BUFFER_BYTES, LINGER_MS
from driftq.client.transport.calls import JSON, decoded, path_of, present
from driftq.client.transport.event_stream import kept_open
from driftq.client.transport.operations import Async, Blocking, Operations, flow, operation
from driftq.client.transport.plan import Flow, Plan, Request
from driftq.client.transport.retry import Repeat
from driftq.model.message import Envelope
from driftq.model.tombstone import Tombstone
from driftq.model.v1_answers import (
    BatchProduced,
    BatchResult,
    Build,
    EntryResults,
    Extended,
    ExtendResults,
    GroupLeft,
    GroupList,
    GroupMoved,
    GroupRow,
    MessageProduced,
    PartitionMoved,
    RedriveAsked,
    RedriveJob,
    RunSteps,
    TopicCreated,
    TopicNames,
)

_REASON_BYTES_MAX = 1024
_NO_ENVELOPE = Envelope()


class NewMessage(Struct, frozen=True, omit_defaults=True):
    """A message to be; a value that is no text is sent as JSON."""

    value: Any
    key: str = ""
    envelope: Envelope = Envelope()


class Nack(Struct, frozen=True):
    """A delivery that failed, for `nack_batch`; the fields are those of `nack`."""

    delivery: Delivery
    reason: str = ""
    delay_ms: int | None = None
    dead_letter: bool = False


class SeekTo(Struct, frozen=True, omit_defaults=True):
    """Where a group is to go on: at an offset, or at a time in Unix milliseconds."""

    offset: int | None = None
    timestamp: int | None = None


class RedriveFilter(Struct, frozen=True, omit_defaults=True):
    """Which dead letters; what is not said does not matter."""

    tenant_id: str | None = None
    reason_contains: str | None = None
    run_id: str | None = None
    before_ms: int | None = None
    after_ms: int | None = None


class BrokerOperations(Operations):
    """What can be done with the broker. `owner` is the client's own name unless given."""

    @operation
    def version(self) -> Plan[Build]:
        """What the server is."""
        return self._calls.json("GET", "/v1/version", Build)

    @operation
    def topics(self) -> Plan[list[str]]:
        """The topics of the broker, by name."""
        return (yield from self._calls.json("GET", "/v1/topics", TopicNames)).topics

    @operation
    def create_topic(self, name: str, partitions: int = 1) -> Plan[TopicCreated]:
        """Create a topic, unless it is there; the answer has the partitions it really has."""
        return self._calls.json("POST", "/v1/topics", TopicCreated, body={"name": name, "partitions": partitions})

    @operation
    def produce(
        self, topic: str, value: Any, *, key: str = "", envelope: Envelope = _NO_ENVELOPE, keyed: bool = True
    ) -> Plan[MessageProduced]:
        """Store a message; a value that is no text is sent as JSON.

        Without an idempotency key in the envelope one is made up, so that a retry never stores it twice. Groups keep
        keys too: for a while, a message whose key a group has acked is not delivered to it again, not even after a
        seek. With `keyed=False` none is made up, and a produce whose answer is lost is not repeated.
        """
        message = self._sent(NewMessage(value, key, envelope), keyed)
        body = {"topic": topic, "key": message.key, "value": message.value, "envelope": message.envelope}
        return self._calls.json("POST", "/v1/produce", MessageProduced, body=body, repeat=_repeat([message]))

    @operation
    def produce_batch(
        self, topic: str, messages: Iterable[NewMessage], *, atomic: bool = True, keyed: bool = True
    ) -> Plan[BatchProduced]:
        """Store up to 1000 messages in their order: all or none, or with `atomic=False` each for itself."""
        sent = [self._sent(message, keyed) for message in messages]
        body = {"topic": topic, "messages": sent, "atomic": atomic}
        return self._calls.json("POST", "/v1/produce/batch", BatchProduced, body=body, repeat=_repeat(sent))

    def _batch(self, topic: str) -> MakePlan[BatchResult]:
        """Return what a producer sends: messages that are encoded already, all or none."""

        def plan(messages: list[bytes]) -> Plan[Sequence[BatchResult]]:
            body = b'{"topic":' + encode(topic) + b',"atomic":true,"messages":[' + b",".join(messages) + b"]}"
            request = Request("POST", "/v1/produce/batch", headers=JSON, content=body)
            response = yield from self._calls.response(request, Repeat.SAME)
            return decoded(response, BatchProduced).results

        return plan

    def _encoder(self) -> EncodeMessage:
        """Return what encodes the messages of one producer, each with a key, so that a retry never stores it twice."""
        prefix, numbers = self._calls.random_key(), count(1)

        def encoded(value: Any, key: str, envelope: Envelope) -> bytes:
            text = value if isinstance(value, str) else encode(value).decode()
            if not envelope.idempotency_key:
                envelope = replace(envelope, idempotency_key=f"{prefix}.{next(numbers)}")
            return encode(NewMessage(text, key, envelope))

        return encoded

    def _sent(self, message: NewMessage, keyed: bool) -> NewMessage:
        """The message as it is sent: its value as text, and with a key if it may be sent twice."""
        value = message.value if isinstance(message.value, str) else encode(message.value).decode()
        key = message.envelope.idempotency_key or (self._calls.fresh_key() if keyed else None) or ""
        return replace(message, value=value, envelope=replace(message.envelope, idempotency_key=key))

    @flow
    def consume(
        self,
        topic: str,
        group: str,
        *,
        owner: str | None = None,
        lease_ms: int | None = None,
        max_in_flight: int | None = None,
    ) -> Flow[Delivery]:
        """The messages of a group as they come, without an end; settle each with `ack` or `nack`.

        A connection that breaks is made again. What was not settled when its lease ended comes again.
        """
        line = MessageStream(topic, group, owner or self._node, lease_ms=lease_ms, max_in_flight=max_in_flight)
        return kept_open(self._calls, line)

    @flow
    def messages_of(self, line: MessageStream) -> Flow[Delivery]:
        """The messages of a place in a group, until the server ends its stream after `line.leave` and `leave`."""
        return kept_open(self._calls, line)

    @operation
    def leave(self, topic: str, group: str, stream: str, *, owner: str | None = None) -> Plan[int]:
        """End the streams that this owner calls so, after what was delivered on them; return how many there were."""
        body = {"topic": topic, "group": group, "owner": owner or self._node, "stream": stream}
        return (yield from self._calls.json("POST", "/v1/leave", GroupLeft, body=body)).streams

    @operation
    def ack(self, delivery: Delivery) -> Plan[None]:
        """A message is done. Raises LeaseLostError when it is not this owner's any more; then it comes again."""
        return self._calls.json("POST", "/v1/ack", type(None), body=_place(delivery))

    @operation
    def nack(
        self, delivery: Delivery, reason: str = "", *, delay_ms: int | None = None, dead_letter: bool = False
    ) -> Plan[None]:
        """A message failed: it comes again as its retry policy says, or after `delay_ms`, or becomes a dead letter."""
        failed = _failed(Nack(delivery, reason, delay_ms, dead_letter))
        body = {**_place(delivery), **failed}
        return self._calls.json("POST", "/v1/nack", type(None), body=body, repeat=Repeat.AGAIN)

    @operation
    def extend(self, delivery: Delivery, *, lease_ms: int) -> Plan[Extended]:
        """A message takes longer: its lease ends `lease_ms` from here."""
        return self._calls.json("POST", "/v1/extend", Extended, body={**_place(delivery), "lease_ms": lease_ms})

    @operation
    def ack_batch(self, deliveries: Sequence[Delivery]) -> Plan[list[ApiError | None]]:
        """Ack up to 1000 messages that one owner holds, in one call; return None or the error of each, in order.

        Raise ValueError if they are not all of one topic, group and owner.
        """
        results = yield from each(
            self._calls, "/v1/ack/batch", _holder(deliveries), [_at(one) for one in deliveries], EntryResults
        )
        return [one if isinstance(one, ApiError) else None for one in results]

    @operation
    def nack_batch(self, failed: Sequence[Nack]) -> Plan[list[ApiError | None]]:
        """Nack up to 1000 messages, as `ack_batch` does."""
        holder = _holder([one.delivery for one in failed])
        entries = [{**_at(one.delivery), **present(_failed(one))} for one in failed]
        results = yield from each(self._calls, "/v1/nack/batch", holder, entries, EntryResults, repeat=Repeat.AGAIN)
        return [one if isinstance(one, ApiError) else None for one in results]

    @operation
    def extend_batch(self, deliveries: Sequence[Delivery], *, lease_ms: int) -> Plan[list[Extended | ApiError]]:
        """Give up to 1000 messages a lease that ends `lease_ms` from here, as `ack_batch` does."""
        holder = {**_holder(deliveries), "lease_ms": lease_ms}
        results = yield from each(
            self._calls, "/v1/extend/batch", holder, [_at(one) for one in deliveries], ExtendResults
        )
        return [one if isinstance(one, ApiError) else Extended(one.deadline_ms) for one in results]

    @operation
    def release_batch(self, deliveries: Sequence[Delivery]) -> Plan[list[ApiError | None]]:
        """Give back up to 1000 messages that were not worked on, as `ack_batch` does: this uses up no attempt.

        They are ready at once, for any stream. Close your own stream first, else they may come back on it.
        """
        entries = [_at(one) for one in deliveries]
        results = yield from each(
            self._calls, "/v1/release/batch", _holder(deliveries), entries, EntryResults, repeat=Repeat.AGAIN
        )
        return [one if isinstance(one, ApiError) else None for one in results]

    @operation
    def groups(self, topic: str | None = None, group: str | None = None) -> Plan[list[GroupRow]]:
        """How groups stand, in every partition."""
        query = {"topic": topic, "group": group}
        return (yield from self._calls.json("GET", "/v1/groups", GroupList, query=query)).groups

    @operation
    def seek(
        self,
        topic: str,
        group: str,
        to: Literal["earliest", "latest"] | SeekTo,
        *,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> Plan[list[PartitionMoved]]:
        """Put a group elsewhere; one with open streams only with `force`."""
        body = {"topic": topic, "group": group, "to": to, "partitions": partitions, "dry_run": dry_run, "force": force}
        return (yield from self._calls.json("POST", "/v1/groups/seek", GroupMoved, body=body)).moved

    @operation
    def runs(self, run_id: str, *, tenant_id: str | None = None) -> Plan[RunSteps]:
        """The steps of a run, in the order they were stored. Raises NotFoundError."""
        return self._calls.json("GET", path_of("v1", "runs", run_id), RunSteps, query={"tenant_id": tenant_id})

    @flow
    def messages(self, topic: str, from_offset: int = 0) -> Flow[StoredMessage | Tombstone]:
        """The messages of a topic as they are stored, whatever groups did with them, up to the newest."""
        return stored_messages(self._calls, topic, from_offset)

    @flow
    def dlq(self, topic: str, from_offset: int = 0) -> Flow[StoredMessage | Tombstone]:
        """The dead letters of a topic; why each is one stands in `envelope.dlq`."""
        return stored_messages(self._calls, f"dlq.{topic}", from_offset, may_be_absent=True)

    @operation
    def redrive(
        self,
        topic: str,
        *,
        filter: RedriveFilter | None = None,  # noqa: A002  # the contract's word
        offsets: Sequence[int] | None = None,
        group: str | None = None,
        limit: int | None = None,
        rate_per_s: float | None = None,
        dry_run: bool = False,
    ) -> Plan[RedriveAsked]:
        """Move dead letters back to their topic, or say how many there are to move."""
        body: dict[str, Any] = {"topic": topic, "filter": filter, "offsets": offsets, "group": group, "limit": limit}
        body |= {"rate_per_s": rate_per_s, "dry_run": dry_run}
        return self._calls.json("POST", "/v1/dlq/redrive", RedriveAsked, body=body, repeat=Repeat.AGAIN)

    @operation
    def redrive_job(self, job_id: str) -> Plan[RedriveJob]:
        """How a redrive stands. Raises NotFoundError."""
        return self._calls.json("GET", path_of("v1", "dlq", "redrive", job_id), RedriveJob)

    @operation
    def cancel_redrive(self, job_id: str) -> Plan[RedriveJob]:
        """Move no more dead letters."""
        return self._calls.json("DELETE", path_of("v1", "dlq", "redrive", job_id), RedriveJob)


class Broker(BrokerOperations, Blocking):
    """The broker, for callers that block."""

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = LINGER_MS,
        max_batch: int = BATCH_RECORDS,
        max_bytes: int = BUFFER_BYTES,
    ) -> MessageProducer:
        """Return a producer that gathers messages into calls of up to `max_batch` of them
        (`client/producer/send_buffer`)."""
        batch, encoded = self._batch(topic), self._encoder()
        return MessageProducer(self._driver, batch, encoded, linger_ms, max_batch, max_bytes)

    @property
    def idempotency(self) -> Idempotency:
        """The keys of work."""
        return Idempotency(self._calls, self._driver)


class AsyncBroker(BrokerOperations, Async):
    """The broker, for callers that await."""

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = LINGER_MS,
        max_batch: int = BATCH_RECORDS,
        max_bytes: int = BUFFER_BYTES,
    ) -> AsyncMessageProducer:
        """Return a producer that gathers messages into calls of up to `max_batch` of them
        (`client/producer/send_buffer`)."""
        batch, encoded = self._batch(topic), self._encoder()
        return AsyncMessageProducer(self._driver, batch, encoded, linger_ms, max_batch, max_bytes)

    @property
    def idempotency(self) -> AsyncIdempotency:
        """The keys of work."""
        return AsyncIdempotency(self._calls, self._driver)


def _repeat(messages: Iterable[NewMessage]) -> Repeat:
    return Repeat.SAME if all(message.envelope.idempotency_key for message in messages) else Repeat.AGAIN


def _place(delivery: Delivery) -> dict[str, Any]:
    return {name: getattr(delivery, name) for name in ("topic", "group", "owner", "partition", "offset")}


def _holder(deliveries: Sequence[Delivery]) -> dict[str, Any]:
    """Return what the deliveries of a batch share."""
    holders = {(one.topic, one.group, one.owner) for one in deliveries}
    if len(holders) > 1:
        raise ValueError("the deliveries of a batch are of one topic, group and owner")
    return dict(zip(("topic", "group", "owner"), *holders, strict=True)) if holders else {}


def _at(delivery: Delivery) -> dict[str, Any]:
    return {"partition": delivery.partition, "offset": delivery.offset}


def _failed(nack: Nack) -> dict[str, Any]:
    cut = nack.reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
    return {"reason": cut or None, "delay_ms": nack.delay_ms, "dead_letter": nack.dead_letter or None}
