"""The sources of a worker's items, a queue or a group, and the record of the effects that have happened."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from driftq.client.client import AsyncClient
from driftq.client.errors import ApiError, ClientError, LeaseLostError, NotFoundError
from driftq.client.idempotency import AsyncIdempotency, Begun, Key
from driftq.client.messages import Delivery, MessageStream
from driftq.client.transport.retry import Repeat, may_retry
from driftq.client.workers.batched_settlement import Gathering
from driftq.client.workers.held_work import EffectKey, HeldItem, HeldJob, HeldMessage, Membership, Queue
from driftq.model.v0_answers import Job
from driftq.system.entropy import SystemEntropy

T = TypeVar("T")
Item_co = TypeVar("Item_co", covariant=True)

_log = logging.getLogger(__name__)

_WAIT_MS = 10_000
"""How long a claim waits at the server for a job."""
_AWAY_S, _UNWAITED_S = 1.0, 0.1
"""Pauses before the next claim: after a failed claim, and after one that the server answered without waiting."""
_LEAVE_S, _LEAVE_AGAIN_S = 2.0, 0.05
_ENTRIES_MAX = 1000


class WorkerSource(Protocol[Item_co]):
    """Where a worker gets its items from."""

    effects: "Effects | None"
    quit_s: float
    """How long `taken` may take to end by itself after `leave`."""
    rounds: int
    """How many items per slot are taken: with 2, one waits while another is handled."""

    async def extend(self, held: list[Any], lease_ms: int) -> None:
        """Extend the leases of all these items. Raise ClientError."""
        ...

    def taken(self, room: Callable[[], Awaitable[int]], lease_ms: int) -> AsyncIterator[HeldItem[Item_co]]:
        """Yield items as there is room for them; end when `room` returns 0."""
        ...

    def hurry(self) -> None:
        """Send the gathered acks at once: no handler is running."""
        ...

    async def leave(self) -> None:
        """Make sure that items given back after this are not delivered to this worker. Never raise ClientError."""
        ...


class Effects:
    """The idempotency keys of a worker's effects. Calls that are made at the same time share a request."""

    def __init__(self, keys: AsyncIdempotency, topic: str, group: str, owner: str) -> None:
        self._keys = keys
        self._place = topic, group
        self._owner = owner
        self._lease_ms = 0
        self._begins: Gathering[Key, Begun | ApiError] = Gathering(self._begin)
        self._commits: Gathering[Key, Begun | ApiError] = Gathering(
            partial(keys.commit_batch, topic, group, owner=owner)
        )
        self._fails: Gathering[Key, Begun | ApiError] = Gathering(partial(keys.fail_batch, topic, group, owner=owner))

    async def _begin(self, keys: list[Key]) -> list[Begun | ApiError]:
        return await self._keys.begin_batch(*self._place, keys, owner=self._owner, lease_ms=self._lease_ms)

    async def begin(self, work: EffectKey, lease_ms: int) -> bool:
        """Take the lease of a key, unless its work is done; return whether it is. All keys have the same `lease_ms`."""
        self._lease_ms = lease_ms
        return _checked(await self._begins.call(Key(work.key, work.tenant_id))).already_done

    async def renew(self, works: list[EffectKey], lease_ms: int) -> None:
        """Extend the leases of these keys, 1000 per request. Raise ClientError."""
        for some in _split([Key(work.key, work.tenant_id) for work in works]):
            for renewed in await self._keys.renew_batch(*self._place, some, owner=self._owner, lease_ms=lease_ms):
                if isinstance(renewed, ApiError):  # as for a key that is being committed at this moment
                    _log.info("the key of an effect could not be renewed: %s", renewed)

    async def commit(self, work: EffectKey, result: bytes, lease_ms: int) -> None:
        """Record that the effect has happened.

        If the lease of the key was lost, as in a restart, take it again unless another owner holds it: the effect has
        happened, and must not be repeated.
        """
        key = Key(work.key, work.tenant_id, result)
        try:
            _checked(await self._commits.call(key))
        except (LeaseLostError, NotFoundError):
            if not await self.begin(work, lease_ms):
                _checked(await self._commits.call(key))

    async def fail(self, work: EffectKey, error: str) -> None:
        """Record that the work failed. If that call fails, the lease of the key expires by itself."""
        with suppress(ClientError):
            await self._fails.call(Key(work.key, work.tenant_id, error=error))


def _split(items: list[T]) -> Iterator[list[T]]:
    """Return the items in lists of at most 1000, the limit of one request."""
    return (items[at : at + _ENTRIES_MAX] for at in range(0, len(items), _ENTRIES_MAX))


def _checked(found: Begun | ApiError) -> Begun:
    if isinstance(found, ApiError):
        raise found
    return found


class GroupSource:
    """The messages of a group, which the server pushes: up to two per slot, one of which waits.

    To leave, the worker asks the server to end the stream and reads it to its end. So it knows all messages that were
    delivered, and handles them or gives them back.
    """

    quit_s = 2.0
    rounds = 2

    def __init__(self, client: AsyncClient, topic: str, group: str, owner: str, *, effects: bool) -> None:
        self._broker = client.broker
        self._place = topic, group
        self._owner = owner
        self._membership = Membership(client.broker)
        self._line: MessageStream | None = None
        self._stream = SystemEntropy().token(8).hex()
        self._early = False
        keys = client.broker.idempotency
        self.effects = Effects(keys, topic, group, owner) if effects else None

    async def taken(self, room: Callable[[], Awaitable[int]], lease_ms: int) -> AsyncIterator[HeldItem[Delivery]]:
        """Yield the messages that the server pushes, at most as many in flight as `room()` returns at the start.

        Ends if that is 0, or when the stream ends.
        """
        credit = await room()
        if not credit:
            return
        line = self._line = MessageStream(
            *self._place, self._owner, lease_ms=lease_ms, max_in_flight=credit, stream=self._stream
        )
        async with self._broker.messages_of(line) as stream:
            async for delivery in stream:
                yield HeldMessage(self._membership, delivery)
                if self._early:  # `leave` was called while the stream was being opened
                    await self.leave()

    def hurry(self) -> None:
        """Send the gathered acks at once."""
        self._membership.acks.hurry()

    async def leave(self) -> None:
        """Ask the server to end the stream. Never raise ClientError."""
        if self._line is None:
            return
        self._line.leave()
        try:
            async with asyncio.timeout(self.quit_s):
                ended = await self._broker.leave(*self._place, self._stream, owner=self._owner)
            self._early = not ended
        except (ClientError, TimeoutError) as error:
            _log.warning("the server did not end the stream of this worker and may still deliver to it: %s", error)

    async def extend(self, held: list[HeldMessage], lease_ms: int) -> None:
        """Extend the leases of these messages, 1000 per request. Raise ClientError."""
        for some in _split(held):
            for extended in await self._broker.extend_batch([one.item for one in some], lease_ms=lease_ms):
                if isinstance(extended, ApiError):  # as for a message that is being acked at this moment
                    _log.info("the lease of a message could not be extended: %s", extended)


class QueueSource:
    """The jobs of a queue, taken by claims that wait at the server until there is a job.

    A claim is never cancelled, because the worker would hold its jobs without knowing them. To leave, the worker asks
    the server to answer the claim.
    """

    quit_s = 10.0
    rounds = 2

    def __init__(self, client: AsyncClient, name: str, owner: str, *, effects: str | None) -> None:
        self._client = client
        self._topic = client.topic(name)
        self._owner = owner
        self._effects_topic = effects
        self._answered, self._leaving = asyncio.Event(), asyncio.Event()
        self._answered.set()
        self.effects = None if effects is None else Effects(client.broker.idempotency, effects, f"queue:{name}", owner)

    async def taken(self, room: Callable[[], Awaitable[int]], lease_ms: int) -> AsyncIterator[HeldItem[Job]]:
        """Yield jobs as they arrive."""
        queue = await self._known()
        while count := await room():
            for job in await self._claimed(count, lease_ms):
                yield HeldJob(queue, job)

    async def _known(self) -> Queue:
        state, manifest = await self._topic.info(touch=False), await self._topic.segments()
        name, most = state.config.dead_letter, state.config.max_deliveries
        if self._effects_topic is not None:
            await self._client.broker.create_topic(self._effects_topic)
        letters = None if name is None else self._client.topic(name)
        return Queue(self._topic, manifest.epoch, letters, most, self._owner)

    def hurry(self) -> None:
        """Do nothing: the next claim is under way, and its jobs can be acked together with these."""

    async def leave(self) -> None:
        """Ask the server to answer the waiting claim. Never raise ClientError."""
        self._leaving.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                while not self._answered.is_set():
                    with suppress(ClientError):
                        await self._topic.leave(node=self._owner)
                    # A claim may reach the server after the call that should end it; then the next call ends it.
                    await _set_within(self._answered, _LEAVE_AGAIN_S)

    async def extend(self, held: list[HeldJob], lease_ms: int) -> None:
        """Extend the leases of these jobs, in one request."""
        await self._topic.extend([one.item for one in held], lease_ms=lease_ms, node=self._owner)

    async def _claimed(self, count: int, lease_ms: int) -> list[Job]:
        """Claim up to `count` jobs; return none while the server cannot be reached, because it may come back."""
        now = asyncio.get_running_loop().time
        began = now()
        pause_s = _UNWAITED_S
        self._answered.clear()
        try:
            jobs = (await self._topic.claim(count, lease_ms=lease_ms, node=self._owner, wait_ms=_WAIT_MS)).claimed
        except ClientError as error:
            if not may_retry(error, Repeat.SAME):
                raise
            _log.info("jobs cannot be claimed at the moment: %s", error)
            jobs, pause_s = [], _AWAY_S
        finally:
            self._answered.set()
        # A server that ignores `wait_ms` answers at once; without a pause the worker would ask in a loop.
        if not jobs and now() - began < _WAIT_MS / 2000:
            await _set_within(self._leaving, pause_s)
        return jobs


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event for at most this many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
