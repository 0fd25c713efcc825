"""A queue topic and its lease table as one thing: what is ready, what is in flight, what a claim may take.

Every call on a queue begins with `look`, which brings the table up to the present: records that retention, a delete or
damage took are nobody's any more, leases that have run out and delays that are over are swept.

Invariant: `ready + in_flight + delayed` is the number of live jobs, at the end of every call.
"""

from typing import NamedTuple

from driftq.engine.engine import Engine
from driftq.engine.read.seq_lookup import live_after, live_of
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError, NotAQueueError, TopicNotFoundError
from driftq.features.queue.lease_events import LeaseEvent
from driftq.features.queue.lease_log import LeaseBook
from driftq.features.queue.lease_table import LeaseTable


class QueueCounters(NamedTuple):
    """What the state of a queue shows."""

    ready: int
    in_flight: int
    dead_lettered: int


class Picked:
    """What a pass has taken and not granted yet."""

    __slots__ = ("again", "fresh", "poison")

    def __init__(self) -> None:
        self.fresh: list[int] = []
        """Jobs that were never delivered."""
        self.again: dict[int, int] = {}
        """Jobs that were given back, and which delivery this is."""
        self.poison: dict[int, int] = {}
        """Jobs that were delivered too often, and how often."""

    @property
    def seqs(self) -> list[int]:
        """Everything to hand out, in the order of supply."""
        return [*self.again, *self.fresh]

    def keep(self, seqs: set[int]) -> "Picked":
        """Let go of everything to hand out but these. Returns what was let go of."""
        rest = Picked()
        rest.fresh = [seq for seq in self.fresh if seq not in seqs]
        rest.again = {seq: count for seq, count in self.again.items() if seq not in seqs}
        self.fresh = [seq for seq in self.fresh if seq in seqs]
        self.again = {seq: count for seq, count in self.again.items() if seq in seqs}
        return rest

    def forget(self, gone: set[int]) -> None:
        """These jobs are not there any more."""
        self.fresh = [seq for seq in self.fresh if seq not in gone]
        for seq in gone:
            self.again.pop(seq, None)
            self.poison.pop(seq, None)


class Backlog:
    """All queues."""

    def __init__(self, engine: Engine, book: LeaseBook) -> None:
        self._engine = engine
        self.book = book

    def look(self, name: str) -> tuple[Topic, LeaseTable]:
        """A queue, as it is now. Raises TopicNotFoundError or NotAQueueError."""
        topic = self._engine.topic(name)
        if topic.config.type != "queue":
            raise NotAQueueError(name)
        table = self.book.table(topic)
        self.refresh(topic, table)
        return topic, table

    def refresh(self, topic: Topic, table: LeaseTable) -> None:
        """Follow what has happened to the records and what time it is. Raises TopicNotFoundError."""
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
        """Those of these jobs, ascending, that are not there any more are nobody's."""
        table.drop(set(seqs).difference(live_of(topic, seqs)))

    def settle_debts(self, topic: Topic, table: LeaseTable) -> None:
        """Let the log know of leases that have run out, for calls that log nothing else. Nobody waits for it."""
        if table.owed:
            try:
                self.book.commit(topic, table, LeaseEvent(table.clock))
            except DriftQError:
                return  # the clock will tell the same after a restart

    def counters(self, topic: Topic) -> QueueCounters:
        """What the state of a queue shows, exact as of now."""
        table = self.book.table(topic)
        self.refresh(topic, table)
        self.settle_debts(topic, table)
        return QueueCounters(ready(topic, table), table.in_flight, table.dead_lettered)

    def pick(self, topic: Topic, table: LeaseTable, picked: Picked, limit: int, poison_max: int) -> None:
        """Take jobs until there are so many: those given back first, lowest seq first, then those never delivered."""
        config = topic.config
        deliveries_max = config.max_deliveries if config.dead_letter is not None else 0
        wanted = limit - len(picked.again) - len(picked.fresh)
        while wanted > 0 and len(picked.poison) < poison_max and table.has_reclaimed():
            seqs = table.reclaim(wanted)
            live = live_of(topic, seqs)
            if len(live) < len(seqs):
                table.drop(set(seqs).difference(live))
            for seq in live:
                count = table.deliveries(seq)
                if 0 < deliveries_max <= count:
                    picked.poison[seq] = count
                else:
                    picked.again[seq] = count + 1
                    wanted -= 1
        if wanted > 0 and table.cursor < topic.head:
            fresh = live_after(topic, table.cursor, wanted)
            table.cursor = fresh[-1] if len(fresh) == wanted else topic.head
            picked.fresh += fresh

    @staticmethod
    def give_back(table: LeaseTable, picked: Picked) -> None:
        """A pass came to nothing: its jobs can be claimed again, and count as before."""
        table.give_back(picked.fresh, fresh=True)
        table.give_back(picked.again)
        table.give_back(picked.poison)


def ready(topic: Topic, table: LeaseTable) -> int:
    """Live jobs that nobody holds and nothing delays."""
    return topic.count - table.in_flight - len(table.delayed)
