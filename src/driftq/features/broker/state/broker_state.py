"""The durable state of the broker: its topics, and the positions of all groups in them.

    logged → (commit point) → applied here, live and in replay alike

A topic of the broker is a log of the engine, and one frame with its name and number of partitions. Changes of groups
are logged as frames of that log, so they are ordered only among themselves. All messages done in one turn of the loop
share a frame; it is written before any other frame of the topic. The state of an `ephemeral` topic is never logged:
its messages do not survive a restart, and the outcomes of those messages must not survive it either.

A checkpoint has, per group and partition, a floor, ranges and failures. Its size depends on the number of open
messages, not on the length of the log.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError, InvalidRequestError, TopicNotFoundError
from driftq.features.broker.protocols import Ender, KeyOwner, Listener, Produced, Registry
from driftq.features.broker.state.broker_frames import (
    BrokerTopicCheckpoint,
    BrokerTopicFrame,
    DoneBody,
    GroupKind,
    ManyDoneBody,
    RetiredBody,
    RetryState,
    TrimBody,
    decode_done,
    decode_many_done,
    decode_retired,
    decode_retry,
    decode_section,
    decode_seek,
    decode_topic,
    decode_trim,
    encode,
)
from driftq.features.broker.state.group import ConsumerGroup
from driftq.features.broker.state.message_index import Index, IndexReader
from driftq.model.message import Message
from driftq.model.names import broker_topic
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending


class BrokerTopic:
    """One topic of the broker, with its groups."""

    def __init__(self, topic_id: int, name: str, partitions: int) -> None:
        self.id = topic_id
        self.name = name
        self.partitions = partitions
        self.index = Index(partitions)
        self.groups: dict[str, ConsumerGroup] = {}
        self.log: Topic
        """The log of the topic; set when recovery ends."""
        self.known = 0
        self.totals: list[tuple[int, int]] = []
        """The totals of the index in the last checkpoint."""
        self.pinned = 0
        """How many running calls count messages. Retention waits for them."""
        self.trimming: Pending[None] | None = None
        """A trim that is being logged. Calls that count messages wait for it."""

    @property
    def lasts(self) -> bool:
        """Whether the messages survive a restart."""
        return self.log.durability is not Durability.EPHEMERAL


class BrokerState:
    """All topics and groups, as one feature of the engine."""

    name = "groups"
    kinds = frozenset(int(kind) for kind in GroupKind)

    def __init__(
        self, registry: Registry, ask: Callable[[BrokerTopic, ConsumerGroup], None], now: Callable[[], int]
    ) -> None:
        self.by_id: dict[int, BrokerTopic] = {}
        self.by_name: dict[str, BrokerTopic] = {}
        self.listeners: list[Listener] = []
        self.enders: list[Ender] = []
        self._registry = registry
        self._ask = ask
        self._now = now
        self._engine: Engine | None = None
        self._gathered: dict[int, list[tuple[Sequence[DoneBody], Pending[None]]]] = {}
        """Done messages that are not logged yet, by topic id."""

    def open(self, engine: Engine) -> None:
        """Finish recovery: build the index of messages. Raise OSError."""
        for topic in self.by_id.values():
            topic.log = engine.catalog.by_id[topic.id]
            reader = IndexReader(topic.index, topic.log, engine.indexes, topic.known, self._heard(topic.name))
            reader.read(topic.totals)
            for group in topic.groups.values():
                for group_partition in group.group_partitions.values():
                    group_partition.settle()
                group.done = sum(
                    group_partition.count or group_partition.done.last >= 0
                    for group_partition in group.group_partitions.values()
                )
                group.left_at = self._now()
        self._engine = engine
        engine.change_log.at_turn(self._send_gathered)

    def name_topics(self, topics: Mapping[int, Topic]) -> None:
        """Rename every log to `@NAME`. Logs of earlier formats are `v1:NAME` or `v1:id-HASH` at every start.

        An ordinary topic may have been created with the old name since then, so this comes before names are compared.
        """
        for topic in self.by_id.values():
            if topic.id in topics:
                topics[topic.id].name = broker_topic(topic.name)

    def _heard(self, name: str) -> Callable[[int, int, int, Message], None]:
        """Return the function that recovery calls for each message of a topic: partition, offset, time, message."""

        def heard(partition: int, offset: int, ts: int, message: Message) -> None:
            envelope = message.envelope
            if envelope is not None and envelope.idempotency_key and envelope.dlq is None:
                self._registry.stored(envelope.tenant_id, name, envelope.idempotency_key, ts, offset)
            found = Produced(name, partition, offset, ts)
            for listener in self.listeners:
                listener(found, message)

        return heard

    def find(self, name: str) -> BrokerTopic:
        """Return a topic by name. Raise InvalidRequestError."""
        topic = self.by_name.get(name)
        if topic is None:
            raise InvalidRequestError("topic does not exist")
        return topic

    def group(self, topic: BrokerTopic, name: str) -> ConsumerGroup:
        """Return a group of a topic; create it if needed."""
        group = topic.groups.get(name)
        if group is None:
            group = topic.groups[name] = ConsumerGroup(name, topic.index, partial(self._ask, topic), self._now)
        return group

    def log(self, topic: BrokerTopic, kind: GroupKind, body: bytes) -> Pending[None]:
        """Log a frame and apply it at its commit point."""
        assert self._engine is not None
        if not topic.lasts:
            self._engine.check_open()
            applied: Pending[None] = Pending()
            self.apply(kind, topic.log, self._engine.time.stamp(), body)
            applied.resolve(None)
            return applied
        if topic.id in self._gathered:
            self._send_done(topic, self._gathered.pop(topic.id))
        sync = topic.log.durability is Durability.FSYNC
        return self._engine.log(topic.log, kind, body, self, sync=sync, in_order=False)

    def log_done(self, topic: BrokerTopic, facts: Sequence[DoneBody]) -> Pending[None]:
        """Log that messages are done, all or none, in one frame with others of this turn."""
        assert self._engine is not None
        logged: Pending[None] = Pending()
        if not topic.lasts:
            self._send_done(topic, [(facts, logged)])
            return logged
        self._engine.check_open()
        self._engine.change_log.shard_of(topic.log).check_room()
        self._gathered.setdefault(topic.id, []).append((facts, logged))
        self._engine.change_log.schedule()
        return logged

    def _kind_of(self, topic: BrokerTopic, fact: DoneBody) -> GroupKind:
        group_partition = topic.groups[fact.group].group_partitions[fact.partition]
        return GroupKind.OFFSET if fact.offset > group_partition.done.last else GroupKind.GAP

    def _send_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for topic_id, facts in gathered.items():
            topic = self.by_id.get(topic_id)
            if topic is not None:
                self._send_done(topic, facts)

    def _send_done(self, topic: BrokerTopic, gathered: list[tuple[Sequence[DoneBody], Pending[None]]]) -> None:
        facts = [fact for some, _ in gathered for fact in some]
        try:
            if len(facts) == 1:
                logged = self.log(topic, self._kind_of(topic, facts[0]), encode(facts[0]))
            else:
                logged = self.log(topic, GroupKind.DONE, encode(ManyDoneBody(facts)))
        except DriftQError as error:
            for _, waiting in gathered:
                waiting.fail(error)
            return

        def settle(done: Pending[None]) -> None:
            for _, waiting in gathered:
                if done.error is None:
                    waiting.resolve(None)
                else:
                    waiting.fail(done.error)

        logged.then(settle)

    # Calls from the engine

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """Apply one committed frame of a topic."""
        at = topic.timeline.moment(ts)
        if kind == GroupKind.TOPIC:
            self._apply_topic(topic, decode_topic(body))
            return
        found = self.by_id.get(topic.id)
        if found is None:
            return  # the TOPIC frame was damaged, and recovery has reported that
        if kind == GroupKind.RETRY:
            self._apply_retry(found, at, body)
        elif kind == GroupKind.RETIRED:
            self._apply_retired(found, decode_retired(body))
        elif kind == GroupKind.TRIM:
            self._apply_trim(found, topic, decode_trim(body))
        elif kind == GroupKind.SEEK:
            seek = decode_seek(body)
            group = self.group(found, seek.group)
            group.moved = True
            for landing in seek.landings:
                group_partition = group.group_partition(landing.partition, live=self._engine is not None)
                group.done += landing.count - group_partition.count
                group_partition.land(landing)
        elif kind == GroupKind.DONE:
            self._apply_done(found, at, decode_many_done(body).facts)
        else:
            self._apply_done(found, at, [decode_done(body)])

    def _apply_topic(self, topic: Topic, body: BrokerTopicFrame) -> None:
        found = self.by_id.get(topic.id)
        if found is None:
            found = BrokerTopic(topic.id, body.name, body.partitions)
            self.by_id[topic.id] = self.by_name[body.name] = found
            found.log = topic

    def _apply_done(self, topic: BrokerTopic, at: int, facts: Sequence[DoneBody]) -> None:
        group: ConsumerGroup | None = None
        for fact in facts:
            # The facts of one batch belong to one group, and mostly to one partition.
            if group is None or fact.group != group.name:
                group = self.group(topic, fact.group)
            group_partition = group.group_partition(fact.partition, live=self._engine is not None)
            before = group_partition.count
            group_partition.finish(fact.offset, fact.size)
            group.done += group_partition.count - before
            if fact.attempts != 1:
                for ended in self.enders:
                    ended(topic.name, fact.offset, fact.group, fact.attempts)
            if fact.key:
                self._registry.committed(KeyOwner(fact.tenant, topic.name, fact.group, fact.key), at)

    def _apply_retired(self, topic: BrokerTopic, fact: RetiredBody) -> None:
        topic.index.parts[fact.partition].retired[fact.offset] = fact.size
        for group in topic.groups.values():
            group_partition = group.group_partitions.get(fact.partition)
            if group_partition is None:
                continue
            before = group_partition.count
            group_partition.finish(fact.offset, fact.size)
            group.done += group_partition.count - before
            if (entry := group_partition.open.get(fact.offset)) is not None:
                group_partition.close(entry)
            group.stir(fact.partition)

    def _apply_trim(self, topic: BrokerTopic, log: Topic, fact: TrimBody) -> None:
        """Remove records, totals and done counts in one step, so that no crash can separate them."""
        log.age_out(fact.start + 1)
        for group in topic.groups.values():
            for gone in fact.taken:
                group_partition = group.group_partitions.get(gone.partition)
                if group_partition is not None:
                    group_partition.trim(fact.start, gone)
        if self._engine is not None:
            topic.index.trim(fact.start, fact.taken)
            return
        topic.index.cut(fact.start)
        if fact.start >= topic.known:
            topic.known, topic.totals = fact.start, []
            return
        totals = dict(enumerate(topic.totals))
        for gone in fact.taken:
            count, size = totals[gone.partition]
            totals[gone.partition] = (max(0, count - gone.count), max(0, size - gone.size))
        topic.totals = list(totals.values())

    def _apply_retry(self, topic: BrokerTopic, at: int, body: bytes) -> None:
        fact = decode_retry(body)
        group_partition = self.group(topic, fact.group).group_partition(fact.partition, live=self._engine is not None)
        if group_partition.raw is None or fact.offset not in group_partition.raw:
            group_partition.retries[fact.offset] = RetryState(fact.attempts, fact.last_error, fact.next_at, fact.doomed)
        if fact.key:
            self._registry.failed(KeyOwner(fact.tenant, topic.name, fact.group, fact.key), fact.last_error, at)

    def capture(self) -> bytes:
        """Return the checkpoint section: every topic by its id."""
        return encode({topic.id: self._captured(topic) for topic in self._in_order()})

    def _captured(self, topic: BrokerTopic) -> BrokerTopicCheckpoint:
        if not topic.lasts:
            return BrokerTopicCheckpoint(topic.name, topic.partitions, 0, [], {})
        index = topic.index
        totals = [(part.count, part.size) for part in index.parts]
        groups = {
            name: states for name, group in sorted(topic.groups.items()) if (states := group.capture()) or group.moved
        }
        retired = [
            RetiredBody(number, offset, size)
            for number, part in enumerate(index.parts)
            for offset, size in sorted(part.retired.items())
        ]
        return BrokerTopicCheckpoint(topic.name, topic.partitions, index.head, totals, groups, retired, index.start)

    def _in_order(self) -> Iterable[BrokerTopic]:
        return [topic for _, topic in sorted(self.by_id.items())]

    def restore(self, section: bytes) -> None:
        """Restore all topics from a checkpoint section."""
        for topic_id, state in decode_section(section).items():
            topic = BrokerTopic(topic_id, state.name, state.partitions)
            topic.known, topic.totals = state.known, state.totals
            topic.index.cut(state.start)
            self.by_id[topic_id] = self.by_name[state.name] = topic
            for fact in state.retired:
                topic.index.parts[fact.partition].retired[fact.offset] = fact.size
            for name, group_partitions in state.groups.items():
                self.group(topic, name).restore(group_partitions)

    def forget(self, topic: Topic) -> None:
        """Drop a topic whose log was deleted. No API call deletes it."""
        for _, waiting in self._gathered.pop(topic.id, ()):
            waiting.fail(TopicNotFoundError(topic.name))
        found = self.by_id.pop(topic.id, None)
        if found is not None:
            self.by_name.pop(found.name, None)
