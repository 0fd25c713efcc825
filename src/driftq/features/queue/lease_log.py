"""The lease tables of all topics, as one feature of the engine: frames of kinds 32 and 33, one checkpoint section.

A table is created by the first call that needs it. Its leases are logged if the topic's config asks for durable leases
and its durability class is not `ephemeral`. The first call under such a config logs the whole table (LEASE_STATE);
every later call logs its changes. If leases are not logged, a checkpoint contains only the number of dead letters.

After recovery, `open` corrects every table once: logged leases are kept if leases are durable now, and are dropped if
they are not.
"""

from msgspec import msgpack

from driftq.engine.engine import Engine
from driftq.engine.read.seq_lookup import live_until
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError
from driftq.features.queue.lease_events import LeaseEvent, LeaseKind, TableState, decode_event, decode_state, encode
from driftq.features.queue.lease_table import LeaseTable
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending

_section = msgpack.Decoder(list[tuple[int, TableState]])
_NOTHING = TableState(0)


def are_durable(topic: Topic) -> bool:
    """Whether the leases of a topic survive a restart."""
    return topic.config.leases_durable and topic.durability is not Durability.EPHEMERAL


class LeaseLog:
    """All lease tables, by topic id."""

    name = "leases"
    kinds = frozenset({int(kind) for kind in LeaseKind})

    def __init__(self) -> None:
        self._tables: dict[int, LeaseTable] = {}
        self._engine: Engine | None = None

    def open(self, engine: Engine) -> None:
        """Finish recovery: correct every table. Frames applied after this call come from this run."""
        self._engine = engine
        for topic_id, table in list(self._tables.items()):
            topic = engine.catalog.by_id[topic_id]
            if are_durable(topic):
                table.logged = True
                table.rebuild(live_until(topic, table.frontier))
            else:
                table = self._tables[topic_id] = LeaseTable.of(TableState(table.dead_lettered))
                table.logged = False
            _follow(table, topic)

    def table(self, topic: Topic) -> LeaseTable:
        """Return the table of a topic; create it if needed. A table of a deleted topic is not stored."""
        table = self._tables.get(topic.id)
        if table is None:
            table = LeaseTable()
            _follow(table, topic)
            if not topic.gone:
                self._tables[topic.id] = table
        return table

    def commit(self, topic: Topic, table: LeaseTable, event: LeaseEvent) -> Pending[None] | None:
        """Log an event if leases are logged, then apply it. Return None if it is already applied."""
        if not are_durable(topic):
            table.logged = False
            table.owed.clear()
            table.apply(event)
            return None
        assert self._engine is not None
        if not table.logged:
            self._log_state(self._engine, topic, table)
        owed, table.owed = table.owed, []
        if owed:
            event = LeaseEvent(event.clock, owed + event.releases, event.grants)

        def settle(error: BaseException | None) -> None:
            if error is not None:
                table.owed = owed + table.owed

        sync = topic.durability is Durability.FSYNC
        try:
            logged = self._engine.log(topic, LeaseKind.LEASES, encode(event), self, sync=sync, in_order=False)
        except DriftQError as error:
            settle(error)
            raise
        logged.then(lambda done: settle(done.error))
        return logged

    def _log_state(self, engine: Engine, topic: Topic, table: LeaseTable) -> None:
        """Log the whole table, so that the log describes the leases from here on."""
        table.logged = True
        state = encode(table.capture())

        def settle(error: BaseException | None) -> None:
            table.logged = table.logged and error is None

        try:
            logged = engine.log(topic, LeaseKind.LEASE_STATE, state, self, sync=False, in_order=False)
        except DriftQError as error:
            settle(error)
            raise
        logged.then(lambda done: settle(done.error))

    # Calls from the engine

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """Apply one committed frame to its table."""
        if kind == LeaseKind.LEASES:
            self.table(topic).apply(decode_event(body))
        elif self._engine is None:
            self._tables[topic.id] = LeaseTable.of(decode_state(body))

    def capture(self) -> bytes:
        """Return all tables with something to keep, ordered by topic id."""
        states = [(topic_id, table.capture()) for topic_id, table in sorted(self._tables.items())]
        return msgpack.encode([found for found in states if found[1] != _NOTHING])

    def restore(self, section: bytes) -> None:
        """Load the tables of a checkpoint section."""
        self._tables = {topic_id: LeaseTable.of(state) for topic_id, state in _section.decode(section)}

    def forget(self, topic: Topic) -> None:
        """Drop the table of a deleted topic."""
        self._tables.pop(topic.id, None)


def _follow(table: LeaseTable, topic: Topic) -> None:
    """Record which losses of the topic the table has followed so far."""
    table.seen_earliest, table.seen_deleted = topic.earliest, topic.deleted
