"""Queue topics together with their lease tables: which jobs are ready or in flight, and which a claim may take.

Every call on a queue begins with `look`, which updates the table: it drops jobs whose records were removed by
retention, a delete or damage, and it sweeps expired leases and delays.

Invariant: at the end of every call, `ready + in_flight + delayed` is the number of live jobs.
"""

from typing import NamedTuple

from driftq.engine.engine import Engine
from driftq.engine.read.seq_lookup import live_after, live_of
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError, NotAQueueError, TopicNotFoundError
from driftq.features.queue.lease_events import LeaseEvent
from driftq.features.queue.lease_log import LeaseLog
from driftq.features.queue.lease_table import LeaseTable


class QueueCounters(NamedTuple):
    """The job counts that the state of a queue shows."""

    ready: int
    in_flight: int
    dead_lettered: int


class Picked:
    """The jobs that a pass has taken and not yet granted."""

    __slots__ = ("again", "fresh", "overdelivered")

    def __init__(self) -> None:
        self.fresh: list[int] = []
        """Seqs of jobs that were never delivered."""
        self.again: dict[int, int] = {}
        """Jobs that were given back: seq to the number of the coming delivery."""
        self.overdelivered: dict[int, int] = {}
        """Jobs that were delivered too often: seq to the number of deliveries."""

    @property
    def seqs(self) -> list[int]:
        """The seqs of all jobs to hand out: jobs that were given back first."""
        return [*self.again, *self.fresh]

    def keep(self, seqs: set[int]) -> "Picked":
        """Keep only `seqs` of the jobs to hand out. Return the others."""
        rest = Picked()
        rest.fresh = [seq for seq in self.fresh if seq not in seqs]
        rest.again = {seq: count for seq, count in self.again.items() if seq not in seqs}
        self.fresh = [seq for seq in self.fresh if seq in seqs]
        self.again = {seq: count for seq, count in self.again.items() if seq in seqs}
        return rest

    def forget(self, gone: set[int]) -> None:
        """Remove jobs whose records no longer exist."""
        self.fresh = [seq for seq in self.fresh if seq not in gone]
        for seq in gone:
            self.again.pop(seq, None)
            self.overdelivered.pop(seq, None)


class Backlog:
    """All queue topics, with their lease tables."""

    def __init__(self, engine: Engine, lease_log: LeaseLog) -> None:
        self._engine = engine
        self.lease_log = lease_log

    def look(self, name: str) -> tuple[Topic, LeaseTable]:
        """Return a queue and its table, updated to the present. Raise TopicNotFoundError or NotAQueueError."""
        topic = self._engine.topic(name)
        if topic.config.type != "queue":
            raise NotAQueueError(name)
        table = self.lease_log.table(topic)
        self.refresh(topic, table)
        return topic, table

    def refresh(self, topic: Topic, table: LeaseTable) -> None:
        """Update the table: drop jobs whose records are gone, and sweep. Raise TopicNotFoundError."""
        if topic.gone:
            raise TopicNotFoundError(topic.name)
        if topic.earliest != table.seen_earliest:
            table.drop_below(topic.earliest)
        if topic.deleted != table.seen_deleted:
            table.seen_deleted = topic.deleted
            self.drop_gone(topic, table, sorted({*table.held, *table.settling, *table.extending, *table.delayed}))
        if table.sweep(self._engine.time.running()):
            self._engine.wakeups.wake(topic.name)

    def drop_gone(self, topic: Topic, table: LeaseTable, seqs: list[int]) -> None:
        """Drop from the table those of `seqs` (ascending) whose records no longer exist."""
        table.drop(set(seqs).difference(live_of(topic, seqs)))

    def settle_debts(self, topic: Topic, table: LeaseTable) -> None:
        """Log the leases that have expired, for calls that log nothing else. The caller does not wait
        for the commit.
        """
        if table.owed:
            try:
                self.lease_log.commit(topic, table, LeaseEvent(table.clock))
            except DriftQError:
                return  # after a restart the clock expires these leases again

    def counters(self, topic: Topic) -> QueueCounters:
        """Return the job counts of a queue, exact at this moment."""
        table = self.lease_log.table(topic)
        self.refresh(topic, table)
        self.settle_debts(topic, table)
        return QueueCounters(ready(topic, table), table.in_flight, table.dead_lettered)

    def pick(self, topic: Topic, table: LeaseTable, picked: Picked, limit: int, overdelivered_max: int) -> None:
        """Take jobs until `picked` has `limit`: those given back first, lowest seq first, then those never delivered.

        Stop early when `overdelivered_max` jobs were found that were delivered too often.
        """
        config = topic.config
        deliveries_max = config.max_deliveries if config.dead_letter is not None else 0
        wanted = limit - len(picked.again) - len(picked.fresh)
        while wanted > 0 and len(picked.overdelivered) < overdelivered_max and table.has_reclaimed():
            seqs = table.reclaim(wanted)
            live = live_of(topic, seqs)
            if len(live) < len(seqs):
                table.drop(set(seqs).difference(live))
            for seq in live:
                count = table.deliveries(seq)
                if 0 < deliveries_max <= count:
                    picked.overdelivered[seq] = count
                else:
                    picked.again[seq] = count + 1
                    wanted -= 1
        if wanted > 0 and table.cursor < topic.head:
            fresh = live_after(topic, table.cursor, wanted)
            table.cursor = fresh[-1] if len(fresh) == wanted else topic.head
            picked.fresh += fresh

    @staticmethod
    def give_back(table: LeaseTable, picked: Picked) -> None:
        """Undo a pass: its jobs can be claimed again, with the delivery counts that they had before."""
        table.give_back(picked.fresh, fresh=True)
        table.give_back(picked.again)
        table.give_back(picked.overdelivered)


def ready(topic: Topic, table: LeaseTable) -> int:
    """Return the number of live jobs that are neither held nor delayed."""
    return topic.count - table.in_flight - len(table.delayed)
