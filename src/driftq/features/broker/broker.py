"""`Broker`: the broker API as one feature, for the server and its handlers."""

from collections.abc import Mapping, Sequence

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError
from driftq.features.broker.consumer.ack_batches import Acked, ack_all
from driftq.features.broker.consumer.deadlines import Deadlines, OpenMessage
from driftq.features.broker.consumer.dispatcher import Dispatcher
from driftq.features.broker.consumer.group_seek import Moved, seek
from driftq.features.broker.consumer.message_settlement import MessageSettler, SettlementVerdict
from driftq.features.broker.group_reports import GroupStanding, figures, standings
from driftq.features.broker.producer.message_batch import store_batch
from driftq.features.broker.producer.producer import MessageWriter
from driftq.features.broker.protocols import (
    BrokerCounters,
    ConsumerOutlet,
    DeliveryKey,
    Hook,
    NoHook,
    NoRegistry,
    Produced,
    Registry,
)
from driftq.features.broker.retention import Retention
from driftq.features.broker.state.broker_state import BrokerState, BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup, ConsumerStream
from driftq.features.broker.state.group_partition import OpenDelivery, State
from driftq.features.broker.state.message_cache import MessageCache
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Message
from driftq.model.v1_answers import GroupRow
from driftq.system.runtime import Pending, Runtime, each, run


class Broker:
    """Topics, messages, groups and streams. Every refusal is a DriftQError whose message is the contract's text."""

    name = BrokerState.name
    kinds = BrokerState.kinds

    def __init__(self, settings: BrokerSettings, registry: Registry | None = None, hook: Hook | None = None) -> None:
        self.settings = settings
        self.registry: Registry = registry or NoRegistry()
        self.hook: Hook = hook or NoHook()
        self.counters = BrokerCounters()
        self.broker_state = BrokerState(self.registry, self._ask, lambda: self._deadlines.now())
        self._asked: dict[tuple[int, str], tuple[BrokerTopic, ConsumerGroup]] = {}
        self._closed = False
        self._engine: Engine
        self._runtime: Runtime
        self._deadlines: Deadlines
        self._dispatcher: Dispatcher
        self.producer: MessageWriter
        self.settler: MessageSettler
        self.retention: Retention

    def open(self, engine: Engine, runtime: Runtime) -> None:
        """Finish recovery and create the parts of the broker. Raise OSError."""
        settings, counters = self.settings, self.counters
        self._engine = engine
        self._runtime = runtime
        self._deadlines = Deadlines(
            runtime,
            engine.time.running,
            settings.redelivery_tick_ms,
            due=lambda open_message, entry: self.settler.due(open_message, entry),
            sweep=self.registry.sweep,
        )
        message_cache = MessageCache()
        self.producer = MessageWriter(
            engine, settings, self.broker_state, self.registry, self.hook, counters, message_cache
        )
        self.settler = MessageSettler(
            engine, settings, self.broker_state, self._deadlines, self.producer, self.registry, counters
        )
        self._dispatcher = Dispatcher(
            engine, settings, self._deadlines, self.settler, self.registry, counters, message_cache
        )
        self.retention = Retention(engine, runtime, self.broker_state, settings.v1_retention_ms)
        self.broker_state.open(engine)
        for topic in self.broker_state.by_id.values():
            for group in topic.groups.values():
                for group_partition in group.group_partitions.values():
                    self._reopen(OpenMessage(topic, group, group_partition))
                    self.producer.note_progress(group_partition)
        self.retention.start()

    def _reopen(self, open_message: OpenMessage) -> None:
        """Open the messages that failed in an earlier run: they wait for the rest of their delay, or are ready."""
        now = self._deadlines.now()
        group_partition = open_message.group_partition
        for offset, fact in group_partition.retries.items():
            entry = group_partition.open[offset] = OpenDelivery(offset, fact.attempts, fact.last_error)
            entry.doomed = fact.doomed
            if fact.next_at > now:
                entry.state = State.WAITING
                entry.due = fact.next_at
                self._deadlines.add(open_message, entry)
            else:
                group_partition.make_ready(entry)

    def close(self) -> None:
        """Stop all deliveries, timers and retention."""
        self._closed = True
        self._deadlines.close()
        self.retention.close()

    def _ask(self, topic: BrokerTopic, group: ConsumerGroup) -> None:
        if not self._asked:
            self._runtime.soon(self._serve)
        self._asked[topic.id, group.name] = (topic, group)

    def _serve(self) -> None:
        asked, self._asked = self._asked, {}
        if not self._closed:
            each(asked.values(), lambda one: self._dispatcher.serve(*one))

    # Topics

    def create_topic(self, name: str, partitions: int = 1) -> Pending[int]:
        """Create a topic unless it exists. The answer is its number of partitions. `partitions` is checked here."""
        return self.producer.create(name, partitions)

    def topics(self) -> list[str]:
        """Return the names of all topics, in the order of their bytes."""
        return sorted(self.broker_state.by_name, key=str.encode)

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raise InvalidRequestError."""
        return self.broker_state.find(topic).partitions

    # Messages

    def produce(self, topic: str, message: Message, *, deadline_ms: int | None = None) -> Pending[Produced]:
        """Store a message (http-v1 §3.5, steps 2 to 10). `deadline_ms` is the deadline of its envelope in wall time."""
        return self.producer.produce(topic, message, deadline_ms)

    def produce_batch(
        self, topic: str, messages: list[tuple[Message, int | None]], *, atomic: bool
    ) -> Pending[list[Produced | DriftQError]]:
        """Store messages in order, each with its deadline: all or none, or each on its own (http-v1 §22)."""
        return run(store_batch(self.producer, topic, messages, atomic=atomic))

    def attach(
        self,
        topic: str,
        group: str,
        owner: str,
        outlet: ConsumerOutlet,
        *,
        lease_ms: int = 0,
        credit: int | None = None,
        name: str = "",
    ) -> ConsumerStream:
        """Join a group: `outlet` gets messages from the next turn on. Raise InvalidRequestError."""
        found = self.broker_state.find(topic)
        settings = self.settings
        lease = min(lease_ms or settings.default_lease_ms, settings.lease_ms_max)
        joined = self.broker_state.group(found, group)
        stream = ConsumerStream(
            joined, owner, outlet, lease, settings.stream_credit if credit is None else credit, name
        )
        joined.join(stream)
        self.producer.note_member(found, joined)
        return stream

    def leave(self, topic: str, group: str, owner: str, name: str) -> int:
        """End the streams with this owner and name. Return how many there were (http-v1 §22)."""
        known = self.broker_state.find(topic).groups.get(group)
        return 0 if known is None else known.end(owner, name)

    def ack(self, place: DeliveryKey, owner: str) -> Pending[None]:
        """Record that a message is done (http-v1 §3.7, from check 6 on)."""
        return self.settler.ack(place, owner)

    def ack_all(self, topic: str, group: str, owner: str, messages: Sequence[tuple[int, int]]) -> list[Acked]:
        """Ack messages of a group, given as partition and offset. Return the answer for each (http-v1 §22)."""
        return ack_all(self.broker_state, self.settler, topic, group, owner, messages)

    def nack(
        self,
        place: DeliveryKey,
        owner: str,
        reason: str = "",
        *,
        delay_ms: int | None = None,
        dead_letter: bool = False,
    ) -> Pending[None]:
        """Record that a message failed (http-v1 §3.8). Its worker may set the delay, or ask for a dead letter."""
        return self.settler.nack(place, owner, SettlementVerdict(reason, delay_ms, dead_letter))

    def release(self, place: DeliveryKey, owner: str) -> Pending[None]:
        """Give back a delivery that was not worked on: it does not count as an attempt (http-v1 §22)."""
        return self.settler.release(place, owner)

    def extend(self, place: DeliveryKey, owner: str, lease_ms: int) -> int:
        """Set a new deadline for a delivery. The answer is that deadline as wall time (http-v1 §22)."""
        return self.settler.extend(place, owner, lease_ms)

    # Groups

    def groups(self, topic: str | None = None, group: str | None = None, *, ages: bool = True) -> list[GroupRow]:
        """Return the state of groups, filtered by topic and name if given. Without `ages` no block is read."""
        return figures(self.broker_state, self._engine.time, topic, group, ages=ages)

    def standings(self, topic: str, partition: int, offset: int) -> list[GroupStanding]:
        """Return the state of a message in every group of its topic."""
        return standings(self.broker_state, topic, partition, offset)

    def is_done(self, topic: str, group: str, offset: int) -> bool:
        """Whether a message is done for a group. A message that does not exist counts as done."""
        found = self.broker_state.by_name.get(topic)
        partition = None if found is None else found.index.partition_at(offset)
        if found is None or partition is None:
            return True
        known = found.groups.get(group)
        group_partition = None if known is None else known.group_partitions.get(partition)
        return group_partition is not None and offset in group_partition.done

    def seek(
        self,
        topic: str,
        group: str,
        floors: dict[int, int],
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> Pending[list[Moved]]:
        """Move a group to the first message at or above an offset, per partition (http-v1 §22)."""
        seams = self._engine, self._runtime
        moved = run(seek(*seams, self.broker_state, self.registry, topic, group, floors, dry_run=dry_run, force=force))
        moved.then(lambda done: self._sought(topic, group) if done.error is None else None)
        return moved

    def _sought(self, topic: str, group: str) -> None:
        known = self.broker_state.find(topic).groups.get(group)
        for group_partition in () if known is None else known.group_partitions.values():
            self.producer.note_progress(group_partition)

    # Calls from the engine

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """Apply one committed frame of the broker."""
        self.broker_state.apply(kind, topic, ts, body)

    def capture(self) -> bytes:
        """Return the checkpoint section of the broker."""
        return self.broker_state.capture()

    def restore(self, section: bytes) -> None:
        """Restore the state from a checkpoint section."""
        self.broker_state.restore(section)

    def name_topics(self, topics: Mapping[int, Topic]) -> None:
        """Rename the log of every broker topic to `@NAME`."""
        self.broker_state.name_topics(topics)

    def forget(self, topic: Topic) -> None:
        """Drop a topic whose log was deleted."""
        self.broker_state.forget(topic)
