"""Calls of the broker API (http-v1): topics with partitions, messages, groups, runs, dead letters, keys."""

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
    """A message to produce; a value that is not a `str` is sent as JSON."""

    value: Any
    key: str = ""
    envelope: Envelope = Envelope()


class Nack(Struct, frozen=True):
    """A failed delivery for `nack_batch`; the fields mean the same as the parameters of `nack`."""

    delivery: Delivery
    reason: str = ""
    delay_ms: int | None = None
    dead_letter: bool = False


class SeekTo(Struct, frozen=True, omit_defaults=True):
    """The new position of a group: an offset, or a time in Unix milliseconds."""

    offset: int | None = None
    timestamp: int | None = None


class RedriveFilter(Struct, frozen=True, omit_defaults=True):
    """Selects dead letters: all given fields must match."""

    tenant_id: str | None = None
    reason_contains: str | None = None
    run_id: str | None = None
    before_ms: int | None = None
    after_ms: int | None = None


class BrokerOperations(Operations):
    """All calls of the broker API. `owner` defaults to the name of the client."""

    @operation
    def version(self) -> Plan[Build]:
        """Return the version and the build of the server."""
        return self._calls.json("GET", "/v1/version", Build)

    @operation
    def topics(self) -> Plan[list[str]]:
        """Return the names of the broker's topics, sorted."""
        return (yield from self._calls.json("GET", "/v1/topics", TopicNames)).topics

    @operation
    def create_topic(self, name: str, partitions: int = 1) -> Plan[TopicCreated]:
        """Create a topic if it does not exist. The answer has its actual number of partitions."""
        return self._calls.json("POST", "/v1/topics", TopicCreated, body={"name": name, "partitions": partitions})

    @operation
    def produce(
        self, topic: str, value: Any, *, key: str = "", envelope: Envelope = _NO_ENVELOPE, keyed: bool = True
    ) -> Plan[MessageProduced]:
        """Store a message; a value that is not a `str` is sent as JSON.

        If the envelope has no idempotency key, the client generates one, so a retry never stores the message twice.
        Groups remember keys too: for 10 minutes by default, a group does not get a message again whose key it has
        acked, not even after a seek. With `keyed=False` the client generates no key, and does not retry a produce whose
        answer is lost.
        """
        message = self._sent(NewMessage(value, key, envelope), keyed)
        body = {"topic": topic, "key": message.key, "value": message.value, "envelope": message.envelope}
        return self._calls.json("POST", "/v1/produce", MessageProduced, body=body, repeat=_repeat([message]))

    @operation
    def produce_batch(
        self, topic: str, messages: Iterable[NewMessage], *, atomic: bool = True, keyed: bool = True
    ) -> Plan[BatchProduced]:
        """Store up to 1000 messages in order: all or none, or with `atomic=False` each independently."""
        sent = [self._sent(message, keyed) for message in messages]
        body = {"topic": topic, "messages": sent, "atomic": atomic}
        return self._calls.json("POST", "/v1/produce/batch", BatchProduced, body=body, repeat=_repeat(sent))

    def _batch(self, topic: str) -> MakePlan[BatchResult]:
        """Return the function that makes the call for one batch of a producer: encoded messages, all or none."""

        def plan(messages: list[bytes]) -> Plan[Sequence[BatchResult]]:
            body = b'{"topic":' + encode(topic) + b',"atomic":true,"messages":[' + b",".join(messages) + b"]}"
            request = Request("POST", "/v1/produce/batch", headers=JSON, content=body)
            response = yield from self._calls.response(request, Repeat.SAME)
            return decoded(response, BatchProduced).results

        return plan

    def _encoder(self) -> EncodeMessage:
        """Return the encoder of one producer. It adds a key to each message, so a retry never stores it twice."""
        prefix, numbers = self._calls.random_key(), count(1)

        def encoded(value: Any, key: str, envelope: Envelope) -> bytes:
            text = value if isinstance(value, str) else encode(value).decode()
            if not envelope.idempotency_key:
                envelope = replace(envelope, idempotency_key=f"{prefix}.{next(numbers)}")
            return encode(NewMessage(text, key, envelope))

        return encoded

    def _sent(self, message: NewMessage, keyed: bool) -> NewMessage:
        """Return the message as it is sent: with its value as text, and with a key if `keyed`."""
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
        """Yield the messages of a group as they arrive, without an end; settle each with `ack` or `nack`.

        If the connection breaks, the client reconnects. A message that is not settled when its lease ends is delivered
        again.
        """
        line = MessageStream(topic, group, owner or self._node, lease_ms=lease_ms, max_in_flight=max_in_flight)
        return kept_open(self._calls, line)

    @flow
    def messages_of(self, line: MessageStream) -> Flow[Delivery]:
        """Yield the messages of `line`, until the server ends the stream after calls of `line.leave` and `leave`."""
        return kept_open(self._calls, line)

    @operation
    def leave(self, topic: str, group: str, stream: str, *, owner: str | None = None) -> Plan[int]:
        """End the streams of this owner with the name `stream`; return how many there were.

        The server sends everything that it has delivered on them before their end.
        """
        body = {"topic": topic, "group": group, "owner": owner or self._node, "stream": stream}
        return (yield from self._calls.json("POST", "/v1/leave", GroupLeft, body=body)).streams

    @operation
    def ack(self, delivery: Delivery) -> Plan[None]:
        """Mark a message as done. Raise LeaseLostError if this owner no longer holds it; then it is delivered again."""
        return self._calls.json("POST", "/v1/ack", type(None), body=_place(delivery))

    @operation
    def nack(
        self, delivery: Delivery, reason: str = "", *, delay_ms: int | None = None, dead_letter: bool = False
    ) -> Plan[None]:
        """Report that a message failed. It is delivered again by its retry policy, or after `delay_ms`, or, with
        `dead_letter`, becomes a dead letter.
        """
        failed = _failed(Nack(delivery, reason, delay_ms, dead_letter))
        body = {**_place(delivery), **failed}
        return self._calls.json("POST", "/v1/nack", type(None), body=body, repeat=Repeat.AGAIN)

    @operation
    def extend(self, delivery: Delivery, *, lease_ms: int) -> Plan[Extended]:
        """Extend the lease of a message: it ends `lease_ms` milliseconds from now."""
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
        """Nack up to 1000 messages in one call, with results and errors as in `ack_batch`."""
        holder = _holder([one.delivery for one in failed])
        entries = [{**_at(one.delivery), **present(_failed(one))} for one in failed]
        results = yield from each(self._calls, "/v1/nack/batch", holder, entries, EntryResults, repeat=Repeat.AGAIN)
        return [one if isinstance(one, ApiError) else None for one in results]

    @operation
    def extend_batch(self, deliveries: Sequence[Delivery], *, lease_ms: int) -> Plan[list[Extended | ApiError]]:
        """Extend the leases of up to 1000 messages to `lease_ms` milliseconds from now; errors as in `ack_batch`."""
        holder = {**_holder(deliveries), "lease_ms": lease_ms}
        results = yield from each(
            self._calls, "/v1/extend/batch", holder, [_at(one) for one in deliveries], ExtendResults
        )
        return [one if isinstance(one, ApiError) else Extended(one.deadline_ms) for one in results]

    @operation
    def release_batch(self, deliveries: Sequence[Delivery]) -> Plan[list[ApiError | None]]:
        """Give back up to 1000 messages that were not worked on, with results and errors as in `ack_batch`.

        This does not count as an attempt. The messages are available at once, to every stream of the group. Close your
        own stream first, or they may be delivered on it again.
        """
        entries = [_at(one) for one in deliveries]
        results = yield from each(
            self._calls, "/v1/release/batch", _holder(deliveries), entries, EntryResults, repeat=Repeat.AGAIN
        )
        return [one if isinstance(one, ApiError) else None for one in results]

    @operation
    def groups(self, topic: str | None = None, group: str | None = None) -> Plan[list[GroupRow]]:
        """Return the groups, with the position and lag of each in every partition."""
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
        """Move the position of a group. A group with open streams is moved only with `force`."""
        body = {"topic": topic, "group": group, "to": to, "partitions": partitions, "dry_run": dry_run, "force": force}
        return (yield from self._calls.json("POST", "/v1/groups/seek", GroupMoved, body=body)).moved

    @operation
    def runs(self, run_id: str, *, tenant_id: str | None = None) -> Plan[RunSteps]:
        """Return the steps of a run, in the order in which they were stored. Raise NotFoundError if there are none."""
        return self._calls.json("GET", path_of("v1", "runs", run_id), RunSteps, query={"tenant_id": tenant_id})

    @flow
    def messages(self, topic: str, from_offset: int = 0) -> Flow[StoredMessage | Tombstone]:
        """Yield the stored messages of a topic, up to the newest, independent of all groups."""
        return stored_messages(self._calls, topic, from_offset)

    @flow
    def dlq(self, topic: str, from_offset: int = 0) -> Flow[StoredMessage | Tombstone]:
        """Yield the dead letters of a topic; `envelope.dlq` has the reason of each."""
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
        """Start a job that moves dead letters back to their topic; with `dry_run`, only count them."""
        body: dict[str, Any] = {"topic": topic, "filter": filter, "offsets": offsets, "group": group, "limit": limit}
        body |= {"rate_per_s": rate_per_s, "dry_run": dry_run}
        return self._calls.json("POST", "/v1/dlq/redrive", RedriveAsked, body=body, repeat=Repeat.AGAIN)

    @operation
    def redrive_job(self, job_id: str) -> Plan[RedriveJob]:
        """Return the progress of a redrive. Raise NotFoundError if it does not exist."""
        return self._calls.json("GET", path_of("v1", "dlq", "redrive", job_id), RedriveJob)

    @operation
    def cancel_redrive(self, job_id: str) -> Plan[RedriveJob]:
        """Stop a redrive; dead letters that it has moved stay moved."""
        return self._calls.json("DELETE", path_of("v1", "dlq", "redrive", job_id), RedriveJob)


class Broker(BrokerOperations, Blocking):
    """The broker API with blocking calls."""

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = LINGER_MS,
        max_batch: int = BATCH_RECORDS,
        max_bytes: int = BUFFER_BYTES,
    ) -> MessageProducer:
        """Return a producer that sends up to `max_batch` messages in one call (`client/producer/send_buffer`)."""
        batch, encoded = self._batch(topic), self._encoder()
        return MessageProducer(self._driver, batch, encoded, linger_ms, max_batch, max_bytes)

    @property
    def idempotency(self) -> Idempotency:
        """Return a handle for the idempotency keys of this broker."""
        return Idempotency(self._calls, self._driver)


class AsyncBroker(BrokerOperations, Async):
    """The broker API with calls to await."""

    def producer(
        self,
        topic: str,
        *,
        linger_ms: float = LINGER_MS,
        max_batch: int = BATCH_RECORDS,
        max_bytes: int = BUFFER_BYTES,
    ) -> AsyncMessageProducer:
        """Return a producer that sends up to `max_batch` messages in one call (`client/producer/send_buffer`)."""
        batch, encoded = self._batch(topic), self._encoder()
        return AsyncMessageProducer(self._driver, batch, encoded, linger_ms, max_batch, max_bytes)

    @property
    def idempotency(self) -> AsyncIdempotency:
        """Return a handle for the idempotency keys of this broker."""
        return AsyncIdempotency(self._calls, self._driver)


def _repeat(messages: Iterable[NewMessage]) -> Repeat:
    return Repeat.SAME if all(message.envelope.idempotency_key for message in messages) else Repeat.AGAIN


def _place(delivery: Delivery) -> dict[str, Any]:
    return {name: getattr(delivery, name) for name in ("topic", "group", "owner", "partition", "offset")}


def _holder(deliveries: Sequence[Delivery]) -> dict[str, Any]:
    """Return the topic, group and owner of a batch. Raise ValueError if the deliveries have several."""
    holders = {(one.topic, one.group, one.owner) for one in deliveries}
    if len(holders) > 1:
        raise ValueError("the deliveries of a batch must be of one topic, group and owner")
    return dict(zip(("topic", "group", "owner"), *holders, strict=True)) if holders else {}


def _at(delivery: Delivery) -> dict[str, Any]:
    return {"partition": delivery.partition, "offset": delivery.offset}


def _failed(nack: Nack) -> dict[str, Any]:
    cut = nack.reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")
    return {"reason": cut or None, "delay_ms": nack.delay_ms, "dead_letter": nack.dead_letter or None}
