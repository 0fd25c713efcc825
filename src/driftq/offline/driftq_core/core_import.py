"""Imports the log of the Go broker (http-v1 §15.1): topics, messages, progress, failures and outcomes.

The log is read twice: first to learn its topics and to check all of it, then to store the messages in the order of the
log. So a refused log has changed nothing. Messages get new offsets, and progress and failures are mapped from the old
offsets to the new ones. The idempotency windows of the producers are not imported: no producer still retries these
messages.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

from driftq.engine.engine import Engine
from driftq.errors import InvalidRequestError
from driftq.features.broker.broker import Broker
from driftq.features.broker.idempotency.consumed_keys import ConsumeOutcome
from driftq.features.broker.idempotency.registry import IdempotencyRegistry
from driftq.features.broker.producer.producer import CheckedMessage
from driftq.features.broker.state.broker_frames import DoneBody, GroupKind, RetryBody, encode
from driftq.features.broker.state.stored_messages import wait_for_message
from driftq.model.names import check_name
from driftq.offline.driftq_core.core_log import (
    MESSAGE,
    CoreLine,
    CoreLogError,
    CoreRecord,
    TopicPlan,
    message_of,
    moment,
    plan,
    read_lines,
)

_BATCH = 500
_BATCH_BYTES = 4 << 20
_PARTITIONS_MAX = 65_535

Tell = Callable[[int], None]
"""Called with the number of bytes of the log that are done."""


class ImportReport(Struct, frozen=True):
    """Counts of what was imported."""

    topics: int
    messages: int
    groups: int
    failures: int
    outcomes: int


class _Batch:
    """Messages of one topic that are stored together."""

    def __init__(self) -> None:
        self.lines: list[tuple[CoreLine, CheckedMessage]] = []
        self.size = 0


class CoreImport:
    """One import into a broker that has no other users."""

    def __init__(self, engine: Engine, broker: Broker, registry: IdempotencyRegistry) -> None:
        self._engine = engine
        self._broker = broker
        self._registry = registry
        self._keyed: dict[tuple[str, str, str], list[int]] = {}
        """New offsets by tenant, topic and key, for keys that have an outcome in some group."""
        self._waiting: dict[str, _Batch] = {}

    async def run(self, lines: Callable[[], Iterable[bytes]], tell: Tell) -> ImportReport:
        """Import the log; `lines` is called twice and returns its lines. Raise a DriftQError."""
        topics = plan(read_lines(lines()))
        self._check(topics)
        for name, topic in topics.items():
            await self._broker.producer.ensure(name, topic.partitions)
            self._keyed.update({(tenant, name, key): [] for tenant, _, key in topic.outcomes})
        for line in read_lines(lines()):
            if line.record.type == MESSAGE:
                await self._message(topics[line.record.topic], line)
                tell(line.end)
        for name in list(self._waiting):
            await self._store(name, topics[name])
        failures = sum([await self._progress(name, topic) for name, topic in topics.items()])
        outcomes = sum([await self._outcomes(name, topic) for name, topic in topics.items()])
        return ImportReport(
            len(topics),
            sum(topic.messages for topic in topics.values()),
            sum(len({group for group, _ in topic.acked}) for topic in topics.values()),
            failures,
            outcomes,
        )

    def _check(self, topics: dict[str, TopicPlan]) -> None:
        known = set(self._broker.topics())
        for name, topic in topics.items():
            try:
                check_name(name)
            except InvalidRequestError as error:
                raise CoreLogError(f"topic {name[:100]!r}: {error.message}") from None
            if name in known:
                raise CoreLogError(f"topic {name!r} already exists; import into a directory that does not have it")
            if topic.partitions > _PARTITIONS_MAX:
                raise CoreLogError(f"topic {name!r} has {topic.partitions} partitions; the limit is {_PARTITIONS_MAX}")

    # Messages

    async def _message(self, topic: TopicPlan, line: CoreLine) -> None:
        record, message = line.record, message_of(line)
        placed = CheckedMessage(
            self._broker.broker_state.find(record.topic), record.partition, message.size, message, None
        )
        waiting = self._waiting.setdefault(record.topic, _Batch())
        waiting.lines.append((line, placed))
        waiting.size += message.size
        if len(waiting.lines) >= _BATCH or waiting.size >= _BATCH_BYTES:
            await self._store(record.topic, topic)

    async def _store(self, name: str, topic: TopicPlan) -> None:
        batch = self._waiting.pop(name)
        for _, placed in batch.lines:
            placed.hold()
        held = [placed for _, placed in batch.lines]
        stored = await self._broker.producer.append(self._broker.broker_state.find(name), held)
        for row, (line, placed) in enumerate(batch.lines):
            offset = placed.at(stored, row).offset
            topic.stored(line.record, offset)
            same = self._keyed.get((line.record.tenant_id, name, line.record.idempotency_key))
            if same is not None:
                same.append(offset)

    # Progress of groups

    async def _progress(self, name: str, topic: TopicPlan) -> int:
        """Import progress and failures of one topic. Return the number of failures."""
        for (group, partition), acked in topic.acked.items():
            floor = topic.floor(partition, acked)
            if floor >= 0:
                await self._broker.seek(name, group, {partition: floor + 1})
        failures = 0
        for (group, partition, old), failure in topic.retries.items():
            offset = topic.exactly(partition, old)
            if offset is None or self._broker.is_done(name, group, offset):
                continue
            time = self._engine.time
            now, next_at = time.running(), time.moment(failure.next_at)
            body = RetryBody(group, partition, offset, failure.attempts, failure.last_error, now, next_at)
            await self._broker.broker_state.log(self._broker.broker_state.find(name), GroupKind.RETRY, encode(body))
            failures += 1
        return failures

    async def _outcomes(self, name: str, topic: TopicPlan) -> int:
        """Import the idempotency outcomes of one topic. Return how many there were.

        If the window of an outcome is over, only its open messages are marked done; the key is not kept for later
        messages.
        """
        outcomes = 0
        for (tenant, group, key), record in topic.outcomes.items():
            offsets = self._keyed[tenant, name, key]
            committed = record.idempotency_status == "COMMITTED"
            if self._is_over(record):
                still = [offset for offset in offsets if committed and not self._broker.is_done(name, group, offset)]
                for offset in still:
                    await self._done(name, group, offset)
                outcomes += bool(still)
                continue
            await self._registry.record(
                ConsumeOutcome(
                    *(tenant, name, group, key, committed),
                    result=record.result or b"",
                    last_error="" if committed else record.last_error,
                    offsets=offsets,
                )
            )
            outcomes += 1
        return outcomes

    async def _done(self, name: str, group: str, offset: int) -> None:
        broker_state = self._broker.broker_state
        topic = broker_state.find(name)
        message = await wait_for_message(self._engine, topic.log, offset)
        partition = topic.index.partition_at(offset)
        if message is not None and partition is not None:
            broker_state.group(topic, group).group_partition(partition)
            await broker_state.log_done(topic, [DoneBody(group, partition, offset, message.size, attempts=0)])

    def _is_over(self, record: CoreRecord) -> bool:
        ttl_ms, ended = self._broker.settings.idem_consume_ttl_ms, moment(record.updated_at)
        return bool(ttl_ms and ended) and ended + ttl_ms <= self._engine.time.wall()
