"""Plays the story on a server through the SDK. Agents are a consumer group; usage records and e-mails go to /v0.

    roots → agents.steps (broker, labelled by the hook) → workers: usage → topic, next steps → broker, e-mail → queue
    usage ── one router of /v0 per tenant ──→ usage.<tenant>

Invariant: a step produces its children before it is acked, so no work is left exactly when no group has lag.
"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from driftq.cli.demo.story import TENANTS, StoryStep
from driftq.client import AsyncClient, AsyncWorker, DeadLetter, Delivery, Job, RedriveFilter, Retry
from driftq.errors import DriftQError
from driftq.system.clock import SystemClock

STEPS = "agents.steps"
AGENTS = "agents"
USAGE = "usage"
MAILS = "emails"
TENANT_USAGE = tuple(f"{USAGE}.{tenant}" for tenant in TENANTS)

_BROWSER_DOWN = "the browser is down"
_LOOK_S = 0.2
_PATIENCE_S = 120.0


class DemoError(DriftQError):
    """Raised when the demo's workload does not finish in time."""

    code = "demo_failed"


class Played(Struct, frozen=True):
    """Totals of one play, counted by the workers."""

    play: str
    runs: int
    seconds: float
    handled: int
    retried: int
    failed: int
    given_up: int
    redriven: int
    emails: int

    def run_ids(self) -> list[str]:
        """Return the ids of the runs in the order they started."""
        return [StoryStep(self.play, number, "plan").run_id for number in range(self.runs)]


class _Agents:
    """Handlers of the workers, and the state of the one tool that can be down."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.browser_works = False

    async def work(self, delivery: Delivery) -> None:
        """Handle one step of a run: append its usage, then produce the next steps or push the e-mail."""
        told = delivery.json()  # raises for a broken body, which ends as a dead letter
        step = StoryStep(told["play"], told["run"], told["step"], delivery.envelope.parent_step_id)
        if step.breaks_a_rule:
            raise DeadLetter("this step of the demo breaks a rule: its answer would contain another tenant's data")
        if step.needs_browser and not self.browser_works:
            raise Retry(reason=_BROWSER_DOWN)
        failure = step.failure(delivery.attempts)
        if failure is not None:
            raise Retry(reason=failure)
        await self._client.topic(USAGE).append(step.usage(), tag=step.tenant, idempotency_key=_key(delivery))
        children = step.children()
        if children:
            await self._client.broker.produce_batch(STEPS, [child.message() for child in children])
        elif step.name == "deliver":
            mail = {"to": f"someone@{step.tenant}.example", "run": step.run_id}
            await self._client.topic(MAILS).push(mail, tag=step.tenant, idempotency_key=_key(delivery))

    async def send(self, job: Job) -> None:
        """Accept one e-mail and send nothing."""


def _key(delivery: Delivery) -> str:
    return delivery.envelope.idempotency_key


async def play(url: str, name: str, runs: int) -> Played:
    """Play `runs` runs to their end. Raise DemoError, KeyboardInterrupt, or what the client raises."""
    clock = SystemClock()
    began_ns = clock.monotonic_ns()
    async with AsyncClient(url) as client:
        await _prepare(client)
        agents = _Agents(client)
        steps = AsyncWorker.group(client, STEPS, AGENTS, agents.work, effects=True, concurrency=16)
        mails = AsyncWorker.queue(client, MAILS, agents.send, concurrency=4)
        working = [asyncio.ensure_future(worker.run()) for worker in (steps, mails)]
        try:
            roots = [StoryStep(name, number, "plan").message() for number in range(runs)]
            await client.broker.produce_batch(STEPS, roots)
            await _all_is_done(client, working)
            agents.browser_works = True
            redriven = await _redrive(client)
            await _all_is_done(client, working)
        finally:
            steps.stop()
            mails.stop()
            await asyncio.gather(*working)
    return Played(
        play=name,
        runs=runs,
        seconds=round((clock.monotonic_ns() - began_ns) / 1e9, 1),
        handled=steps.stats.acked,
        retried=steps.stats.retried,
        failed=steps.stats.failed,
        given_up=steps.stats.dead_lettered,
        redriven=redriven,
        emails=mails.stats.acked,
    )


async def _prepare(client: AsyncClient) -> None:
    await client.broker.create_topic(STEPS, partitions=4)
    await client.topic(USAGE).create(durability="disk")
    await client.topic(MAILS).create(type="queue", durability="fsync")
    for tenant, dest in zip(TENANTS, TENANT_USAGE, strict=True):
        await client.put_router(f"usage-of-{tenant}", USAGE, dest, filter=("tag", "Eq", tenant))


async def _redrive(client: AsyncClient) -> int:
    """Redrive the messages that failed only because the browser was down. Return how many there were."""
    asked = await client.broker.redrive(STEPS, filter=RedriveFilter(reason_contains=_BROWSER_DOWN))
    moved = 0
    async with asyncio.timeout(_PATIENCE_S):
        while asked.job_id and moved < asked.matched:
            job = await client.broker.redrive_job(asked.job_id)
            moved = job.moved + job.failed
    return asked.matched


async def _all_is_done(client: AsyncClient, working: "Sequence[asyncio.Future[None]]") -> None:
    """Wait until the agents have no messages left and the e-mail queue is empty."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while await _left(client):
                done, _ = await asyncio.wait(working, timeout=_LOOK_S)
                if done:
                    done.pop().result()
                    raise KeyboardInterrupt  # workers handle the signals, so a worker that ended received one
    except TimeoutError:
        raise DemoError(f"the workload did not finish within {_PATIENCE_S:.0f} s; is the machine overloaded?") from None


async def _left(client: AsyncClient) -> int:
    groups = await client.broker.groups(STEPS, AGENTS)
    left = sum(row.lag + row.in_flight + row.waiting for group in groups for row in group.partitions)
    queue = (await client.topic(MAILS).info()).queue
    return left + (0 if queue is None else queue.ready + queue.in_flight) + (not groups)
