"""What a worker holds: a job of a queue or a message of a group, and how it is kept, settled and given up."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from driftq.client.broker import AsyncBroker, Nack
from driftq.client.errors import ApiError, ConflictError, LeaseLostError
from driftq.client.messages import Delivery
from driftq.client.topics.topic import AsyncTopic
from driftq.client.workers.batched_settlement import Gathering, Raised
from driftq.model.v0_answers import Job

Item_co = TypeVar("Item_co", covariant=True)

_MS_PER_S = 1000
_BACKOFF_S, _BACKOFF_S_MAX = 1.0, 60.0
"""Of a job that failed: twice as long after every delivery. A message has its retry policy."""


class Decision(Exception):  # noqa: N818  # it is an answer, not a failure of anything
    """What a handler says about its message, by raising it or by returning it."""


class Retry(Decision):
    """Not this time: hand it out again, after so many seconds, or as its retry policy says."""

    def __init__(self, *, after: float | None = None, reason: str = "retry") -> None:
        super().__init__(reason)
        self.after = after


class DeadLetter(Decision):
    """Never: it goes to the dead letters, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class EffectKey(Struct, frozen=True):
    """The key under which the registry knows the effect of one message."""

    key: str
    tenant_id: str | None = None


class HeldItem(Protocol[Item_co]):
    """One item under a lease. Every call raises LeaseLostError when it is somebody else's."""

    @property
    def item(self) -> Item_co:
        """What the handler gets."""
        ...

    @property
    def work(self) -> EffectKey:
        """What it stands for."""
        ...

    @property
    def place(self) -> tuple[int, int]:
        """Which one it is, among those of its source."""
        ...

    def adopt(self, again: Any) -> None:
        """It was delivered again to the same owner: that delivery counts from here on."""
        ...

    def ack_then(self, settled: Callable[[BaseException | None], object]) -> None:
        """Ack it with others, and call `settled` when the server has answered, with what went wrong if anything did."""
        ...

    async def nack(self, reason: str, after_s: float | None) -> None:
        """It failed, and comes again."""
        ...

    async def release(self) -> None:
        """Let it go back, not worked on; called where it `may_return`."""
        ...

    async def give_up(self, reason: str) -> None:
        """It goes to the dead letters."""
        ...

    @property
    def may_return(self) -> bool:
        """Whether it may go back before a handler has seen it."""
        ...

    @property
    def ack_commits(self) -> bool:
        """Whether its ack commits the key of its work, without a result."""
        ...


class Membership:
    """How a worker settles the messages of its group: what finishes together goes in one request."""

    def __init__(self, broker: AsyncBroker) -> None:
        self.acks: Gathering[Delivery, ApiError | None] = Gathering(broker.ack_batch)
        self.nacks: Gathering[Nack, ApiError | None] = Gathering(broker.nack_batch)
        self.releases: Gathering[Delivery, ApiError | None] = Gathering(broker.release_batch)


class HeldMessage:
    """A message of a group."""

    def __init__(self, membership: Membership, delivery: Delivery) -> None:
        self._membership = membership
        self.item = delivery

    @property
    def work(self) -> EffectKey:
        """Its key, else its place."""
        envelope = self.item.envelope
        return EffectKey(envelope.idempotency_key or f"offset:{self.item.offset}", envelope.tenant_id or None)

    @property
    def place(self) -> tuple[int, int]:
        """Partition and offset."""
        return self.item.partition, self.item.offset

    def adopt(self, again: "HeldMessage") -> None:
        """The last delivery is the one that counts."""
        self.item = again.item

    def ack_then(self, settled: Callable[[BaseException | None], object]) -> None:
        """It is done. Messages that are done at the same time are acked by one request."""

        def answered(result: ApiError | Raised | None) -> None:
            settled(result.error if isinstance(result, Raised) else result)

        self._membership.acks.add(self.item, answered)

    async def nack(self, reason: str, after_s: float | None) -> None:
        """It comes again as its policy says, unless the handler knows better."""
        delay_ms = None if after_s is None else round(after_s * _MS_PER_S)
        _check(await self._membership.nacks.call(Nack(self.item, reason, delay_ms)))

    @property
    def may_return(self) -> bool:
        """Whether the message may go back: always, because that is not an attempt."""
        return True

    @property
    def ack_commits(self) -> bool:
        """Whether its ack commits the key of its work: where that is its own key (http-v1 §13.3)."""
        envelope = self.item.envelope
        return bool(envelope.idempotency_key) and envelope.dlq is None

    async def release(self) -> None:
        """Let the message go back at once; one that is not this worker's any more has."""
        _check(await self._membership.releases.call(self.item))

    async def give_up(self, reason: str) -> None:
        """It goes to the topic of dead letters."""
        _check(await self._membership.nacks.call(Nack(self.item, reason, dead_letter=True)))


def _check(error: ApiError | None) -> None:
    if error is not None:
        raise error


class Queue:
    """A queue as a worker knows it."""

    def __init__(
        self, topic: AsyncTopic, epoch: int, dead_letters: AsyncTopic | None, deliveries_max: int, owner: str
    ) -> None:
        self.topic = topic
        self.epoch = epoch
        self.dead_letters = dead_letters
        self.deliveries_max = deliveries_max
        """After this many deliveries the server gives a job up; 0 is no limit."""
        self.owner = owner
        self.acks: Gathering[Job, bool] = Gathering(self._ack)
        self.releases: Gathering[Job, bool] = Gathering(self._release)

    async def _ack(self, jobs: list[Job]) -> list[bool]:
        skipped = set((await self.topic.ack(jobs, node=self.owner)).skipped)
        return [job.seq not in skipped for job in jobs]

    async def _release(self, jobs: list[Job]) -> list[bool]:
        skipped = set((await self.topic.nack(jobs, node=self.owner)).skipped)
        return [job.seq not in skipped for job in jobs]


class HeldJob:
    """A job of a queue."""

    def __init__(self, queue: Queue, job: Job) -> None:
        self._queue = queue
        self.item = job

    @property
    def work(self) -> EffectKey:
        """Its place; a queue that is deleted and made again has other jobs."""
        return EffectKey(f"{self._queue.topic.name}:{self._queue.epoch}:{self.item.seq}")

    @property
    def place(self) -> tuple[int, int]:
        """The epoch of the queue, and the seq."""
        return self._queue.epoch, self.item.seq

    def adopt(self, again: "HeldJob") -> None:
        """The last lease is the one that counts."""
        self.item = again.item

    def ack_then(self, settled: Callable[[BaseException | None], object]) -> None:
        """It is done. Jobs that are done at the same time are acked by one request."""

        def answered(acked: bool | Raised) -> None:
            if isinstance(acked, Raised):
                settled(acked.error)
            else:
                settled(None if acked else self._lost())

        self._queue.acks.add(self.item, answered)

    @property
    def ack_commits(self) -> bool:
        """Whether its ack commits the key of its work: the key of a job is kept elsewhere."""
        return False

    @property
    def may_return(self) -> bool:
        """Whether the job can go back without being handled: one at its last delivery would be given up."""
        most = self._queue.deliveries_max
        return not most or self.item.deliveries < most

    async def nack(self, reason: str, after_s: float | None) -> None:
        """It is handed out again after a while."""
        backoff_s = min(_BACKOFF_S_MAX, _BACKOFF_S * (1 << min(self.item.deliveries - 1, 16)))
        delay_ms = round((backoff_s if after_s is None else after_s) * _MS_PER_S)
        self._check((await self._queue.topic.nack(self.item, delay_ms=delay_ms, node=self._queue.owner)).skipped)

    async def release(self) -> None:
        """Let the job go back at once. Jobs that go back at the same time do so by one request."""
        if not await self._queue.releases.call(self.item):
            raise self._lost()

    async def give_up(self, reason: str) -> None:
        """A copy is written to the queue's dead letters, once, as the server would; then the job is acked."""
        letters, job = self._queue.dead_letters, self.item
        name = self._queue.topic.name
        if letters is None:
            raise ConflictError(409, "no_dead_letter", f"queue {name} has no dead_letter topic; set one")
        facts = {"from": name, "deliveries": str(job.deliveries), "src_seq": str(job.seq), "reason": reason}
        meta = {**(job.meta or {}), **{f"$dead_letter_{fact}": value for fact, value in facts.items()}}
        await letters.append(job.data, tag=job.tag, meta=meta, idempotency_key=f"dead:{self.work.key}")
        if not await self._queue.acks.call(job):
            raise self._lost()

    def _check(self, skipped: list[int]) -> None:
        if skipped:
            raise self._lost()

    def _lost(self) -> LeaseLostError:
        return LeaseLostError(409, "lease_lost", f"job {self.item.seq} is not this worker's any more")
