"""The idempotency registry (http-v1 §13): its two scopes, their log, and the operations for workers.

    begin → side effect → mark_success → ack

The broker reports produces, deliveries, acks and nacks (`protocols.Registry`), and logs their outcomes in its own
frames. Explicit calls of workers are logged here: one frame of kind 72 per outcome, in the log of its topic, applied
live and in replay by the same function. The checkpoint's section is `idempotency` (docs/formats/idempotency.md).

Invariants
- `mark_success` is answered when its frame is as durable as the topic's class demands; from then on it is COMMITTED.
- While the frame is being logged, the owner keeps the key, even after the end of the lease: no second commit.
"""

from typing import NamedTuple, Protocol

from msgspec import Struct, msgpack

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError, InvalidRequestError, PayloadTooLargeError
from driftq.features.broker.idempotency.consumed_keys import ConsumedKey, ConsumeOutcome, ConsumeScope, Status
from driftq.features.broker.idempotency.produced_keys import Id, KeyDecision, ProduceScope
from driftq.features.broker.protocols import DeliveryKey, KeyOwner, KeyStatus
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Message
from driftq.model.names import broker_topic
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending

KIND = 72
LEASE_MS = 30_000
"""The default lease in milliseconds."""
_LEASE_MS_MIN, _LEASE_MS_MAX = 250, 600_000
_RESULT_BYTES_MAX = 64 << 10
_SWEEP_PER_KEY = 4
"""How many expired keys each new key may remove. Otherwise keys that arrive faster than the ticks would stay."""


class BrokerGroups(Protocol):
    """The broker, as the registry uses it."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raise InvalidRequestError if the topic does not exist."""
        ...

    def is_done(self, topic: str, group: str, offset: int) -> bool:
        """Whether a message is done for a group."""
        ...

    def extend(self, place: DeliveryKey, owner: str, lease_ms: int) -> int:
        """Set a new deadline for a delivery. Raise a DriftQError if this owner does not hold it."""
        ...


class BeginResult(NamedTuple):
    """The answer to a begin."""

    already_done: bool
    prior_result: bytes | None
    lease_until: int | None


class _Section(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The registry's section of a checkpoint."""

    produced: list[tuple[Id, int, list[int]]]
    outcomes: list[tuple[int, ConsumeOutcome]]


class IdempotencyRegistry:
    """The produced keys and the outcomes of consumers."""

    name = "idempotency"
    kinds = frozenset((KIND,))

    def __init__(self, settings: BrokerSettings) -> None:
        self._error_bytes_max = settings.error_bytes_max
        self.produced = ProduceScope(settings.idem_ttl_ms)
        self.consumed = ConsumeScope(settings.idem_consume_ttl_ms, settings.idem_ttl_ms, self.produced)
        self._engine: Engine
        self._groups: BrokerGroups

    def bind(self, engine: Engine, groups: BrokerGroups) -> None:
        """Set the engine and the broker, before any other call."""
        self._engine = engine
        self._groups = groups
        self.consumed.is_done = groups.is_done

    # Calls from the broker

    def begin_produce(self, tenant: str, topic: str, key: str) -> int | None:
        """Reserve a key for a produce. Return the offset of its message if it is committed already, else None.
        Raise InvalidRequestError while it is pending.
        """
        now = self._engine.time.running()
        self._make_room(now)
        identity = (tenant, topic, key)
        decision = self.produced.begin(identity, now)
        if decision is KeyDecision.BUSY:
            raise InvalidRequestError("idempotency: key already in-flight")
        return max(self.produced.offsets(identity)) if decision is KeyDecision.DUPLICATE else None

    def end_produce(self, tenant: str, topic: str, key: str, ts: int | None, offset: int = -1) -> None:
        """End the produce that reserved a key: stored at `ts` and `offset`, or failed if `ts` is None."""
        if ts is None:
            self.produced.fail((tenant, topic, key))
        else:
            self.stored(tenant, topic, key, ts, offset)

    def stored(self, tenant: str, topic: str, key: str, ts: int, offset: int) -> None:
        """Record that a message with this key was stored with this timestamp and offset."""
        self.produced.stored((tenant, topic, key), self._engine.time.timeline.moment(ts), offset)

    def standing(self, scope: KeyOwner, stored_ts: int) -> KeyStatus:
        """Return the status of a key for a message with this timestamp."""
        if self.consumed.is_committed(scope, self._engine.time.timeline.moment(stored_ts)):
            return KeyStatus(committed=True)
        return KeyStatus(holder=self.consumed.holder(scope, self._engine.time.running()))

    def delivered(self, scope: KeyOwner, owner: str, lease_until: int, partition: int, offset: int) -> None:
        """Record that a message with this key was delivered to an owner, or that its lease was extended."""
        now = self._engine.time.running()
        self.consumed.deliver(scope, owner, lease_until, now, partition=partition, offset=offset)

    def released(self, scope: KeyOwner, owner: str, offset: int) -> None:
        """Release the key of a delivery that its owner gave back without working on it."""
        self.consumed.release(scope, owner, offset)

    def settling(self, scope: KeyOwner) -> None:
        """Record that an outcome is being logged."""
        self.consumed.settle(scope)

    def settled(self, scope: KeyOwner) -> None:
        """Record that an outcome was logged, or could not be."""
        self.consumed.settled(scope)

    def voided(self, topic: str, group: str) -> None:
        """End all leases of a group."""
        self.consumed.void(topic, group)

    def committed(self, scope: KeyOwner, ts: int) -> None:
        """Record that a message with this key was acked."""
        self.consumed.commit(scope, ts)

    def failed(self, scope: KeyOwner, reason: str, ts: int) -> None:
        """Record that a message with this key was nacked."""
        self.consumed.fail(scope, ts, reason)

    def sweep(self) -> None:
        """Drop some of the entries whose window is over."""
        now = self._engine.time.running()
        self.consumed.sweep(now)
        self.produced.sweep(now)

    def _make_room(self, now: int) -> None:
        self.consumed.sweep(now, _SWEEP_PER_KEY)
        self.produced.sweep(now, _SWEEP_PER_KEY)

    # Calls from workers, by message

    def begin(self, topic: str, group: str, msg: Message, owner: str, lease_ms: int = LEASE_MS) -> BeginResult:
        """Lease a message's key, unless its work is done already. Raise LeaseHeldError, InvalidRequestError."""
        return self.begin_key(scope_of(topic, group, msg), owner, lease_ms)

    def renew(self, topic: str, group: str, msg: Message, owner: str, lease_ms: int = LEASE_MS) -> int:
        """Extend the lease; the answer is its new end. Raise KeyNotFoundError, LeaseHeldError, KeyLeaseLostError."""
        return self.renew_key(scope_of(topic, group, msg), owner, lease_ms)

    def mark_success(self, topic: str, group: str, msg: Message, owner: str, result: bytes = b"") -> Pending[None]:
        """Commit the work. Raise KeyNotFoundError, LeaseHeldError, KeyLeaseLostError, PayloadTooLargeError."""
        return self.commit_key(scope_of(topic, group, msg), owner, result)

    def mark_failure(self, topic: str, group: str, msg: Message, owner: str, cause: str) -> Pending[None]:
        """Record that the work failed. Raise KeyNotFoundError, LeaseHeldError, KeyLeaseLostError."""
        return self.fail_key(scope_of(topic, group, msg), owner, cause)

    def check(self, topic: str, group: str, msg: Message) -> Status | None:
        """Return the status of the work, or None."""
        entry = self.entry(scope_of(topic, group, msg))
        return None if entry is None else entry.status

    # Calls from HTTP handlers, by key

    def begin_key(self, scope: KeyOwner, owner: str, lease_ms: int) -> BeginResult:
        """Lease a key, unless its work is done already."""
        self._check(scope, lease_ms)
        now = self._engine.time.running()
        self._make_room(now)
        entry = self.consumed.begin(scope, owner, now + lease_ms, now)
        if entry.status is Status.COMMITTED:
            return BeginResult(True, entry.result, None)
        return BeginResult(False, None, self._engine.time.shown(entry.lease_until))

    def renew_key(self, scope: KeyOwner, owner: str, lease_ms: int) -> int:
        """Extend the lease of a key, and of its delivery. Return the new end."""
        self._check(scope, lease_ms)
        now = self._engine.time.running()
        entry = self.consumed.owned(scope, owner, now)
        if entry.offset >= 0:
            try:
                self._groups.extend(
                    DeliveryKey(scope.topic, scope.group, entry.partition, entry.offset), owner, lease_ms
                )
            except DriftQError:
                entry.offset = -1  # the delivery is settled or has another owner: extend only the key
        entry.lease_until, entry.updated_at = now + lease_ms, now
        return self._engine.time.shown(entry.lease_until)

    def commit_key(self, scope: KeyOwner, owner: str, result: bytes = b"") -> Pending[None]:
        """Commit the work of a key, with an optional result."""
        if len(result) > _RESULT_BYTES_MAX:
            raise PayloadTooLargeError(f"result is {len(result)} bytes; the limit is {_RESULT_BYTES_MAX}")
        self._groups.partitions(scope.topic)
        found = self.entry(scope)
        if found is not None and found.status is Status.COMMITTED:
            answer: Pending[None] = Pending()
            answer.resolve(None)
            return answer
        return self._log(scope, owner, committed=True, result=result, error="")

    def fail_key(self, scope: KeyOwner, owner: str, error: str = "") -> Pending[None]:
        """Record that the work of a key failed."""
        self._groups.partitions(scope.topic)
        cut = error.encode()[: self._error_bytes_max].decode(errors="ignore")
        return self._log(scope, owner, committed=False, result=b"", error=cut)

    def entry(self, scope: KeyOwner) -> ConsumedKey | None:
        """Return the entry of a key, or None."""
        return self.consumed.find(scope, self._engine.time.running())

    def shown(self, moment: int) -> int:
        """Return the time of day of a moment in an entry; 0 if the moment is 0."""
        return self._engine.time.shown(moment) if moment else 0

    def _check(self, scope: KeyOwner, lease_ms: int) -> None:
        if not _LEASE_MS_MIN <= lease_ms <= _LEASE_MS_MAX:
            raise InvalidRequestError("idempotency: invalid lease duration")
        self._groups.partitions(scope.topic)

    def _log(self, scope: KeyOwner, owner: str, *, committed: bool, result: bytes, error: str) -> Pending[None]:
        entry = self.consumed.owned(scope, owner, self._engine.time.running())
        outcome = self.consumed.outcome(scope, committed=committed, owner=owner, result=result, error=error)
        logged = self.record(outcome)
        entry.settling += 1
        logged.then(lambda _: self.consumed.settled(scope))
        return logged

    def record(self, outcome: ConsumeOutcome) -> Pending[None]:
        """Log an outcome and apply it at its commit point. Outcomes of an `ephemeral` topic are
        applied without a log.
        """
        topic = self._engine.topic(broker_topic(outcome.topic))
        if not _lasts(topic):
            self._engine.check_open()
            applied: Pending[None] = Pending()
            self.consumed.apply(outcome, self._engine.time.running())
            applied.resolve(None)
            return applied
        sync = topic.durability is Durability.FSYNC
        return self._engine.log(topic, KIND, msgpack.encode(outcome), self, sync=sync, in_order=False)

    # Calls from the engine

    def apply(self, _: int, topic: Topic, ts: int, body: bytes) -> None:
        """Apply a logged outcome to its entry."""
        self.consumed.apply(msgpack.decode(body, type=ConsumeOutcome), topic.timeline.moment(ts))

    def capture(self) -> bytes:
        """Return the produced keys and outcomes of all topics that are not `ephemeral`."""
        logs = self._engine.catalog.by_name
        lasting: dict[str, bool] = {}

        def lasts(topic: str) -> bool:
            if topic not in lasting:
                log = logs.get(broker_topic(topic))
                lasting[topic] = log is not None and _lasts(log)
            return lasting[topic]

        produced = [entry for entry in self.produced.capture() if lasts(entry[0][1])]
        outcomes = [entry for entry in self.consumed.capture() if lasts(entry[1].topic)]
        return msgpack.encode(_Section(produced, outcomes))

    def restore(self, section: bytes) -> None:
        """Restore keys and outcomes from a checkpoint section."""
        found = msgpack.decode(section, type=_Section)
        self.produced.restore(found.produced)
        for ts, outcome in found.outcomes:
            self.consumed.apply(outcome, ts)

    def forget(self, topic: Topic) -> None:
        """Do nothing: topics of the broker are never deleted."""


def _lasts(topic: Topic) -> bool:
    return topic.durability is not Durability.EPHEMERAL


def scope_of(topic: str, group: str, message: Message) -> KeyOwner:
    """Return the owner of a message's key for a group. Raise InvalidRequestError if the message has no key."""
    envelope = message.envelope
    if envelope is None or not envelope.idempotency_key:
        raise InvalidRequestError("idempotency: the message has no idempotency key")
    return KeyOwner(envelope.tenant_id, topic, group, envelope.idempotency_key)
