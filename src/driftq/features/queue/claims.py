"""Claims: one pass takes jobs, moves dead letters, leases the rest, and answers (http-v0 §14.2, §14.8).

    asked → (window) → taken → (dead letters moved) → (blocks fetched) → granted → (frame committed) → answered

A step in parentheses is waited for only if it has something to do. If none has, the answer is ready when the call
returns. No other pass can take the jobs of a pass. If a pass fails, all its jobs are given back with their delivery
counts.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from driftq.codec.job_json import ClaimLease, render_jobs
from driftq.engine.engine import Engine
from driftq.engine.engine_time import EngineTime
from driftq.engine.read.seq_lookup import live_of, rows_of
from driftq.engine.read.topic_page import Slice
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError, TopicNotFoundError
from driftq.features.queue import dead_letters as dead_letter
from driftq.features.queue.backlog import Backlog, Picked, ready
from driftq.features.queue.cohort import deal
from driftq.features.queue.lease_events import Grant, LeaseEvent
from driftq.features.queue.lease_log import are_durable
from driftq.features.queue.lease_table import LeaseTable
from driftq.model.limits import LEASE_MS_MAX, LEASE_MS_MIN, PAGE_BYTES, PAGE_BYTES_MAX
from driftq.system.runtime import Pending, Runtime, run


class ClaimResult(NamedTuple):
    """The answer to a claim: ascending seqs, each job as JSON text, and the number of jobs that are still ready."""

    seqs: list[int]
    jobs: list[bytes]
    ready: int


NOTHING = ClaimResult([], [], 0)

_BYTES_MAX = PAGE_BYTES_MAX
_PUSHED_BYTES_MAX = PAGE_BYTES
"""Payload bytes of an answer to a stream. An answer stops before it exceeds the limit, but has at least one job."""


class Ask(NamedTuple):
    """One claimer in a pass. `stream` is the set of jobs held through its connection, if jobs are pushed to it."""

    node: str
    limit: int
    lease_ms: int | None
    stream: set[int] | None
    answer: Pending[ClaimResult]


class Claimer:
    """Serves the claims of all queues."""

    def __init__(self, engine: Engine, runtime: Runtime, backlog: Backlog, run_id: int) -> None:
        self._engine = engine
        self._runtime = runtime
        self._backlog = backlog
        self._claim_max = engine.settings.limits.claim_max
        self._numbers: Iterator[int] = count(run_id << 32)
        self._windows: dict[int, list[Ask]] = {}

    def claim(
        self, topic: Topic, node: str, limit: int, lease_ms: int | None, stream: set[int] | None = None
    ) -> Pending[ClaimResult]:
        """Lease up to `limit` jobs of a queue to a node."""
        ask = Ask(node, min(max(limit, 1), self._claim_max), lease_ms, stream, Pending())
        window_ms = topic.config.claim_jitter_ms
        if not window_ms:
            self._bring_and_serve(topic, [ask])
        elif topic.id in self._windows:
            self._windows[topic.id].append(ask)
        else:
            self._windows[topic.id] = [ask]
            self._runtime.later(window_ms, lambda: self._bring_and_serve(topic, self._windows.pop(topic.id)))
        return ask.answer

    def _bring_and_serve(self, topic: Topic, asks: list[Ask]) -> None:
        """Serve the claims after the router copies that are due have been written."""
        waiting = self._engine.bring(topic) if self._engine.topic_copiers and not topic.gone else None
        if waiting is None:
            self._serve(topic, asks)
        else:
            waiting.then(lambda _: self._serve(topic, asks))

    def _serve(self, topic: Topic, asks: list[Ask]) -> None:
        """Make one pass over the queue for one claimer or a cohort."""
        if topic.gone:
            _refuse(asks, TopicNotFoundError(topic.name))
            return
        table = self._backlog.lease_log.table(topic)
        self._backlog.refresh(topic, table)
        picked = Picked()
        self._backlog.pick(topic, table, picked, _wanted(asks), self._claim_max)
        if not picked.overdelivered and not are_durable(topic):
            try:
                found = self._engine.rows(topic, sorted(picked.seqs), _room(asks))
            except DriftQError as error:
                self._backlog.give_back(table, picked)
                _refuse(asks, error)
                return
            if isinstance(found, list):
                self._cut(table, picked, found)
                self._grant(topic, table, asks, picked).answer(self._engine.time, topic, table, found)
                return
        run(self._serve_slowly(topic, table, asks, picked))

    async def _serve_slowly(self, topic: Topic, table: LeaseTable, asks: list[Ask], picked: Picked) -> None:
        """Finish a pass that has to wait for dead letters, blocks or a commit."""
        try:
            while picked.overdelivered and await self._bury(topic, table, picked):
                self._backlog.pick(topic, table, picked, _wanted(asks), self._claim_max)
            table.give_back(picked.overdelivered)
            picked.overdelivered.clear()
            held = await self._fetch(topic, table, picked, picked.seqs, _room(asks))
            self._cut(table, picked, held)
            self._backlog.refresh(topic, table)
            grants = self._grant(topic, table, asks, picked)
            if grants.waiting is not None:
                await grants.waiting
                self._backlog.drop_gone(topic, table, sorted(picked.seqs))  # deleted during the commit
        except Exception as error:  # noqa: BLE001  # no job may stay taken, and every claimer is answered
            self._backlog.give_back(table, picked)
            _refuse(asks, error)
        else:
            grants.answer(self._engine.time, topic, table, held)

    def _cut(self, table: LeaseTable, picked: Picked, found: list[Slice]) -> None:
        """Give back the jobs that did not fit into the answer."""
        rows = sum(len(part.rows) for part in found)
        if rows < len(picked.again) + len(picked.fresh):
            kept = {part.source.first_seq + row for part in found for row in part.rows}
            self._backlog.give_back(table, picked.keep(kept))

    async def _bury(self, topic: Topic, table: LeaseTable, picked: Picked) -> bool:
        """Move jobs that were delivered too often to the dead-letter topic, as many as fit into one batch.

        Return whether all jobs of the batch were moved.
        """
        slices = await self._fetch(topic, table, picked, list(picked.overdelivered), _BYTES_MAX)
        if not slices or topic.gone:
            return False
        moved, deleted = await dead_letter.move(self._engine, topic, slices, picked.overdelivered)
        table.seen_deleted += deleted
        table.dead_lettered += len(moved)
        table.drop(moved)
        picked.forget(set(moved))
        return len(moved) == sum(len(part.rows) for part in slices)

    async def _fetch(
        self, topic: Topic, table: LeaseTable, picked: Picked, seqs: list[int], budget: int
    ) -> list[Slice]:
        """Return the rows of the taken jobs. Jobs whose records disappear during the wait are left out and dropped."""
        seqs.sort()
        while True:
            found = self._engine.rows(topic, seqs, budget)
            if isinstance(found, list):
                return found
            await found
            live = [] if topic.gone else live_of(topic, seqs)
            gone = set(seqs).difference(live)
            table.drop(gone)
            picked.forget(gone)
            seqs = live

    def _grant(self, topic: Topic, table: LeaseTable, asks: list[Ask], picked: Picked) -> "_Grants":
        """Lease the taken jobs to the claimers, and log that."""
        hands = deal(picked.seqs, [ask.limit for ask in asks])
        grants: list[tuple[Ask, Grant | None]] = []
        for ask, hand in zip(asks, hands, strict=True):
            if not hand:
                grants.append((ask, None))
                continue
            hand.sort()
            lease_ms = topic.config.lease_ms if ask.lease_ms is None else ask.lease_ms
            deadline = table.clock + min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)
            counts = [(seq, picked.again[seq]) for seq in hand if seq in picked.again] if picked.again else []
            grant = Grant(next(self._numbers), ask.node, deadline, hand, counts)
            if ask.stream is not None:
                table.streams[grant.number] = ask.stream
            grants.append((ask, grant))
        given = [grant for _, grant in grants if grant is not None]
        if not given:
            self._backlog.settle_debts(topic, table)
            return _Grants(grants, None)
        try:
            waiting = self._backlog.lease_log.commit(topic, table, LeaseEvent(table.clock, [], given))
        except DriftQError:
            _forget_streams(table, given)
            raise
        if waiting is not None:
            waiting.then(lambda _: _forget_streams(table, given))
        return _Grants(grants, waiting)


class _Grants(NamedTuple):
    """The leases that a pass granted to each claimer, and the commit that it waits for."""

    grants: list[tuple[Ask, Grant | None]]
    waiting: Pending[None] | None

    def answer(self, time: EngineTime, topic: Topic, table: LeaseTable, held: list[Slice]) -> None:
        """Answer every claimer. `held` keeps the rows of all jobs in memory."""
        left = ready(topic, table)
        for ask, grant in self.grants:
            if grant is None:
                ask.answer.resolve(ClaimResult([], [], left))
                continue
            slices = held if len(self.grants) == 1 else rows_of(topic, grant.seqs, sys.maxsize)
            assert isinstance(slices, list), "a block that is held is in memory"
            jobs = render_jobs(slices, ClaimLease(grant.number, time.shown(grant.deadline), dict(grant.counts)))
            ask.answer.resolve(ClaimResult(grant.seqs, jobs, left))


def _room(asks: Sequence[Ask]) -> int:
    """Return the number of payload bytes that a pass may hand out."""
    return sum(_BYTES_MAX if ask.stream is None else _PUSHED_BYTES_MAX for ask in asks)


def _wanted(asks: Sequence[Ask]) -> int:
    return sum(ask.limit for ask in asks)


def _forget_streams(table: LeaseTable, grants: Sequence[Grant]) -> None:
    """Remove the streams of grants that were applied or have failed."""
    for grant in grants:
        table.streams.pop(grant.number, None)


def _refuse(asks: list[Ask], error: Exception) -> None:
    """Fail a pass. If the topic is gone, only the claimer that opened the window fails; the others get no jobs."""
    for number, ask in enumerate(asks):
        if number and isinstance(error, TopicNotFoundError):
            ask.answer.resolve(NOTHING)
        else:
            ask.answer.fail(error)
