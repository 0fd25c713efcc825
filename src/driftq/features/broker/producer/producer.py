"""Produce: hook, deadline, key, partition, limits, append (http-v1 §3.5, §5, §12, §14). Topics are created here too.

All checks and the append are one step on the event loop. A refused message is not stored, takes no offset, and leaves
its key free. Groups see a message when its commit point is reached.
"""

from typing import NamedTuple

from msgspec import structs

from driftq.codec.write_body import make_rows
from driftq.engine.engine import Engine
from driftq.engine.write.appender import AppendResult
from driftq.engine.write.change_log import forward
from driftq.errors import DriftQError, InvalidRequestError, OverloadedError, PayloadTooLargeError
from driftq.features.broker.protocols import BrokerCounters, Hook, Produced, Registry
from driftq.features.broker.state.broker_frames import BrokerTopicFrame, GroupKind, encode
from driftq.features.broker.state.broker_state import BrokerState, BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup
from driftq.features.broker.state.group_partition import GroupPartition
from driftq.features.broker.state.message_cache import MessageCache
from driftq.features.broker.state.message_index import tag_of
from driftq.features.broker.state.stored_messages import Read, partition_of, to_data
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Envelope, Message, Routing, RoutingDecision
from driftq.model.names import broker_topic, check_name
from driftq.model.topic_config import Discard, Durability, TopicConfig
from driftq.storage.blocks.rows import Row, Rows
from driftq.system.runtime import Pending

Key = tuple[str, str, str]
"""Tenant, topic and idempotency key."""


class CheckedMessage(NamedTuple):
    """A message that passed all checks, with its topic and partition."""

    topic: BrokerTopic
    partition: int
    size: int
    message: Message
    key: Key | None

    def hold(self) -> None:
        """Count the message as incoming, for backpressure."""
        part = self.topic.index.parts[self.partition]
        part.incoming += 1
        part.incoming_size += self.size

    def let_go(self) -> None:
        """Stop counting the message as incoming, because it was stored or has failed."""
        part = self.topic.index.parts[self.partition]
        part.incoming -= 1
        part.incoming_size -= self.size

    def at(self, stored: AppendResult, row: int) -> Produced:
        """Return the answer to its producer."""
        return Produced(self.topic.name, self.partition, stored.first_seq - 1 + row, stored.ts)


def target_of(topic: str, message: Message) -> tuple[str, Key | None]:
    """Return the topic that a message goes to, and its key there."""
    envelope = message.envelope
    if envelope is None:
        return topic, None
    final = envelope.target_topic or topic
    key = envelope.idempotency_key
    return final, (envelope.tenant_id, final, key) if key else None


class MessageWriter:
    """Checks and stores messages, and creates topics."""

    def __init__(
        self,
        engine: Engine,
        settings: BrokerSettings,
        broker_state: BrokerState,
        registry: Registry,
        hook: Hook,
        counters: BrokerCounters,
        message_cache: MessageCache,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._broker_state = broker_state
        self._registry = registry
        self._hook = hook
        self._counters = counters
        self._message_cache = message_cache
        self._creating: dict[str, Pending[int]] = {}

    # Topics

    def create(self, name: str, partitions: int) -> Pending[int]:
        """Create a topic unless it exists. The answer is its number of partitions."""
        check_name(name)
        partitions = partitions or 1
        if not 0 < partitions <= self._settings.partitions_max:
            raise InvalidRequestError("invalid partitions")
        return self.ensure(name, partitions)

    def ensure(self, name: str, partitions: int) -> Pending[int]:
        """Create a topic unless it exists, without checking name and number of partitions."""
        answer: Pending[int] = Pending()
        known = self._broker_state.by_name.get(name)
        if known is not None:
            answer.resolve(known.partitions)
            return answer
        under_way = self._creating.get(name)
        if under_way is not None:
            under_way.then(lambda _: forward(lambda: self.ensure(name, partitions), answer))
            return answer
        config = TopicConfig(
            durability=Durability(self._settings.durability), discard=Discard.REJECT, auto_create=False
        )
        put = self._engine.put_topic(broker_topic(name), config)
        self._creating[name] = answer

        def settle(error: BaseException | None) -> None:
            del self._creating[name]
            if error is None:
                answer.resolve(self._broker_state.by_name[name].partitions)
            else:
                answer.fail(error)

        def named(done: Pending[bool]) -> None:
            if done.error is not None:
                settle(done.error)
                return
            body = encode(BrokerTopicFrame(name, partitions))
            try:
                topic = self._engine.topic(broker_topic(name))
                logged = self._engine.log(topic, GroupKind.TOPIC, body, self._broker_state)
            except DriftQError as error:
                settle(error)
                return
            logged.then(lambda last: settle(last.error))

        put.then(named)
        return answer

    # Messages

    def produce(self, topic: str, message: Message, deadline_ms: int | None) -> Pending[Produced]:
        """Store a message after asking the hook."""
        routed = self.routed(topic, message)
        if isinstance(routed, Message):
            return self.admit(topic, routed, deadline_ms)
        answer: Pending[Produced] = Pending()

        def go_on(done: Pending[Message]) -> None:
            if done.error is not None:
                answer.fail(done.error)
            else:
                forward(lambda: self.admit(topic, done.result(), deadline_ms), answer)

        routed.then(go_on)
        return answer

    def routed(self, topic: str, message: Message) -> Message | Pending[Message]:
        """Return the message with the decision of the hook."""
        asked = self._hook.route(topic, message)
        if asked is None:
            return message
        answer: Pending[Message] = Pending()

        def settle(done: Pending[RoutingDecision | None]) -> None:
            if done.error is not None:
                answer.fail(done.error)
                return
            decision = done.result()
            answer.resolve(message if decision is None else _routed(message, decision))

        asked.then(settle)
        return answer

    def admit(self, topic: str, message: Message, deadline_ms: int | None) -> Pending[Produced]:
        """Store a message that the hook has decided about."""
        self.check_deadline(deadline_ms)
        final, key = target_of(topic, message)
        if key is None:
            return self._store(self.place(final, message))
        known = self.take(final, key)
        if known is not None:
            answer: Pending[Produced] = Pending()
            answer.resolve(known)
            return answer
        try:
            return self._store(self.place(final, message, key))
        except DriftQError:
            self.give_back(key)
            raise

    def check_deadline(self, deadline_ms: int | None) -> None:
        """Raise InvalidRequestError if the deadline of a message has passed."""
        if deadline_ms is not None and deadline_ms < self._engine.time.wall():
            raise InvalidRequestError("message deadline exceeded")

    def take(self, name: str, key: Key) -> Produced | None:
        """Reserve a key for a message of a topic. Return its stored message if it is committed already, else None.
        Raise InvalidRequestError.
        """
        offset = self._registry.begin_produce(*key)
        if offset is None:
            return None
        partition = self._broker_state.find(name).index.partition_at(offset)
        if partition is None:
            return Produced(name, duplicate=True)
        return Produced(name, partition, offset, duplicate=True)

    def give_back(self, key: Key) -> None:
        """Release a key, because its message was not stored."""
        self._registry.end_produce(*key, None)

    def place(self, name: str, message: Message, key: Key | None = None) -> CheckedMessage:
        """Return topic and partition for a message. Raise a DriftQError if it cannot be stored."""
        topic = self._broker_state.by_name.get(name)
        if topic is None:
            raise InvalidRequestError("topic does not exist (create it first)")
        override = None if message.envelope is None else message.envelope.partition_override
        partition = partition_of(message.key, topic.partitions) if override is None else override
        if not 0 <= partition < topic.partitions:
            raise InvalidRequestError("partition_override out of range")
        size = message.size
        if size > self._settings.message_bytes_max:
            raise PayloadTooLargeError("message too large")
        self._check_room(topic, partition, size)
        return CheckedMessage(topic, partition, size, message, key)

    def copy(self, name: str, partitions: int, message: Message, *, partition: int | None = None) -> Pending[Produced]:
        """Store a dead letter or a redriven message without hook, key check and limits. Create its topic if needed."""
        answer: Pending[Produced] = Pending()

        def go_on(done: Pending[int]) -> None:
            if done.error is not None:
                answer.fail(done.error)
                return
            topic = self._broker_state.by_name[name]
            place = partition_of(message.key, topic.partitions) if partition is None else partition
            forward(lambda: store(topic, place), answer)

        def store(topic: BrokerTopic, place: int) -> Pending[Produced]:
            stored = self._store(CheckedMessage(topic, place, message.size, message, None))
            stored.then(know_key)
            return stored

        def know_key(done: Pending[Produced]) -> None:
            # Like replay: a redriven message registers its key, a dead letter does not.
            envelope = message.envelope
            if done.error is None and envelope is not None and envelope.idempotency_key and envelope.dlq is None:
                at = done.result()
                self._registry.stored(envelope.tenant_id, name, envelope.idempotency_key, at.ts, at.offset)

        self.ensure(name, partitions).then(go_on)
        return answer

    def _store(self, placed: CheckedMessage) -> Pending[Produced]:
        placed.hold()
        try:
            appended = self.append(placed.topic, [placed])
        except DriftQError:
            placed.let_go()
            raise
        answer: Pending[Produced] = Pending()

        def settle(done: Pending[AppendResult]) -> None:
            if done.error is not None:
                answer.fail(done.error)
            else:
                answer.resolve(placed.at(done.result(), 0))

        appended.then(settle)
        return answer

    def append(self, topic: BrokerTopic, held: list[CheckedMessage]) -> Pending[AppendResult]:
        """Store messages of one topic, all or none. The answer comes when groups can see them."""
        rows: Rows | Row
        if len(held) == 1:
            data = to_data(held[0].message)
            rows = Row(data, tag_of(held[0].partition).encode(), len(data))
        else:
            rows = make_rows([to_data(one.message) for one in held], [tag_of(one.partition) for one in held])
        appended = self._engine.append(topic.log.name, rows, create=False)

        def settle(done: Pending[AppendResult]) -> None:
            for row, one in enumerate(held):
                one.let_go()
                if done.error is None:
                    self._show(one, one.at(done.result(), row))
                elif one.key is not None:
                    self.give_back(one.key)

        appended.then(settle)
        return appended

    def _show(self, placed: CheckedMessage, found: Produced) -> None:
        topic = placed.topic
        topic.index.add(placed.partition, found.offset, placed.size)
        if any(group.streams for group in topic.groups.values()):
            self._message_cache.put(topic.id, found.offset, Read(placed.message, found.ts))
        if placed.key is not None:
            self._registry.end_produce(*placed.key, found.ts, found.offset)
        for group in topic.groups.values():
            group.stir(placed.partition)
        for listener in self._broker_state.listeners:
            listener(found, placed.message)

    # Backpressure

    def note_progress(self, group_partition: GroupPartition) -> None:
        """Record whether a group has caught up in a partition, after progress, a seek or a new stream."""
        if not group_partition.caught_up and self._exceeded(group_partition.lag, group_partition.lag_size) is None:
            group_partition.caught_up = True

    def note_member(self, topic: BrokerTopic, group: ConsumerGroup) -> None:
        """Record in which partitions a group with a new stream has caught up, also where it has done nothing."""
        settings = self._settings
        if (settings.partition_msgs_max or settings.partition_bytes_max) and not settings.dev_limits:
            for partition in range(topic.partitions):
                self.note_progress(group.group_partition(partition))

    def _check_room(self, topic: BrokerTopic, partition: int, size: int) -> None:
        part = topic.index.parts[partition]
        incoming, more = part.incoming, part.incoming_size + size
        if self._exceeded(part.count + incoming, part.size + more) is None:
            return  # no group can have more open messages than there are
        messages, volume = self._pending(topic, partition)
        limit = self._exceeded(messages + incoming, volume + more)
        if limit is not None:
            self._counters.rejected[limit] = self._counters.rejected.get(limit, 0) + 1
            raise OverloadedError(limit, self._settings.retry_after_ms)

    def _exceeded(self, messages: int, volume: int) -> str | None:
        """Return the limit that these numbers of messages and bytes reach, or None."""
        settings = self._settings
        if 0 < settings.partition_msgs_max <= messages:
            return "partition_buffer_full"
        if 0 < settings.partition_bytes_max <= volume:
            return "partition_buffer_bytes_full"
        return None

    def _pending(self, topic: BrokerTopic, partition: int) -> tuple[int, int]:
        """Return the open messages and bytes of a partition that count for backpressure (http-v1 §12)."""
        part = topic.index.parts[partition]
        counting: tuple[int, int] | None = None
        least: tuple[int, int] | None = None
        for group in topic.groups.values():
            if not group.done:
                continue
            group_partition = group.group_partitions.get(partition)
            lag, size = (
                (part.count, part.size) if group_partition is None else (group_partition.lag, group_partition.lag_size)
            )
            least = (lag, size) if least is None else min(least, (lag, size))
            if self._counts(group, group_partition, lag, size):
                counting = (lag, size) if counting is None else (max(counting[0], lag), max(counting[1], size))
        return counting or least or (part.count, part.size)

    def _counts(self, group: ConsumerGroup, group_partition: GroupPartition | None, lag: int, size: int) -> bool:
        """Whether a group that has done something counts for backpressure."""
        if self._settings.dev_limits:
            return True
        idle = self._settings.group_idle_ms
        if not group.streams and idle and group.idle_ms() > idle:
            return False
        return (group_partition is not None and group_partition.caught_up) or self._exceeded(lag, size) is None


def _routed(message: Message, decision: RoutingDecision) -> Message:
    """Return a message with the decision of the hook."""
    envelope = message.envelope
    if decision.target_topic or decision.partition_override is not None:
        known = envelope or Envelope()
        override = decision.partition_override
        envelope = structs.replace(
            known,
            target_topic=decision.target_topic or known.target_topic,
            partition_override=known.partition_override if override is None else override,
        )
    routing = Routing(decision.label, decision.meta) if decision.label or decision.meta else None
    return Message(message.value, message.key, envelope, routing)
