"""Ack, nack and extend: settles jobs that a node holds (http-v0 §14.3 to §14.6).

An ack deletes its jobs, as durably as the topic's class demands. Until the delete is committed, the jobs are in flight
and cannot be claimed. If the commit fails, they can be claimed again. A nack or an extension that cannot be logged
changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from driftq.engine.engine import Engine
from driftq.engine.state.topic import Topic
from driftq.engine.write.deleter import Deleted
from driftq.errors import DriftQError, InternalError
from driftq.features.queue.backlog import Backlog, ready
from driftq.features.queue.lease_events import Grant, LeaseEvent, Release
from driftq.features.queue.lease_table import Lease, LeaseTable, by_lease
from driftq.model.limits import DELAY_MS_MAX, LEASE_MS_MAX, LEASE_MS_MIN
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending

T = TypeVar("T")


class Settled(NamedTuple):
    """The answer to an ack or a nack."""

    done: int
    skipped: list[int]
    ready: int
    in_flight: int
    synced: bool = False
    """Whether the answer waited for a sync."""


class ExtendedJobs(NamedTuple):
    """The answer to an extend: deadlines by seq, and skipped seqs."""

    deadlines: dict[int, int]
    skipped: list[int]


class JobSettler:
    """Serves acks, nacks and extensions of leases."""

    def __init__(self, engine: Engine, backlog: Backlog) -> None:
        self._engine = engine
        self._backlog = backlog

    def ack(self, name: str, node: str, seqs: Sequence[int], tokens: Sequence[str]) -> Pending[Settled]:
        """Delete the jobs in `seqs` that are leased to the node; a token, if given, must be the one of the lease."""
        topic, table = self._backlog.look(name)
        taken, skipped = table.take(node, seqs, tokens)
        answer: Pending[Settled] = Pending()
        if not taken:
            self._backlog.settle_debts(topic, table)
            answer.resolve(self._settled(topic, table, 0, skipped))
            return answer
        synced = topic.durability is Durability.FSYNC

        def settle(done: Pending[Deleted]) -> None:
            if done.error is not None:
                table.release_settling(taken)
                self._engine.wakeups.wake(name)
                answer.fail(done.error)
                return
            table.seen_deleted += done.result().deleted
            table.done(taken)
            answer.resolve(self._settled(topic, table, len(taken), skipped, synced=synced))

        try:
            deleted = self._engine.delete_records(name, seqs=list(taken), sync=synced)
        except InternalError:
            table.release_settling(taken)
            raise
        except DriftQError:
            table.hold_again(taken)
            raise
        deleted.then(settle)
        self._backlog.settle_debts(topic, table)
        return answer

    def nack(self, name: str, node: str, seqs: Sequence[int], tokens: Sequence[str], delay_ms: int) -> Pending[Settled]:
        """End the node's leases of the jobs in `seqs`. They can be claimed again at once, or after `delay_ms`."""
        topic, table = self._backlog.look(name)
        taken, skipped = table.take(node, seqs, tokens)
        until = table.clock + min(delay_ms, DELAY_MS_MAX) if delay_ms else 0
        releases = [Release(lease.number, jobs, until) for lease, jobs in by_lease(taken)]
        return self._commit(
            topic,
            table,
            taken,
            LeaseEvent(table.clock, releases),
            lambda: self._settled(topic, table, len(taken), skipped),
        )

    def extend(
        self, name: str, node: str, seqs: Sequence[int], tokens: Sequence[str], lease_ms: int
    ) -> Pending[ExtendedJobs]:
        """Set a new deadline for the node's leases of the jobs in `seqs`."""
        topic, table = self._backlog.look(name)
        taken, skipped = table.take_to_extend(node, seqs, tokens)
        deadline = table.clock + min(max(lease_ms, LEASE_MS_MIN), LEASE_MS_MAX)
        shown = self._engine.time.shown(deadline)
        grants = [Grant(lease.number, node, deadline, sorted(jobs), extends=True) for lease, jobs in by_lease(taken)]
        event = LeaseEvent(table.clock, [], grants)
        return self._commit(topic, table, taken, event, lambda: ExtendedJobs(dict.fromkeys(taken, shown), skipped))

    def release(self, topic: Topic, seqs: Sequence[int]) -> None:
        """Give back the jobs of a connection that has closed."""
        table = self._backlog.lease_log.table(topic)
        held = {seq: lease for seq in seqs if (lease := table.leased(seq)) is not None}
        releases = [Release(lease.number, jobs) for lease, jobs in by_lease(held)]
        if releases:
            try:
                self._backlog.lease_log.commit(topic, table, LeaseEvent(table.clock, releases))
            except DriftQError:
                return  # the leases end at their deadline
            self._engine.wakeups.wake(topic.name)

    def _commit(
        self, topic: Topic, table: LeaseTable, taken: dict[int, Lease], event: LeaseEvent, result: Callable[[], T]
    ) -> Pending[T]:
        """Log and apply a lease event, then answer with `result`."""
        answer: Pending[T] = Pending()
        if not taken:
            self._backlog.settle_debts(topic, table)
            answer.resolve(result())
            return answer

        def settle(error: BaseException | None) -> None:
            if error is not None:
                table.hold_again(taken)
                answer.fail(error)
            else:
                self._engine.wakeups.wake(topic.name)
                answer.resolve(result())

        try:
            waiting = self._backlog.lease_log.commit(topic, table, event)
        except DriftQError:
            table.hold_again(taken)
            raise
        if waiting is None:
            settle(None)
        else:
            waiting.then(lambda done: settle(done.error))
        return answer

    def _settled(
        self, topic: Topic, table: LeaseTable, done: int, skipped: list[int], *, synced: bool = False
    ) -> Settled:
        self._backlog.refresh(topic, table)
        return Settled(done, skipped, ready(topic, table), table.in_flight, synced)
