"""Where a worker's items come from: a queue or a group; and where it is kept which of their effects have happened."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from driftq.client.broker import AsyncIdempotency
from driftq.client.client import AsyncClient
from driftq.client.consume import Delivery
from driftq.client.errors import ClientError, LeaseLostError, NotFoundError
from driftq.client.leases import Held, HeldJob, HeldMessage, Queue, Work
from driftq.client.retry import Repeat, may_retry
from driftq.model.answers import Job

Item_co = TypeVar("Item_co", covariant=True)

_log = logging.getLogger(__name__)

_IDLE_MS = 1000


class Source(Protocol[Item_co]):
    """Where work comes from."""

    effects: "Effects | None"
    quit_s: float
    """How long `taken` may need to end by itself once there is no more room."""
    rounds: int
    """How many rounds of jobs are taken: with 2, one waits while another is handled."""

    async def extend(self, held: list[Any], lease_ms: int) -> None:
        """Hold all of these longer. Raise ClientError."""
        ...

    def taken(self, room: Callable[[], Awaitable[int]], lease_ms: int) -> AsyncIterator[Held[Item_co]]:
        """What is taken, as there is room; ends when `room` says 0."""
        ...

    async def leave(self) -> None:
        """Make sure that what goes back after this is not given to this worker again. Never raises ClientError."""
        ...


class Effects:
    """Where it is kept which work is done."""

    def __init__(self, keys: AsyncIdempotency, topic: str, group: str, owner: str) -> None:
        self._keys = keys
        self._place = topic, group
        self._owner = owner

    async def begin(self, work: Work, lease_ms: int) -> bool:
        """Take it, or say that it is done."""
        begun = await self._keys.begin(
            *self._place, work.key, owner=self._owner, tenant_id=work.tenant_id, lease_ms=lease_ms
        )
        return begun.already_done

    async def renew(self, work: Work, lease_ms: int) -> None:
        """Keep it."""
        await self._keys.renew(*self._place, work.key, owner=self._owner, tenant_id=work.tenant_id, lease_ms=lease_ms)

    async def commit(self, work: Work, result: bytes, lease_ms: int) -> None:
        """It is done. A key that was lost meanwhile, as in a restart, is taken again if nobody else has it: the effect
        has happened, and is not to happen again.
        """
        try:
            await self._commit(work, result)
        except (LeaseLostError, NotFoundError):
            if not await self.begin(work, lease_ms):
                await self._commit(work, result)

    async def _commit(self, work: Work, result: bytes) -> None:
        await self._keys.commit(*self._place, work.key, owner=self._owner, tenant_id=work.tenant_id, result=result)

    async def fail(self, work: Work, error: str) -> None:
        """It is not. A key that cannot be reached lapses by itself."""
        with suppress(ClientError):
            await self._keys.fail(*self._place, work.key, owner=self._owner, tenant_id=work.tenant_id, error=error)


class GroupSource:
    """The messages of a group; the server keeps to as many as there are handlers."""

    quit_s = 0.0
    rounds = 1

    def __init__(self, client: AsyncClient, topic: str, group: str, owner: str, *, effects: bool) -> None:
        self._broker = client.broker
        self._place = topic, group
        self._owner = owner
        keys = client.broker.idempotency
        self.effects = Effects(keys, topic, group, owner) if effects else None

    async def taken(self, room: Callable[[], Awaitable[int]], lease_ms: int) -> AsyncIterator[Held[Delivery]]:
        """Messages as they come."""
        stream = self._broker.consume(
            *self._place, owner=self._owner, lease_ms=lease_ms, max_in_flight=await room() or 1
        )
        async with stream:
            async for delivery in stream:
                yield HeldMessage(self._broker, delivery)

    async def leave(self) -> None:
        """Do nothing: a message does not go back."""

    async def extend(self, held: list[HeldMessage], lease_ms: int) -> None:
        """Hold these longer."""
        failed: list[BaseException | None] = await asyncio.gather(
            *(one.extend(lease_ms) for one in held), return_exceptions=True
        )
        for error in failed:
            if error is not None:
                raise error


class QueueSource:
    """The jobs of a queue; claimed as there is room, and waited for on the queue's own log.

    A claim is never called off, for its jobs would be held by nobody who knows.
    """

    quit_s = 10.0
    rounds = 2

    def __init__(self, client: AsyncClient, name: str, owner: str, *, effects: str | None) -> None:
        self._client = client
        self._topic = client.topic(name)
        self._owner = owner
        self._effects_topic = effects
        self.effects = None if effects is None else Effects(client.broker.idempotency, effects, f"queue:{name}", owner)

    async def taken(self, room: Callable[[], Awaitable[int]], lease_ms: int) -> AsyncIterator[Held[Job]]:
        """Jobs as they come."""
        queue = await self._known()
        while count := await room():
            jobs = await self._claimed(count, lease_ms)
            for job in jobs:
                yield HeldJob(queue, job)
            if not jobs:
                await self._more()

    async def _known(self) -> Queue:
        state, manifest = await self._topic.info(touch=False), await self._topic.segments()
        name, most = state.config.dead_letter, state.config.max_deliveries
        if self._effects_topic is not None:
            await self._client.broker.create_topic(self._effects_topic)
        letters = None if name is None else self._client.topic(name)
        return Queue(self._topic, manifest.epoch, letters, most, self._owner)

    async def leave(self) -> None:
        """Do nothing: jobs are claimed one call at a time, and a worker that stops claims no more."""

    async def extend(self, held: list[HeldJob], lease_ms: int) -> None:
        """Hold these longer, in one request."""
        await self._topic.extend([one.item for one in held], lease_ms=lease_ms, node=self._owner)

    async def _claimed(self, count: int, lease_ms: int) -> list[Job]:
        """What can be had; nothing while the server is away, for whoever has seen it waits for it."""
        try:
            return (await self._topic.claim(count, lease_ms=lease_ms, node=self._owner)).claimed
        except ClientError as error:
            if not may_retry(error, Repeat.SAME):
                raise
            _log.info("no jobs can be claimed now: %s", error)
            await asyncio.sleep(_IDLE_MS / 1000)
            return []

    async def _more(self) -> None:
        """Until something is written, or for a while: a job that comes back writes nothing."""
        with suppress(ClientError):
            head = (await self._topic.info(touch=False)).head_seq
            await self._topic.diff(head, limit=1, wait_ms=_IDLE_MS)
