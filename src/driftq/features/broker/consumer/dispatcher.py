"""Delivers messages to streams (http-v1 §6): in order per partition, to the streams of a group in turns.

A group is served in a later turn of the event loop, after it has changed. Partitions take turns. In each partition,
messages to deliver again go first, then fresh messages, as long as the number of open messages is below the limit. A
message goes to the next stream that accepts one. If no stream does, nothing is read for the group until a stream asks.
The messages for a stream in one turn are sent together. The newest ones are in memory; a backlog is read in pieces.

A message whose key is held by another owner waits, and so do later messages of its partition. A message whose key is
committed is done without a delivery.
"""

from msgspec import structs

from driftq.engine.block_fetch import Fetch
from driftq.engine.engine import Engine
from driftq.errors import DriftQError
from driftq.features.broker.consumer.deadlines import Deadlines, OpenMessage
from driftq.features.broker.consumer.message_settlement import MessageSettler
from driftq.features.broker.protocols import BrokerCounters, KeyOwner, OutgoingMessage, Registry
from driftq.features.broker.state.broker_state import BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup, ConsumerStream
from driftq.features.broker.state.group_partition import GroupPartition, OpenDelivery, State
from driftq.features.broker.state.message_cache import MessageCache
from driftq.features.broker.state.stored_messages import Read, read_messages
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Message
from driftq.system.runtime import each

_AHEAD = 64
"""How many messages of a backlog are read at a time."""


class Dispatcher:
    """Delivers the messages of all groups."""

    def __init__(
        self,
        engine: Engine,
        settings: BrokerSettings,
        deadlines: Deadlines,
        settler: MessageSettler,
        registry: Registry,
        counters: BrokerCounters,
        message_cache: MessageCache,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._deadlines = deadlines
        self._settler = settler
        self._registry = registry
        self._counters = counters
        self._message_cache = message_cache

    def serve(self, topic: BrokerTopic, group: ConsumerGroup) -> None:
        """Deliver all messages of a group that can be delivered now."""
        try:
            self._serve(topic, group)
        finally:
            each(group.streams, ConsumerStream.hand_over)

    def _serve(self, topic: BrokerTopic, group: ConsumerGroup) -> None:
        now = self._deadlines.now()
        while group.round and (stream := group.next_stream()) is not None:
            partition = next(iter(group.round))
            del group.round[partition]
            open_message = OpenMessage(topic, group, group.group_partition(partition))
            try:
                more = self._serve_partition(open_message, stream, now)
                while more and not group.round and (stream := group.next_stream()) is not None:
                    more = self._serve_partition(open_message, stream, now)
            except Exception:
                self._deadlines.stir_later(topic, group, partition)
                raise
            if more:
                group.round[partition] = None

    def _serve_partition(self, open_message: OpenMessage, stream: ConsumerStream, now: int) -> bool:
        """Deliver one message of a partition to a stream. Return whether there may be more."""
        topic, group, group_partition = open_message
        if group_partition.fetching or group_partition.moving is not None:
            return False
        entry = group_partition.next_ready()
        if entry is None:
            if len(group_partition.open) >= self._settings.in_flight_max:
                return False
            offset = group_partition.next_fresh()
            if offset is None:
                return False
            entry = OpenDelivery(offset)
        try:
            found = self._message_cache.get(topic.id, entry.offset) or self._read(topic, group_partition, entry.offset)
        except DriftQError:
            self._deadlines.stir_later(topic, group, group_partition.partition)
            return False
        if isinstance(found, Fetch):
            self._wait_for(found, open_message)
            return False
        if found is None:
            self._pass_over(group_partition, entry)
            return True
        entry.stored_ts = found.ts
        return self._offer(open_message, entry, found.message, stream, now)

    def _read(self, topic: BrokerTopic, group_partition: GroupPartition, offset: int) -> Read | Fetch | None:
        """Read a message, and cache the next ones of its partition in the same block. Raise DriftQError."""
        block = next(topic.log.parts(offset + 1), None)
        end = 0 if block is None else block.end_seq - 1
        offsets = topic.index.from_on(group_partition.partition, offset, end, _AHEAD)
        found = read_messages(self._engine, topic.log, offsets)
        if isinstance(found, Fetch):
            return found
        for at, message in found.items():
            self._message_cache.put(topic.id, at, message)
        return found.get(offset)

    def _wait_for(self, fetch: Fetch, open_message: OpenMessage) -> None:
        """Continue with the partition when a block was read."""
        topic, group, group_partition = open_message
        group_partition.fetching = True

        def go_on(failed: bool) -> None:
            group_partition.fetching = False
            if failed:
                self._deadlines.stir_later(topic, group, group_partition.partition)
            else:
                group.stir(group_partition.partition)

        fetch.then(lambda done: go_on(done.error is not None))

    def _pass_over(self, group_partition: GroupPartition, entry: OpenDelivery) -> None:
        """Mark a lost message as done, without counting it, so that later messages can be delivered."""
        group_partition.close(entry)
        if entry.offset not in group_partition.done:
            group_partition.done.add(entry.offset, group_partition.following)

    def _offer(
        self, open_message: OpenMessage, entry: OpenDelivery, message: Message, stream: ConsumerStream | None, now: int
    ) -> bool:
        """Deliver a message, or skip it, dead-letter it or wait. Return whether the partition can continue."""
        topic, group, group_partition = open_message
        envelope = message.envelope
        entry.size = message.size
        if envelope is not None and envelope.retry_policy is not None:
            policy = envelope.retry_policy
            entry.limit, entry.policy = policy.max_attempts, (policy.backoff_ms, policy.max_backoff_ms)
        holder: str | None = None
        if envelope is not None and envelope.idempotency_key and envelope.dlq is None:
            entry.scope = KeyOwner(envelope.tenant_id, topic.name, group.name, envelope.idempotency_key)
            standing = self._registry.standing(entry.scope, entry.stored_ts)
            if standing.committed and not entry.doomed:
                self._skip(open_message, entry)
                return True
            holder = standing.holder
        if entry.is_spent:
            self._settler.bury(open_message, entry)
            return True
        if holder is not None:
            stream = group.next_stream(holder)
        if stream is not None:
            self._deliver(open_message, entry, message, stream, now)
        else:
            self._deadlines.stir_later(topic, group, group_partition.partition)
            return False
        return True

    def _skip(self, open_message: OpenMessage, entry: OpenDelivery) -> None:
        """Mark a message as done, because the group has done the work of its key."""
        open_message.group_partition.open[entry.offset] = entry
        entry.state = State.WAITING
        entry.due = self._deadlines.now()
        try:
            self._settler.skip(open_message, entry)
        except DriftQError:
            self._deadlines.add(open_message, entry)

    def _deliver(
        self, open_message: OpenMessage, entry: OpenDelivery, message: Message, stream: ConsumerStream, now: int
    ) -> None:
        _, group, group_partition = open_message
        entry.attempts += 1
        if entry.attempts > 1:
            self._counters.redeliveries += 1
        entry.owner = stream.owner
        entry.state = State.LEASED
        entry.due = now + stream.lease_ms
        entry.stream = stream
        stream.held += 1
        group_partition.hand_out(entry)
        group.took(stream)
        self._deadlines.add(open_message, entry)
        if entry.scope is not None:
            self._registry.delivered(entry.scope, stream.owner, entry.due, group_partition.partition, entry.offset)
        envelope = message.envelope
        if envelope is not None and envelope.redrive_policy is not None:
            message = structs.replace(message, envelope=structs.replace(envelope, redrive_policy=None))
        delivery = OutgoingMessage(group_partition.partition, entry.offset, entry.attempts, entry.last_error, message)
        stream.give(delivery, entry.size)
