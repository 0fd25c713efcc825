"""The items that a worker holds, jobs of a queue or messages of a group, and the calls that settle them."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from driftq.client.broker import AsyncBroker, Nack
from driftq.client.errors import ApiError, ConflictError, LeaseLostError
from driftq.client.messages import Delivery
from driftq.client.topics.topic import AsyncTopic
from driftq.client.workers.batched_settlement import Gathering, Raised
from driftq.model.units import MS_PER_S
from driftq.model.v0_answers import Job, NackAnswer

Item_co = TypeVar("Item_co", covariant=True)

_BACKOFF_S, _BACKOFF_S_MAX = 1.0, 60.0
"""Delay before a failed job is retried; it doubles with every delivery. A message has a retry policy instead."""


class Decision(Exception):  # noqa: N818  # it is a decision, not an error
    """The decision of a handler about its item, which it raises or returns."""


class Retry(Decision):
    """Deliver the item again: after `after` seconds, or by its retry policy."""

    def __init__(self, *, after: float | None = None, reason: str = "retry") -> None:
        super().__init__(reason)
        self.after = after


class DeadLetter(Decision):
    """Do not retry: move the item to the dead letters, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class EffectKey(Struct, frozen=True):
    """The idempotency key of the effect of one item."""

    key: str
    tenant_id: str | None = None


class HeldItem(Protocol[Item_co]):
    """One item under a lease. Every call raises LeaseLostError if this worker no longer holds it."""

    @property
    def item(self) -> Item_co:
        """Return the job or delivery that the handler gets."""
        ...

    @property
    def work(self) -> EffectKey:
        """Return the key under which the effect of this item is counted once."""
        ...

    @property
    def place(self) -> tuple[int, int]:
        """Return the position of the item, unique in its source."""
        ...

    def adopt(self, again: Any) -> None:
        """Replace the delivery by a newer one of the same item to the same owner."""
        ...

    def ack_then(self, settled: Callable[[BaseException | None], object]) -> None:
        """Ack the item, together with others; then call `settled` with None or the error."""
        ...

    async def nack(self, reason: str, after_s: float | None) -> None:
        """Report a failure, so that the item is delivered again after `after_s` seconds or its default delay."""
        ...

    async def release(self) -> None:
        """Give the item back without having worked on it; only called if `may_return`."""
        ...

    async def give_up(self, reason: str) -> None:
        """Move the item to the dead letters, with the reason."""
        ...

    @property
    def may_return(self) -> bool:
        """Whether the item may be given back without running its handler."""
        ...

    @property
    def ack_commits(self) -> bool:
        """Whether an ack of the item also commits the key of its effect, without a result."""
        ...


class Membership:
    """Settles the messages of one worker of a group; messages that finish together share a request."""

    def __init__(self, broker: AsyncBroker) -> None:
        self.acks: Gathering[Delivery, ApiError | None] = Gathering(broker.ack_batch)
        self.nacks: Gathering[Nack, ApiError | None] = Gathering(broker.nack_batch)
        self.releases: Gathering[Delivery, ApiError | None] = Gathering(broker.release_batch)


class HeldMessage:
    """A message of a group, held by this worker."""

    def __init__(self, membership: Membership, delivery: Delivery) -> None:
        self._membership = membership
        self.item = delivery

    @property
    def work(self) -> EffectKey:
        """Return the idempotency key of the message, or a key made of its offset."""
        envelope = self.item.envelope
        return EffectKey(envelope.idempotency_key or f"offset:{self.item.offset}", envelope.tenant_id or None)

    @property
    def place(self) -> tuple[int, int]:
        """Return the partition and the offset."""
        return self.item.partition, self.item.offset

    def adopt(self, again: "HeldMessage") -> None:
        """Replace the delivery by a newer one of the same message."""
        self.item = again.item

    def ack_then(self, settled: Callable[[BaseException | None], object]) -> None:
        """Ack the message; messages that finish at the same time are acked by one request."""

        def answered(result: ApiError | Raised | None) -> None:
            settled(result.error if isinstance(result, Raised) else result)

        self._membership.acks.add(self.item, answered)

    async def nack(self, reason: str, after_s: float | None) -> None:
        """Report a failure: the message is delivered again after `after_s`, or by its retry policy."""
        delay_ms = None if after_s is None else round(after_s * MS_PER_S)
        _check(await self._membership.nacks.call(Nack(self.item, reason, delay_ms)))

    @property
    def may_return(self) -> bool:
        """Return True: giving a message back does not count as an attempt."""
        return True

    @property
    def ack_commits(self) -> bool:
        """Whether the ack commits the key of the effect: if the message has its own key (http-v1 §13.3)."""
        envelope = self.item.envelope
        return bool(envelope.idempotency_key) and envelope.dlq is None

    async def release(self) -> None:
        """Give the message back, so that it is delivered again at once. Raise LeaseLostError if it is not held."""
        _check(await self._membership.releases.call(self.item))

    async def give_up(self, reason: str) -> None:
        """Move the message to the dead-letter topic, with the reason."""
        _check(await self._membership.nacks.call(Nack(self.item, reason, dead_letter=True)))


def _check(error: ApiError | None) -> None:
    if error is not None:
        raise error


class JobNack(NamedTuple):
    """A job that is given back, to be handed out again after a delay."""

    job: Job
    delay_ms: int


class Queue:
    """The queue of one worker, and the settings that the worker needs."""

    def __init__(
        self, topic: AsyncTopic, epoch: int, dead_letters: AsyncTopic | None, deliveries_max: int, owner: str
    ) -> None:
        self.topic = topic
        self.epoch = epoch
        self.dead_letters = dead_letters
        self.deliveries_max = deliveries_max
        """After this many deliveries the server moves a job to the dead letters; 0 means no limit."""
        self.owner = owner
        self.acks: Gathering[Job, bool] = Gathering(self._ack)
        self.nacks: Gathering[JobNack, NackAnswer | BaseException] = Gathering(self._nack)

    async def _ack(self, jobs: list[Job]) -> list[bool]:
        skipped = set((await self.topic.ack(jobs, node=self.owner)).skipped)
        return [job.seq not in skipped for job in jobs]

    async def _nack(self, nacks: list[JobNack]) -> list[NackAnswer | BaseException]:
        """Nack jobs, with one request for all that have the same delay. Return the answer or the error of each."""
        by_delay: dict[int, list[Job]] = {}
        for one in nacks:
            by_delay.setdefault(one.delay_ms, []).append(one.job)
        calls = [self.topic.nack(jobs, delay_ms=delay_ms, node=self.owner) for delay_ms, jobs in by_delay.items()]
        answers = dict(zip(by_delay, await asyncio.gather(*calls, return_exceptions=True), strict=True))
        return [answers[one.delay_ms] for one in nacks]


class HeldJob:
    """A job of a queue, held by this worker."""

    def __init__(self, queue: Queue, job: Job) -> None:
        self._queue = queue
        self.item = job

    @property
    def work(self) -> EffectKey:
        """Return a key made of queue, epoch and seq; the epoch differs after the queue is deleted and created again."""
        return EffectKey(f"{self._queue.topic.name}:{self._queue.epoch}:{self.item.seq}")

    @property
    def place(self) -> tuple[int, int]:
        """Return the epoch of the queue and the seq of the job."""
        return self._queue.epoch, self.item.seq

    def adopt(self, again: "HeldJob") -> None:
        """Replace the lease by a newer one of the same job."""
        self.item = again.item

    def ack_then(self, settled: Callable[[BaseException | None], object]) -> None:
        """Ack the job; jobs that finish at the same time are acked by one request."""

        def answered(acked: bool | Raised) -> None:
            if isinstance(acked, Raised):
                settled(acked.error)
            else:
                settled(None if acked else self._lost())

        self._queue.acks.add(self.item, answered)

    @property
    def ack_commits(self) -> bool:
        """Return False: the key of a job is in a topic of the broker, not in its queue."""
        return False

    @property
    def may_return(self) -> bool:
        """Whether the job has deliveries left: otherwise the server would move it to the dead letters."""
        most = self._queue.deliveries_max
        return not most or self.item.deliveries < most

    async def nack(self, reason: str, after_s: float | None) -> None:
        """Give the job back; it is handed out again after `after_s` seconds, or after a delay that grows.

        Jobs that are given back at the same time with the same delay share a request.
        """
        backoff_s = min(_BACKOFF_S_MAX, _BACKOFF_S * (1 << min(self.item.deliveries - 1, 16)))
        delay_ms = round((backoff_s if after_s is None else after_s) * MS_PER_S)
        answer = await self._queue.nacks.call(JobNack(self.item, delay_ms))
        if isinstance(answer, BaseException):
            raise answer
        if self.item.seq in answer.skipped:
            raise self._lost()

    async def release(self) -> None:
        """Give the job back, to be handed out at once."""
        await self.nack("", 0)

    async def give_up(self, reason: str) -> None:
        """Write a copy to the dead-letter topic of the queue, as the server does, then ack the job.

        The copy has an idempotency key, so a retry does not write it twice.
        """
        letters, job = self._queue.dead_letters, self.item
        name = self._queue.topic.name
        if letters is None:
            raise ConflictError(
                409, "no_dead_letter", f"queue {name!r} has no dead-letter topic; set one with update(dead_letter=…)"
            )
        facts = {"from": name, "deliveries": str(job.deliveries), "src_seq": str(job.seq), "reason": reason}
        meta = {**(job.meta or {}), **{f"$dead_letter_{fact}": value for fact, value in facts.items()}}
        await letters.append(job.data, tag=job.tag, meta=meta, idempotency_key=f"dead:{self.work.key}")
        if not await self._queue.acks.call(job):
            raise self._lost()

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(409, "lease_lost", f"this worker no longer holds the lease of job {self.item.seq}")
