"""Creates, changes and deletes routers, after checking the rules; each change is logged first (http-v0 §11.1).

The operations run one after the other, so the result of a check still holds when the frame is queued. If a router is
refused or cannot be logged, neither the router nor a topic created for it remains.
"""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from driftq.engine.engine import Engine
from driftq.engine.state.control_frames import encode_body
from driftq.errors import (
    DriftQError,
    InvalidRequestError,
    RouterCycleError,
    ThrottledError,
    TopicExistsIncompatibleError,
    TopicNotFoundError,
)
from driftq.features.router.destination import Router
from driftq.features.router.router_frames import ROUTER, RouterFrame
from driftq.features.router.router_table import RouterTable
from driftq.model.names import check_router_name, check_stored_name
from driftq.model.router_spec import RouterSpec
from driftq.model.topic_config import Durability
from driftq.system.runtime import Pending, run


def cycle_with(following: Callable[[str], Iterable[str]], source: str, dest: str) -> list[str] | None:
    """Return the path that an edge from source to dest would close, from source back to source; None if there is none.

    `following` returns the ends of the edges that begin at a node.
    """
    came_from: dict[str, str] = {dest: source}
    reached = [dest]
    while reached:
        node = reached.pop()
        if node == source:
            return _way(came_from, source, dest)
        for end in following(node):
            if end not in came_from:
                came_from[end] = node
                reached.append(end)
    return None


def _way(came_from: dict[str, str], source: str, dest: str) -> list[str]:
    way = [source]
    while way[-1] != dest:
        way.append(came_from[way[-1]])
    return [source, *reversed(way)]


T = TypeVar("T")

_TRIES_MAX = 3
"""How often a router is created at most; a topic may be deleted in the meantime, and then it is created again."""


class Rules:
    """The operations on routers of a running engine."""

    def __init__(self, table: RouterTable, engine: Engine, log_delete: Callable[[Router], Pending[None]]) -> None:
        self._table = table
        self._engine = engine
        self._log_delete = log_delete
        self._routers_max = engine.settings.limits.routers_max
        self._last: Pending[None] | None = None
        """Settles when the operation that started last has ended."""

    def put(self, name: str, spec: RouterSpec, *, create_dest: bool = True) -> Pending[tuple[bool, int]]:
        """Create or change a router. The answer is whether this call created it, and when it was created."""
        check_router_name(name)
        check_stored_name(spec.source)
        check_stored_name(spec.dest)
        if spec.source == spec.dest:
            raise InvalidRequestError("source and dest must be different topics")
        return run(self._in_turn(lambda: self._put(name, spec, create_dest=create_dest)))

    async def _in_turn(self, operation: "Callable[[], Coroutine[Pending[Any], None, T]]") -> T:
        """Run an operation after the one before it has ended."""
        before, mine = self._last, Pending[None]()
        self._last = mine
        try:
            if before is not None:
                await before
            return await operation()
        finally:
            mine.resolve(None)

    async def _put(self, name: str, spec: RouterSpec, *, create_dest: bool) -> tuple[bool, int]:
        for tries_left in reversed(range(_TRIES_MAX)):
            existing = self._table.by_name.get(name)
            self._check(name, spec, existing, create_dest=create_dest)
            made = await self._make_topics(spec)
            try:
                created_ts = await self._log(name, spec, existing)
            except TopicNotFoundError:
                if not tries_left:
                    raise
            except DriftQError:
                await self._unmake(made)
                raise
            else:
                return existing is None, created_ts
        raise AssertionError("the last attempt answers or raises")

    def _check(self, name: str, spec: RouterSpec, existing: Router | None, *, create_dest: bool) -> None:
        """Raise the error that forbids this router, if any, in the order of http-v0 §11.1."""
        catalog = self._engine.catalog
        if not create_dest and catalog.find(spec.dest) is None:
            raise TopicNotFoundError(spec.dest)
        if self._fed_by_another(spec, existing):
            raise TopicExistsIncompatibleError(
                f"another router copies into topic {spec.dest!r} from another source",
                detail={"topic": spec.dest, "reason": "router_dest_fan_in"},
            )
        if existing is not None and (existing.spec.source, existing.spec.dest) != (spec.source, spec.dest):
            raise TopicExistsIncompatibleError(
                f"router {name!r} has another source or dest; delete it first",
                detail={
                    "router": name,
                    "reason": "router_repoint_forbidden",
                    "existing_source": existing.spec.source,
                    "existing_dest": existing.spec.dest,
                },
            )
        if existing is None and 0 < self._routers_max <= len(self._table.by_name):
            raise ThrottledError(
                f"router limit reached (max_routers={self._routers_max})",
                detail={"limit": "max_routers", "max": self._routers_max},
                retry_after_ms=1000,
            )
        cycle = None if spec.allow_cycle else self._cycle(spec, existing)
        if cycle is not None:
            raise RouterCycleError("this router would create a cycle: " + " → ".join(cycle), detail={"cycle": cycle})

    def _fed_by_another(self, spec: RouterSpec, existing: Router | None) -> bool:
        """Whether another router feeds dest from another source."""
        dest = self._engine.catalog.by_name.get(spec.dest)
        inflow = None if dest is None else self._table.inflow(dest.id)
        return (
            inflow is not None
            and inflow.source.name != spec.source
            and any(router is not existing for router in inflow.routers)
        )

    def _cycle(self, spec: RouterSpec, existing: Router | None) -> list[str] | None:
        """Return the cycle that this router would close, or None. Its own existing edge is not counted."""
        by_name, table = self._engine.catalog.by_name, self._table

        def following(name: str) -> list[str]:
            topic = by_name.get(name)
            inflows = [] if topic is None else table.out.get(topic.id, [])
            return [
                inflow.routers[0].spec.dest
                for inflow in inflows
                if any(router is not existing for router in inflow.routers)
            ]

        return cycle_with(following, spec.source, spec.dest)

    async def _make_topics(self, spec: RouterSpec) -> list[str]:
        """Create the missing topics of source and dest: all or none. Return the created names."""
        catalog = self._engine.catalog
        absent = [name for name in (spec.source, spec.dest) if name not in catalog.by_name]
        if 0 < catalog.topics_max < len(catalog.by_name) + len(absent):
            raise ThrottledError(
                f"topic limit reached (max_topics={catalog.topics_max})",
                detail={"limit": "max_topics", "max": catalog.topics_max},
                retry_after_ms=1000,
            )
        ensured: list[tuple[str, Pending[bool]]] = []
        made: list[str] = []
        error: DriftQError | None = None
        for name in (spec.source, spec.dest):
            try:
                ensured.append((name, self._engine.writer.ensure(name)))
            except DriftQError as refused:
                error = refused
                break
        for name, pending in ensured:
            try:
                if await pending:
                    made.append(name)
            except DriftQError as failed:
                error = failed
        if error is not None:
            await self._unmake(made)
            raise error
        return made

    async def _unmake(self, made: list[str]) -> None:
        """Delete the topics that were created for a refused router, unless they contain records now."""
        for name in made:
            try:
                await self._engine.delete_topic(name, if_empty=True)
            except DriftQError:
                continue

    async def _log(self, name: str, spec: RouterSpec, existing: Router | None) -> int:
        """Log a router. Return when it was created."""
        engine = self._engine
        source, dest = engine.catalog.get(spec.source), engine.catalog.get(spec.dest)
        first = not dest.fed
        dest.fed = True  # set before the head is read: later writes are in order with copies
        self._table.making[dest.id] += 1
        try:
            if first and dest.durability is Durability.DISK and engine.change_log.between_shards(dest):
                await engine.sync_shard(dest)  # a crash must not take earlier writes and keep copies
            number = self._table.next_number if existing is None else existing.number
            body = RouterFrame(
                number,
                name,
                dest.id,
                source.in_flight.next_seq - 1,
                dest.head if existing is None else existing.dest_base,
                engine.time.wall() if existing is None else existing.created_ts,
                spec,
            )
            await engine.log(source, ROUTER, encode_body(body), self._table.feature)
        finally:
            self._table.making.subtract([dest.id])
            if not self._table.making[dest.id]:
                del self._table.making[dest.id]
            self._table.note_fed(dest.id)
        if number not in self._table.by_number:
            raise TopicNotFoundError(spec.dest)
        return body.created_ts

    def delete(self, name: str) -> Pending[bool]:
        """Delete a router. The answer is whether it existed."""
        return run(self._in_turn(lambda: self._delete(name)))

    async def _delete(self, name: str) -> bool:
        router = self._table.by_name.get(name)
        if router is None:
            return False
        await self._log_delete(router)
        return True
