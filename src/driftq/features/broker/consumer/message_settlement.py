"""Settlement of deliveries: ack, nack, extension, expiry, dead letter (http-v1 §3.7, §3.8, §7 to §10).

Every end or failure of a delivery is logged first. Until that is committed the message is `settling`; other calls for
it wait, and then act on the result. An outcome that cannot be logged has not happened: the message stays in flight.

A dead letter is copied first and then marked done: a crash between the two copies it again, and never loses it. A seek
between the two keeps the letter, and its message is delivered again.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from driftq.engine.engine import Engine
from driftq.engine.write.change_log import forward
from driftq.errors import DriftQError, InvalidRequestError, NotOwnerError
from driftq.features.broker.consumer.deadlines import Deadlines, OpenMessage
from driftq.features.broker.consumer.retry_delay import delay_ms_of
from driftq.features.broker.producer.producer import MessageWriter
from driftq.features.broker.protocols import BrokerCounters, DeliveryKey, KeyOwner, Registry
from driftq.features.broker.state.broker_frames import DoneBody, GroupKind, RetryBody, encode
from driftq.features.broker.state.broker_state import BrokerState, BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup
from driftq.features.broker.state.group_partition import GroupPartition, OpenDelivery, State
from driftq.features.broker.state.stored_messages import dead_letter, wait_for_message
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import DlqNote
from driftq.model.names import DLQ
from driftq.system.runtime import Pending, each, run


class SettlementVerdict(NamedTuple):
    """The verdict of a worker on a failed message."""

    reason: str
    delay_ms: int | None = None
    """The delay before the next attempt; it overrides the retry policy."""
    dead_letter: bool = False
    """Whether the message becomes a dead letter without another attempt."""


class MessageSettler:
    """Ends deliveries, and decides what follows."""

    def __init__(
        self,
        engine: Engine,
        settings: BrokerSettings,
        broker_state: BrokerState,
        deadlines: Deadlines,
        producer: MessageWriter,
        registry: Registry,
        counters: BrokerCounters,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._broker_state = broker_state
        self._deadlines = deadlines
        self._producer = producer
        self._registry = registry
        self._counters = counters

    # Calls

    def ack(self, place: DeliveryKey, owner: str) -> Pending[None]:
        """Record that a message is done."""
        answer: Pending[None] = Pending()
        found, entry = self._find(place)
        if entry is None:
            answer.resolve(None)
            return answer
        if (waiting := entry.settling or found.group_partition.moving) is not None:
            waiting.then(lambda _: forward(lambda: self.ack(place, owner), answer))
            return answer
        self._check_owner(entry, owner)
        return self.finish(found, [entry], commits=True)

    def ackable(self, found: OpenMessage, offset: int, owner: str) -> OpenDelivery | None:
        """Return the open message if this owner can ack it at once, or None."""
        entry = found.group_partition.open.get(offset)
        if entry is None or entry.settling is not None or found.group_partition.moving is not None:
            return None
        return entry if entry.owner == owner and self._is_free(entry) else None

    def nack(self, place: DeliveryKey, owner: str, verdict: SettlementVerdict) -> Pending[None]:
        """Record that a delivery failed."""
        found, entry = self._find(place)
        if entry is None:
            raise InvalidRequestError("message is not in-flight")
        if (waiting := entry.settling or found.group_partition.moving) is not None:
            answer: Pending[None] = Pending()
            waiting.then(lambda _: forward(lambda: self.nack(place, owner, verdict), answer))
            return answer
        if entry.owner != owner:
            raise NotOwnerError
        verdict = verdict._replace(reason=self._cut(verdict.reason.strip() or "nack"))
        return self._fail(found, entry, verdict, self._deadlines.now(), nacked=True)

    def release(self, place: DeliveryKey, owner: str) -> Pending[None]:
        """Give back a delivery that was not worked on: the message is ready at once, as if it had not been delivered.

        Nothing is logged, because the delivery was not logged either. If its lease has ended, nothing changes.
        """
        answer: Pending[None] = Pending()
        found, entry = self._find(place)
        if entry is None:
            raise InvalidRequestError("message is not in-flight")
        if (waiting := entry.settling or found.group_partition.moving) is not None:
            waiting.then(lambda _: forward(lambda: self.release(place, owner), answer))
            return answer
        if entry.owner != owner:
            raise NotOwnerError
        if entry.state is State.LEASED:
            entry.attempts -= 1
            entry.owner = None
            entry.free_credit()
            if entry.scope is not None:
                self._registry.released(entry.scope, owner, place.offset)
            found.group_partition.make_ready(entry)
            found.group.stir(place.partition)
        answer.resolve(None)
        return answer

    def extend(self, place: DeliveryKey, owner: str, lease_ms: int) -> int:
        """Set a new deadline, also for an expired lease that no other owner has taken. Return it as wall time."""
        if lease_ms <= 0:
            raise InvalidRequestError("invalid lease_ms")
        found, entry = self._find(place)
        if entry is None or entry.settling is not None:
            raise InvalidRequestError("message is not in-flight")
        self._check_owner(entry, owner)
        lease_ms = min(lease_ms, self._settings.lease_ms_max)
        entry.state = State.LEASED
        entry.due = self._deadlines.now() + lease_ms
        self._deadlines.add(found, entry)
        if entry.scope is not None and not self._is_committed(entry):  # committed work is not leased again
            self._registry.delivered(entry.scope, owner, entry.due, place.partition, place.offset)
        return self._engine.time.shown(entry.due)

    def _find(self, place: DeliveryKey) -> tuple[OpenMessage, OpenDelivery | None]:
        """Return the open message of a call; None if it is done. Raise InvalidRequestError."""
        topic = self._broker_state.find(place.topic)
        if not 0 <= place.partition < topic.partitions:
            raise InvalidRequestError("partition out of range")
        group = topic.groups.get(place.group)
        group_partition = None if group is None else group.group_partitions.get(place.partition)
        if group is None or group_partition is None:
            raise InvalidRequestError("message is not in-flight")
        entry = group_partition.open.get(place.offset)
        if entry is None and (place.offset < topic.index.start or place.offset in group_partition.done):
            return OpenMessage(topic, group, group_partition), None
        if entry is None or (entry.owner is None and entry.settling is None):
            raise InvalidRequestError("message is not in-flight")
        return OpenMessage(topic, group, group_partition), entry

    def _check_owner(self, entry: OpenDelivery, owner: str) -> None:
        if entry.owner != owner or not self._is_free(entry):
            raise NotOwnerError

    def _is_free(self, entry: OpenDelivery) -> bool:
        """Whether no other owner than that of the delivery holds its key."""
        scope = entry.scope
        return scope is None or self._registry.standing(scope, entry.stored_ts).holder in (None, entry.owner)

    def _is_committed(self, entry: OpenDelivery) -> bool:
        """Whether the work of its key is committed. Then the end of a lease is only a missing ack, not a failure."""
        scope = entry.scope
        return scope is not None and self._registry.standing(scope, entry.stored_ts).committed

    def _cut(self, reason: str) -> str:
        raw = reason.encode("utf-8", "replace")
        return (
            reason
            if len(raw) <= self._settings.error_bytes_max
            else raw[: self._settings.error_bytes_max].decode("utf-8", "ignore")
        )

    # Ends

    def finish(self, found: OpenMessage, entries: Sequence[OpenDelivery], *, commits: bool = False) -> Pending[None]:
        """Log that messages of one partition are done, all or none. With `commits`, commit their keys too."""
        topic, group, group_partition = found
        scopes = [entry.scope if commits else None for entry in entries]
        facts = [_fact(found, entry, scope) for entry, scope in zip(entries, scopes, strict=True)]
        answer: Pending[None] = Pending()
        settling: Pending[None] = Pending()
        for entry in entries:
            entry.settling = settling

        def settle(done: Pending[None]) -> None:
            if done.error is None:
                for entry in entries:
                    group_partition.close(entry)
                self._producer.note_progress(group_partition)
            else:
                for entry, stream in held:
                    entry.take_credit(stream)
                for entry in entries:
                    self._look_again(found, entry)
            _settled(entries)
            group.stir(group_partition.partition)
            if done.error is None:
                answer.resolve(None)
            else:
                answer.fail(done.error)

        logged = self._held(lambda: self._broker_state.log_done(topic, facts), entries, scopes)
        held = [(entry, entry.stream) for entry in entries if entry.stream is not None]
        if held:
            # The worker has finished these messages: the next ones need not wait for the disk.
            for entry, _ in held:
                entry.free_credit()
            group.stir(group_partition.partition)
        logged.then(settle)
        return answer

    def skip(self, found: OpenMessage, entry: OpenDelivery) -> None:
        """Mark a message as done, because the work of its key is committed."""
        self.finish(found, [entry])
        self._counters.skips += 1

    def due(self, found: OpenMessage, entry: OpenDelivery) -> None:
        """Handle the end of a lease or of a delay."""
        if entry.settling is not None or found.group_partition.moving is not None:
            self._deadlines.again(found, entry)
        elif entry.state is State.LEASED:
            try:
                if self._is_committed(entry):
                    self.skip(found, entry)
                else:
                    verdict = SettlementVerdict(entry.last_error or "ack_timeout")
                    self._fail(found, entry, verdict, entry.due, nacked=False)
            except DriftQError:
                self._deadlines.again(found, entry)
        elif entry.state is State.WAITING:
            if entry.is_spent:
                self.bury(found, entry)
            else:
                found.group_partition.make_ready(entry)
                found.group.stir(found.group_partition.partition)

    def _fail(
        self, found: OpenMessage, entry: OpenDelivery, verdict: SettlementVerdict, at: int, *, nacked: bool
    ) -> Pending[None]:
        """Log that a delivery failed at a moment, then schedule the next attempt or make a dead letter.

        If it has failed already, only its error changes; with `dead_letter` it becomes a dead letter.
        """
        topic, group, group_partition = found
        leased = entry.state is State.LEASED
        due = at + delay_ms_of(self._settings, entry, verdict.delay_ms, nacked=nacked) if leased else entry.due
        # This owner must not fail a key that another owner holds by now.
        keyed = entry.scope if nacked and self._is_free(entry) else None
        tenant, key = ("", "") if keyed is None else (keyed.tenant, keyed.key)
        place = (group.name, group_partition.partition, entry.offset, entry.attempts)
        now = self._deadlines.now()
        doomed = verdict.dead_letter or entry.doomed
        body = RetryBody(*place, verdict.reason, now, max(now, due), tenant, key, doomed)
        answer: Pending[None] = Pending()
        entry.settling = Pending()

        def settle(done: Pending[None]) -> None:
            if done.error is not None or entry.void:
                _settled([entry])
                self._look_again(found, entry)
                if done.error is not None:
                    answer.fail(done.error)
                else:
                    answer.resolve(None)
                return
            entry.last_error = verdict.reason
            entry.doomed = entry.doomed or verdict.dead_letter
            if not leased and not entry.doomed:
                _settled([entry])
                self._look_again(found, entry)
                group.stir(group_partition.partition)
                answer.resolve(None)
                return
            entry.free_credit()
            if entry.is_spent:
                self.bury(found, entry).then(lambda _: answer.resolve(None))
                return
            entry.due = due
            if due > at:
                entry.state = State.WAITING
                self._deadlines.add(found, entry)
            else:
                group_partition.make_ready(entry)
            _settled([entry])
            group.stir(group_partition.partition)
            answer.resolve(None)

        self._held(lambda: self._broker_state.log(topic, GroupKind.RETRY, encode(body)), [entry], [keyed]).then(settle)
        return answer

    def _look_again(self, found: OpenMessage, entry: OpenDelivery) -> None:
        """Check a message again that did not change: it may have missed its deadline or its turn."""
        if entry.void:
            return
        if entry.state is State.READY:
            found.group_partition.make_ready(entry)
        else:
            self._deadlines.again(found, entry)

    def _held(
        self, log: Callable[[], Pending[None]], entries: Sequence[OpenDelivery], scopes: Sequence[KeyOwner | None]
    ) -> Pending[None]:
        """Log a frame. Until it is committed, no other owner gets the keys."""
        try:
            logged = log()
        except Exception:
            _settled(entries)
            raise
        keyed = [scope for scope in scopes if scope is not None]
        if keyed and not logged.settled:
            each(keyed, self._registry.settling)
            logged.then(lambda _: each(keyed, self._registry.settled))
        return logged

    # Dead letters

    def bury(self, found: OpenMessage, entry: OpenDelivery) -> Pending[None]:
        """Make a dead letter of a message without attempts left. The answer never fails: errors cause a retry."""
        if entry.settling is None:
            entry.settling = Pending()
        answer: Pending[None] = Pending()

        def settle(done: Pending[bool]) -> None:
            topic, group, group_partition = found
            if done.error is None:
                if done.result():
                    reason = "rejected" if entry.doomed else "max_attempts_reached"
                    dead = self._counters.dead_letters
                    dead[topic.name, reason] = dead.get((topic.name, reason), 0) + 1
                group_partition.close(entry)
                self._producer.note_progress(group_partition)
            elif not entry.void:
                entry.state = State.WAITING
                entry.due = self._deadlines.now()
                self._deadlines.add(found, entry)
            _settled([entry])
            group.stir(group_partition.partition)
            answer.resolve(None)

        run(self._bury(found.topic, found.group, found.group_partition, entry)).then(settle)
        return answer

    async def _bury(
        self, topic: BrokerTopic, group: ConsumerGroup, group_partition: GroupPartition, entry: OpenDelivery
    ) -> bool:
        """Return whether the message is a dead letter now; it is not if a seek came first."""
        message = await wait_for_message(self._engine, topic.log, entry.offset)
        if await _is_left_behind(group_partition, entry):
            return False
        if message is not None:
            note = DlqNote(
                topic.name,
                group_partition.partition,
                entry.offset,
                entry.attempts,
                entry.last_error,
                self._engine.time.wall(),
                group.name,
            )
            await self._producer.copy(DLQ + topic.name, topic.partitions, dead_letter(message, note))
        if not await _is_left_behind(group_partition, entry):
            body = DoneBody(group.name, group_partition.partition, entry.offset, entry.size, attempts=entry.attempts)
            await self._broker_state.log_done(topic, [body])
        return True


async def _is_left_behind(group_partition: GroupPartition, entry: OpenDelivery) -> bool:
    """Whether a seek has ended the delivery. A seek that is being logged is waited for."""
    while group_partition.moving is not None:
        await group_partition.moving
    return entry.void


def _fact(found: OpenMessage, entry: OpenDelivery, scope: KeyOwner | None) -> DoneBody:
    """Return the log entry of a done message; with a scope, it commits the key."""
    group, partition = found.group.name, found.group_partition.partition
    if scope is None:
        return DoneBody(group, partition, entry.offset, entry.size, attempts=entry.attempts)
    return DoneBody(group, partition, entry.offset, entry.size, scope.tenant, scope.key, entry.attempts)


def _settled(entries: Sequence[OpenDelivery]) -> None:
    """End `settling` for these messages, which share one Pending, and wake the calls that wait for it."""
    waiting = entries[0].settling
    for entry in entries:
        entry.settling = None
    if waiting is not None:
        waiting.resolve(None)
