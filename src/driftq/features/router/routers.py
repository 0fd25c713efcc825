"""The routers of a server as one feature: their durable state, and their work in live operation and in replay.

A router's frames are in the log of its source. A router ends when one of its topics is deleted. If that is the source,
the end of the router is logged first, because dest keeps the copies that were made.

Until the engine has recovered, copies are recreated from the log (`rederivation`). From then on, copies are made as
records arrive (`forwarding`).
"""

from collections.abc import Callable, Sequence

from msgspec import msgpack

from driftq.engine.engine import Engine
from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.control_frames import decode_body, encode_body
from driftq.engine.state.topic import RemovalCause, Topic
from driftq.errors import (
    RouterNotFoundError,
)
from driftq.features.router.destination import Router
from driftq.features.router.forwarding import Forwarder
from driftq.features.router.rederivation import Rederiver
from driftq.features.router.router_frames import (
    ROUTER,
    ROUTER_DELETE,
    ROUTER_MARK,
    RouterDeleteBody,
    RouterFrame,
    RouterMarkBody,
    Section,
)
from driftq.features.router.router_rules import Rules
from driftq.features.router.router_table import RouterTable
from driftq.model.limits import Limits
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability, TopicConfig
from driftq.system.runtime import Pending, Runtime, run


class Routers:
    """All routers: a feature with durable state, the deriver of replay, and the upstream of reads."""

    name = "routers"
    kinds = frozenset((ROUTER, ROUTER_DELETE, ROUTER_MARK))

    def __init__(self, limits: Limits, runtime: Runtime) -> None:
        self._limits = limits
        self._runtime = runtime
        self._table = RouterTable(self, self._guard)
        self._replay: Rederiver | None = None
        self._forward: Forwarder | None = None
        self._engine: Engine | None = None
        self._rules: Rules | None = None
        self._removed: dict[int, list[str]] = {}
        """For topics that are being deleted: the names of the routers that are deleted with them, for the answer."""

    def __len__(self) -> int:
        return len(self._table.by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._table.by_name

    # Recovery

    def attach(self, catalog: Catalog, segment_files: SegmentFiles) -> None:
        """Set the catalog and the file store, before anything is restored."""
        self._table.catalog = catalog
        self._replay = Rederiver(self._table, segment_files, self._limits)

    def derives(self, topic: Topic, head: int | None = None) -> bool:
        """Whether replay must recreate copies in this topic (up to `head`, if given)."""
        return self._rederiver.derives(topic, head)

    def needs(self, kind: int, body: bytes) -> int:
        """Return the head of the frame's topic when the frame was made."""
        if kind == ROUTER:
            return decode_body(RouterFrame, body).source_head
        if kind == ROUTER_DELETE:
            return decode_body(RouterDeleteBody, body).source_head
        return decode_body(RouterMarkBody, body).dest_head if kind == ROUTER_MARK else 0

    def knows(self, kind: int, body: bytes) -> bool:
        """Whether all routers that a mark refers to exist."""
        if kind != ROUTER_MARK:
            return True
        return all(number in self._table.by_number for number, _ in decode_body(RouterMarkBody, body).cursors)

    def derive(self, topic: Topic, head: int, ts: int, *, reach: Callable[[Topic], bool]) -> None:
        """Recreate copies until the topic reaches `head`, or until there are no more."""
        self._rederiver.derive(topic, head, ts, reach=reach)

    def forget_unlogged(self, topic: Topic, head: int) -> None:
        """Move routers past records of an `ephemeral` topic up to `head`, because no log has them."""
        self._rederiver.forget_unlogged(topic, head)

    def feeds(self, kind: int, body: bytes) -> int | None:
        """Return the id of the dest that a ROUTER frame names."""
        return decode_body(RouterFrame, body).dest_id if kind == ROUTER else None

    def order(self, feeds: Sequence[tuple[int, int]] = ()) -> Sequence[Topic]:
        """Return the topics with copies and their sources, each after the topics that it is copied from."""
        return self._rederiver.order(feeds)

    def finish(self, topic: Topic, now: int, settle: Callable[[Topic], None]) -> None:
        """Place the remaining copies of a topic at the end of the log."""
        self._rederiver.finish(topic, now, settle)

    @property
    def _rederiver(self) -> Rederiver:
        assert self._replay is not None
        return self._replay

    def bind(self, engine: Engine) -> None:
        """Switch from replay to live operation, because the engine has recovered."""
        replay, self._replay = self._rederiver, None
        for router in list(self._table.by_number.values()):
            if self._table.topic(router.dest_id) is None or self._table.topic(router.source.id) is None:
                self._table.remove(router)
        self._table.note_all_fed()
        self._engine = engine
        self._rules = Rules(self._table, engine, self._log_delete)
        self._forward = Forwarder(self._table, engine, self._runtime)
        engine.topic_copiers.append(self)
        engine.change_log.is_caught_up = self._table.is_caught_up
        engine.writer.before_delete.append(self._before_delete)
        engine.writer.before_update.append(self._before_update)
        engine.change_log.on_lost = self._forward.unlogged.lost
        for topic, mark in replay.marks:
            self._forward.unlogged.add(topic, mark)
        engine.change_log.schedule()
        for inflow in self._table.all_inflows():
            self._forward.wake(inflow)

    # Durable state

    def apply(self, kind: int, topic: Topic, ts: int, body: bytes) -> None:
        """Apply one committed frame of a router."""
        if kind == ROUTER:
            self._apply_router(topic, decode_body(RouterFrame, body))
        elif kind == ROUTER_DELETE:
            self._apply_delete(decode_body(RouterDeleteBody, body))
        else:
            self._apply_mark(topic, decode_body(RouterMarkBody, body), ts)

    def _apply_router(self, source: Topic, body: RouterFrame) -> None:
        router = self._table.by_number.get(body.number)
        if router is None:
            if self._replay is None and self._table.topic(body.dest_id) is None:
                return  # dest was deleted before this frame was committed
            router = Router(body.number, body.name, source, body.dest_id, body.created_ts, body.dest_base)
            router.cursor = router.copied_to = body.source_head
            self._table.add(router)
        router.put(body.spec, body.source_head)

    def _apply_delete(self, body: RouterDeleteBody) -> None:
        router = self._table.by_number.get(body.number)
        if router is None:
            return
        if self._replay is not None:
            self._replay.retire(router, body.cursor)
        self._remove(router)

    def _apply_mark(self, dest: Topic, body: RouterMarkBody, ts: int) -> None:
        if self._replay is not None:
            self._replay.mark(dest, body)
        dest.expire_at(ts)
        if body.slots:
            dest.skip_to(body.dest_head + body.slots, Reason.SOURCE_TRIM)
        if body.raised:
            dest.skip_to(body.raised, Reason.CRASH, at_most=True)
        if dest.durability is Durability.FSYNC and not dest.in_flight.unsynced:
            dest.in_flight.synced_seq = dest.head  # the mark is on stable storage, and so are the sources of the copies
        for number, count in body.forwarded:
            router = self._table.by_number.get(number)
            if router is not None:
                router.forwarded += count
        for number, cursor in body.cursors:
            router = self._table.by_number.get(number)
            if router is not None and self._replay is None:
                router.passed(cursor)

    def capture(self) -> bytes:
        """Return the checkpoint section of all routers."""
        return msgpack.encode(self._table.capture())

    def restore(self, section: bytes) -> None:
        """Restore all routers from a checkpoint section."""
        self._table.restore(msgpack.decode(section, type=Section))

    def forget(self, topic: Topic) -> None:
        """Remove the routers that copy from or into a deleted topic."""
        gone = self._table.touching(topic)
        for router in gone:
            self._remove(router)
        if self._replay is not None:
            self._replay.forget(topic)
        elif topic.id in self._removed:
            self._removed[topic.id] += [router.name for router in gone]

    def _remove(self, router: Router) -> None:
        inflow = self._table.remove(router)
        if self._forward is not None and not inflow.routers:
            self._forward.ended(inflow)

    def _guard(self, topic: Topic, going: RemovalCause) -> None:
        if self._replay is not None:
            self._replay.guard(topic)
        elif self._forward is not None:
            self._forward.guard(topic, going)

    # Reads

    def bring(self, topic: Topic) -> Pending[None] | None:
        """Copy the records that are due into a topic. Return what a reader has to wait for."""
        assert self._forward is not None
        return self._forward.bring(topic)

    def drain(self) -> Pending[None]:
        """Copy the records that are due in all topics, including copies of copies, as far as there is room."""
        return run(self._drain())

    async def _drain(self) -> None:
        while waiting := [due for topic in self._dests() if (due := self.bring(topic)) is not None]:
            for due in waiting:
                await due

    def _dests(self) -> list[Topic]:
        found = [self._table.topic(inflow.dest_id) for inflow in self._table.all_inflows()]
        return [topic for topic in found if topic is not None]

    def close(self) -> None:
        """Stop all copying of records."""
        if self._forward is not None:
            self._forward.close()

    def names(self) -> list[str]:
        """Return the names of all routers, sorted."""
        return sorted(self._table.by_name)

    def get(self, name: str) -> Router:
        """Return the router with this name. Raise RouterNotFoundError."""
        router = self._table.by_name.get(name)
        if router is None:
            raise RouterNotFoundError(name)
        return router

    def drained(self, name: str) -> Pending[None] | None:
        """Advance a router to its source's head; None if there is nothing to wait for. Raise RouterNotFoundError."""
        dest = self._table.topic(self.get(name).dest_id)
        return None if dest is None else self.bring(dest)

    # Changes

    @property
    def rules(self) -> Rules:
        """The operations on routers: create, change and delete."""
        assert self._rules is not None
        return self._rules

    def _log_delete(self, router: Router) -> Pending[None]:
        """Log the end of a router. It goes no further than the cursor in this frame."""
        inflow, forward = router.inflow, self._forward
        assert forward is not None
        source = router.source
        body = RouterDeleteBody(router.number, inflow.heading(router), source.in_flight.next_seq - 1)
        logged = self._live.log(source, ROUTER_DELETE, encode_body(body), self)
        inflow.frozen += 1

        def settle(_: Pending[None]) -> None:
            inflow.frozen -= 1
            forward.wake(inflow)

        logged.then(settle)
        return logged

    @property
    def _live(self) -> Engine:
        assert self._engine is not None
        return self._engine

    # Topics that are deleted or changed

    def delete_topic(self, name: str, *, if_empty: bool = False) -> "Pending[list[str] | None]":
        """Delete a topic. The answer is the sorted names of the routers deleted with it, or None if it
        did not exist.
        """
        return run(self._delete_topic(name, if_empty=if_empty))

    async def _delete_topic(self, name: str, *, if_empty: bool) -> list[str] | None:
        topic = self._live.catalog.by_name.get(name)
        removed: list[str] = []
        if topic is not None:
            self._removed.setdefault(topic.id, [])
        try:
            deleted = await self._live.delete_topic(name, if_empty=if_empty)
        finally:
            if topic is not None:
                removed = self._removed.pop(topic.id, [])
        return sorted(removed) if deleted else None

    def _before_delete(self, topic: Topic) -> None:
        """Log the end of the routers out of this topic. Routers into it end with the topic."""
        for router in self._table.touching(topic):
            if router.source is topic:
                self._log_delete(router)
                if topic.id in self._removed:
                    self._removed[topic.id].append(router.name)

    def _before_update(self, topic: Topic, config: TopicConfig) -> None:
        """Log the cursors if the class changes from or to `ephemeral`, because such copies are not recreated."""
        inflow, forward = self._table.inflow(topic.id), self._forward
        if inflow is None or forward is None or config.resolved_durability is topic.durability:
            return
        if Durability.EPHEMERAL in (config.resolved_durability, topic.durability):
            cursors = [(router.number, inflow.heading(router)) for router in inflow.routers]
            self._live.log(topic, ROUTER_MARK, encode_body(RouterMarkBody(topic.in_flight.next_seq - 1, cursors)), self)
