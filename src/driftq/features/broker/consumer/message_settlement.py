"""What becomes of a delivery: ack, nack, extension, expiry, dead letter (http-v1 §3.7, §3.8, §7 to §10).

Whatever ends or fails a delivery is logged first; until that is committed the message is `settling`, and whoever comes
meanwhile waits for it and then finds what is true. What cannot be logged has not happened: the message stays in flight.

A dead letter is copied first and marked done then: a crash between the two makes it again, and never loses it. A seek
between the two leaves the letter, and hands its message out again.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from driftq.engine.engine import Engine
from driftq.engine.write.change_log import forward
from driftq.errors import DriftQError, InvalidRequestError, NotOwnerError
from driftq.features.broker.consumer.deadlines import Agenda, Spot
from driftq.features.broker.consumer.retry_delay import delay_ms_of
from driftq.features.broker.producer.producer import MessageWriter
from driftq.features.broker.protocols import BrokerCounters, DeliveryKey, KeyOwner, Registry
from driftq.features.broker.state.broker_frames import DoneBody, GroupKind, RetryBody, encode
from driftq.features.broker.state.broker_state import Book, BrokerTopic
from driftq.features.broker.state.group import ConsumerGroup
from driftq.features.broker.state.group_partition import Lane, OpenDelivery, State
from driftq.features.broker.state.stored_messages import dead_letter, wait_for_message
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import DlqNote
from driftq.model.names import DLQ
from driftq.system.runtime import Pending, each, run


class SettlementVerdict(NamedTuple):
    """What a worker says of a message that failed."""

    reason: str
    delay_ms: int | None = None
    """When it is to be tried again, whatever its policy says."""
    dead_letter: bool = False
    """It is not to be tried again."""


class MessageSettler:
    """Ends deliveries."""

    def __init__(
        self,
        engine: Engine,
        settings: BrokerSettings,
        book: Book,
        agenda: Agenda,
        producer: MessageWriter,
        registry: Registry,
        counters: BrokerCounters,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._book = book
        self._agenda = agenda
        self._producer = producer
        self._registry = registry
        self._counters = counters

    # Calls

    def ack(self, place: DeliveryKey, owner: str) -> Pending[None]:
        """The message is done."""
        answer: Pending[None] = Pending()
        spot, entry = self._find(place)
        if entry is None:
            answer.resolve(None)
            return answer
        if (waiting := entry.settling or spot.lane.moving) is not None:
            waiting.then(lambda _: forward(lambda: self.ack(place, owner), answer))
            return answer
        self._check_owner(entry, owner)
        return self.finish(spot, [entry], commits=True)

    def ackable(self, spot: Spot, offset: int, owner: str) -> OpenDelivery | None:
        """Return the open message that this owner can ack at once, if it is one."""
        entry = spot.lane.open.get(offset)
        if entry is None or entry.settling is not None or spot.lane.moving is not None:
            return None
        return entry if entry.owner == owner and self._is_free(entry) else None

    def nack(self, place: DeliveryKey, owner: str, verdict: SettlementVerdict) -> Pending[None]:
        """The delivery failed."""
        spot, entry = self._find(place)
        if entry is None:
            raise InvalidRequestError("message is not in-flight")
        if (waiting := entry.settling or spot.lane.moving) is not None:
            answer: Pending[None] = Pending()
            waiting.then(lambda _: forward(lambda: self.nack(place, owner, verdict), answer))
            return answer
        if entry.owner != owner:
            raise NotOwnerError
        verdict = verdict._replace(reason=self._cut(verdict.reason.strip() or "nack"))
        return self._fail(spot, entry, verdict, self._agenda.now(), nacked=True)

    def release(self, place: DeliveryKey, owner: str) -> Pending[None]:
        """Give a delivery back that was not worked on: the message is ready at once, as if it had not been delivered.

        Nothing is logged, because nothing of the delivery was. One whose lease has ended stays as it is.
        """
        answer: Pending[None] = Pending()
        spot, entry = self._find(place)
        if entry is None:
            raise InvalidRequestError("message is not in-flight")
        if (waiting := entry.settling or spot.lane.moving) is not None:
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
            spot.lane.make_ready(entry)
            spot.group.stir(place.partition)
        answer.resolve(None)
        return answer

    def extend(self, place: DeliveryKey, owner: str, lease_ms: int) -> int:
        """Another deadline, also for a lease that has run out and nobody took; the answer is wall time."""
        if lease_ms <= 0:
            raise InvalidRequestError("invalid lease_ms")
        spot, entry = self._find(place)
        if entry is None or entry.settling is not None:
            raise InvalidRequestError("message is not in-flight")
        self._check_owner(entry, owner)
        lease_ms = min(lease_ms, self._settings.lease_ms_max)
        entry.state = State.LEASED
        entry.due = self._agenda.now() + lease_ms
        self._agenda.add(spot, entry)
        if entry.scope is not None and not self._is_committed(entry):  # work that is done is not taken up again
            self._registry.delivered(entry.scope, owner, entry.due, place.partition, place.offset)
        return self._engine.time.shown(entry.due)

    def _find(self, place: DeliveryKey) -> tuple[Spot, OpenDelivery | None]:
        """The open message that is meant; None when it is done. Raises InvalidRequestError."""
        topic = self._book.find(place.topic)
        if not 0 <= place.partition < topic.partitions:
            raise InvalidRequestError("partition out of range")
        group = topic.groups.get(place.group)
        lane = None if group is None else group.lanes.get(place.partition)
        if group is None or lane is None:
            raise InvalidRequestError("message is not in-flight")
        entry = lane.open.get(place.offset)
        if entry is None and (place.offset < topic.index.start or place.offset in lane.done):
            return Spot(topic, group, lane), None
        if entry is None or (entry.owner is None and entry.settling is None):
            raise InvalidRequestError("message is not in-flight")
        return Spot(topic, group, lane), entry

    def _check_owner(self, entry: OpenDelivery, owner: str) -> None:
        if entry.owner != owner or not self._is_free(entry):
            raise NotOwnerError

    def _is_free(self, entry: OpenDelivery) -> bool:
        """Does nobody but the owner of the delivery hold its key?"""
        scope = entry.scope
        return scope is None or self._registry.standing(scope, entry.stored_ts).holder in (None, entry.owner)

    def _is_committed(self, entry: OpenDelivery) -> bool:
        """Is its work done? Then a lease that ends is a worker's that did not come to its ack, and no failure."""
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

    def finish(self, spot: Spot, entries: Sequence[OpenDelivery], *, commits: bool = False) -> Pending[None]:
        """Log that messages of one lane are done, all or none, and let the group go on. `commits` their keys, too."""
        topic, group, lane = spot
        scopes = [entry.scope if commits else None for entry in entries]
        facts = [_fact(spot, entry, scope) for entry, scope in zip(entries, scopes, strict=True)]
        answer: Pending[None] = Pending()
        settling: Pending[None] = Pending()
        for entry in entries:
            entry.settling = settling

        def settle(done: Pending[None]) -> None:
            if done.error is None:
                for entry in entries:
                    lane.close(entry)
                self._producer.note_progress(lane)
            else:
                for entry, stream in held:
                    entry.take_credit(stream)
                for entry in entries:
                    self._look_again(spot, entry)
            _settled(entries)
            group.stir(lane.partition)
            if done.error is None:
                answer.resolve(None)
            else:
                answer.fail(done.error)

        logged = self._held(lambda: self._book.log_done(topic, facts), entries, scopes)
        held = [(entry, entry.stream) for entry in entries if entry.stream is not None]
        if held:
            # Their worker is through with them: the next messages need not wait for the disk.
            for entry, _ in held:
                entry.free_credit()
            group.stir(lane.partition)
        logged.then(settle)
        return answer

    def skip(self, spot: Spot, entry: OpenDelivery) -> None:
        """The work of its key is done, and so is the message."""
        self.finish(spot, [entry])
        self._counters.skips += 1

    def due(self, spot: Spot, entry: OpenDelivery) -> None:
        """A moment has passed: the end of a lease, or of a wait."""
        if entry.settling is not None or spot.lane.moving is not None:
            self._agenda.again(spot, entry)
        elif entry.state is State.LEASED:
            try:
                if self._is_committed(entry):
                    self.skip(spot, entry)
                else:
                    verdict = SettlementVerdict(entry.last_error or "ack_timeout")
                    self._fail(spot, entry, verdict, entry.due, nacked=False)
            except DriftQError:
                self._agenda.again(spot, entry)
        elif entry.state is State.WAITING:
            if entry.is_spent:
                self.bury(spot, entry)
            else:
                spot.lane.make_ready(entry)
                spot.group.stir(spot.lane.partition)

    def _fail(
        self, spot: Spot, entry: OpenDelivery, verdict: SettlementVerdict, at: int, *, nacked: bool
    ) -> Pending[None]:
        """A delivery failed at this moment: log that, then wait for the next one or make a dead letter of it.

        One that has failed already only gets another error, and becomes a dead letter if that is what is said of it.
        """
        topic, group, lane = spot
        leased = entry.state is State.LEASED
        due = at + delay_ms_of(self._settings, entry, verdict.delay_ms, nacked=nacked) if leased else entry.due
        now = self._agenda.now()
        # A key that somebody else works on by now is not this owner's to fail.
        keyed = entry.scope if nacked and self._is_free(entry) else None
        body = RetryBody(
            group.name,
            lane.partition,
            entry.offset,
            entry.attempts,
            verdict.reason,
            now,
            max(now, due),
            "" if keyed is None else keyed.tenant,
            "" if keyed is None else keyed.key,
            verdict.dead_letter or entry.doomed,
        )
        answer: Pending[None] = Pending()
        entry.settling = Pending()

        def settle(done: Pending[None]) -> None:
            if done.error is not None or entry.void:
                _settled([entry])
                self._look_again(spot, entry)
                if done.error is not None:
                    answer.fail(done.error)
                else:
                    answer.resolve(None)
                return
            entry.last_error = verdict.reason
            entry.doomed = entry.doomed or verdict.dead_letter
            if not leased and not entry.doomed:
                _settled([entry])
                self._look_again(spot, entry)
                group.stir(lane.partition)
                answer.resolve(None)
                return
            entry.free_credit()
            if entry.is_spent:
                self.bury(spot, entry).then(lambda _: answer.resolve(None))
                return
            entry.due = due
            if due > at:
                entry.state = State.WAITING
                self._agenda.add(spot, entry)
            else:
                lane.make_ready(entry)
            _settled([entry])
            group.stir(lane.partition)
            answer.resolve(None)

        self._held(lambda: self._book.log(topic, GroupKind.RETRY, encode(body)), [entry], [keyed]).then(settle)
        return answer

    def _look_again(self, spot: Spot, entry: OpenDelivery) -> None:
        """What stays as it was may have missed its moment, or its turn."""
        if entry.void:
            return
        if entry.state is State.READY:
            spot.lane.make_ready(entry)
        else:
            self._agenda.again(spot, entry)

    def _held(
        self, log: Callable[[], Pending[None]], entries: Sequence[OpenDelivery], scopes: Sequence[KeyOwner | None]
    ) -> Pending[None]:
        """Log a fact; while that is under way nobody else gets the keys."""
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

    def bury(self, spot: Spot, entry: OpenDelivery) -> Pending[None]:
        """Make a dead letter of a message that has failed as often as it may. Never fails: it is tried again."""
        if entry.settling is None:
            entry.settling = Pending()
        answer: Pending[None] = Pending()

        def settle(done: Pending[bool]) -> None:
            topic, group, lane = spot
            if done.error is None:
                if done.result():
                    reason = "rejected" if entry.doomed else "max_attempts_reached"
                    dead = self._counters.dead_letters
                    dead[topic.name, reason] = dead.get((topic.name, reason), 0) + 1
                lane.close(entry)
                self._producer.note_progress(lane)
            elif not entry.void:
                entry.state = State.WAITING
                entry.due = self._agenda.now()
                self._agenda.add(spot, entry)
            _settled([entry])
            group.stir(lane.partition)
            answer.resolve(None)

        run(self._bury(spot.topic, spot.group, spot.lane, entry)).then(settle)
        return answer

    async def _bury(self, topic: BrokerTopic, group: ConsumerGroup, lane: Lane, entry: OpenDelivery) -> bool:
        """Returns whether it is a dead letter now; where a seek came first it is not."""
        message = await wait_for_message(self._engine, topic.log, entry.offset)
        if await _is_left_behind(lane, entry):
            return False
        if message is not None:
            note = DlqNote(
                topic.name,
                lane.partition,
                entry.offset,
                entry.attempts,
                entry.last_error,
                self._engine.time.wall(),
                group.name,
            )
            await self._producer.copy(DLQ + topic.name, topic.partitions, dead_letter(message, note))
        if not await _is_left_behind(lane, entry):
            body = DoneBody(group.name, lane.partition, entry.offset, entry.size, attempts=entry.attempts)
            await self._book.log_done(topic, [body])
        return True


async def _is_left_behind(lane: Lane, entry: OpenDelivery) -> bool:
    """Has a seek ended the delivery? One that is on its way is waited for."""
    while lane.moving is not None:
        await lane.moving
    return entry.void


def _fact(spot: Spot, entry: OpenDelivery, scope: KeyOwner | None) -> DoneBody:
    """Return what is logged of a message that is done; with a scope, its key is committed."""
    group, partition = spot.group.name, spot.lane.partition
    if scope is None:
        return DoneBody(group, partition, entry.offset, entry.size, attempts=entry.attempts)
    return DoneBody(group, partition, entry.offset, entry.size, scope.tenant, scope.key, entry.attempts)


def _settled(entries: Sequence[OpenDelivery]) -> None:
    """Let those who wait for these messages look now. Entries that settle together share what is waited for."""
    waiting = entries[0].settling
    for entry in entries:
        entry.settling = None
    if waiting is not None:
        waiting.resolve(None)
