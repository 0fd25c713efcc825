"""All routers, with the inflows and hops that follow from them.

Invariant: a router is in `by_name`, `by_number` and in the inflow of its dest, or in none of them. Exactly the topics
that some router copies from have a guard. Exactly the topics that some router copies into are `fed`.
"""

from collections import Counter

from driftq.engine.state.catalog import Catalog
from driftq.engine.state.durable_feature import DurableState
from driftq.engine.state.topic import Guard, Topic
from driftq.features.router.destination import Inflow, Router
from driftq.features.router.hops import Hops
from driftq.features.router.router_frames import RouterCheckpoint, Section


class RouterTable:
    """The routers of a server, by name, number, source and dest."""

    def __init__(self, feature: DurableState, guard: Guard) -> None:
        self.feature = feature
        """The feature under which router frames are logged."""
        self._guard = guard
        self.catalog: Catalog | None = None
        self.next_number = 1
        self.by_name: dict[str, Router] = {}
        self.by_number: dict[int, Router] = {}
        self.inflows: dict[int, list[Inflow]] = {}
        """By the id of dest. More than one exists only in replay, where frames of several shards come in any order."""
        self.out: dict[int, list[Inflow]] = {}
        """Inflows by the id of their source."""
        self.hops: dict[int, Hops] = {}
        self.making: Counter[int] = Counter()
        """Ids of the dests of routers whose frames are being logged, counted."""

    def topic(self, topic_id: int) -> Topic | None:
        """Return a topic by id, or None if it does not exist."""
        assert self.catalog is not None
        return self.catalog.by_id.get(topic_id)

    def inflow(self, dest_id: int) -> Inflow | None:
        """Return the inflow of a dest, or None."""
        inflows = self.inflows.get(dest_id)
        return None if inflows is None else inflows[0]

    def all_inflows(self) -> list[Inflow]:
        """Return the inflows of all dests."""
        return [inflow for inflows in self.inflows.values() for inflow in inflows]

    def is_caught_up(self, topic: Topic) -> bool:
        """Whether all submitted records that routers copy into a topic were copied, through any chain of routers."""
        seen: set[int] = set()
        topic_id = topic.id
        while topic_id not in seen:
            seen.add(topic_id)
            if topic_id in self.making:
                return False
            inflow = self.inflow(topic_id)
            if inflow is None:
                return True
            if inflow.busy or inflow.low < inflow.source.in_flight.next_seq - 1:
                return False
            topic_id = inflow.source.id
        return True

    def add(self, router: Router) -> None:
        """Add a router to its inflow; its first router creates the inflow."""
        self.next_number = max(self.next_number, router.number + 1)
        self.by_name[router.name] = self.by_number[router.number] = router
        inflows = self.inflows.setdefault(router.dest_id, [])
        inflow = next((inflow for inflow in inflows if inflow.source is router.source), None)
        if inflow is None:
            inflow = Inflow(router.number, router.source, router.dest_id, router.dest_base)
            inflows.append(inflow)
            inflows.sort(key=lambda inflow: inflow.number)
            self.out.setdefault(router.source.id, []).append(inflow)
            router.source.guard = self._guard
            self.note_fed(router.dest_id)
        inflow.routers.append(router)
        router.inflow = inflow

    def remove(self, router: Router) -> Inflow:
        """Remove a router and return its inflow. Without its last router, the inflow is removed too."""
        del self.by_number[router.number]
        if self.by_name.get(router.name) is router:
            del self.by_name[router.name]
        inflow = router.inflow
        inflow.routers.remove(router)
        if not inflow.routers:
            inflows, out = self.inflows[router.dest_id], self.out[router.source.id]
            inflows.remove(inflow)
            if not inflows:
                del self.inflows[router.dest_id]
                self.note_fed(router.dest_id)
            out.remove(inflow)
            if not out:
                del self.out[router.source.id]
                self.hops.pop(router.source.id, None)
                router.source.guard = None
        return inflow

    def note_fed(self, topic_id: int) -> None:
        """Update whether a topic is `fed`: whether a router copies into it."""
        dest = self.topic(topic_id)
        if dest is not None:
            dest.fed = topic_id in self.inflows

    def note_all_fed(self) -> None:
        """Update `fed` for all dests when all topics exist; a router may have been restored before its dest."""
        for topic_id in self.inflows:
            self.note_fed(topic_id)

    def touching(self, topic: Topic) -> list[Router]:
        """Return the routers that copy from or into a topic."""
        inflows = [*self.inflows.get(topic.id, ()), *self.out.get(topic.id, ())]
        return [router for inflow in inflows for router in inflow.routers]

    def note_hops(self, topic: Topic, first: int, last: int, hops: int) -> None:
        """Record the hops of copies, if a router copies from this topic."""
        if topic.id in self.out:
            self.hops.setdefault(topic.id, Hops()).add(first, last, hops)

    def forget_hops(self, topic: Topic) -> None:
        """Forget the hops of records that every router has passed."""
        hops = self.hops.get(topic.id)
        if hops is not None:
            hops.forget(min(inflow.low for inflow in self.out[topic.id]))
            if not hops.ranges:
                del self.hops[topic.id]

    def capture(self) -> Section:
        """Return the section of a checkpoint."""
        return Section(
            self.next_number,
            [_state(router) for router in self.by_number.values()],
            [(topic_id, list(hops.ranges)) for topic_id, hops in self.hops.items()],
        )

    def restore(self, section: Section) -> None:
        """Restore the routers of a checkpoint, whose topics must exist."""
        for state in section.routers:
            source = self.topic(state.source_id)
            assert source is not None, "a checkpoint has the topics that its routers name"
            router = Router(state.number, state.name, source, state.dest_id, state.created_ts, state.dest_base)
            router.cursor, router.copied_to = state.cursor, state.copied_to
            router.forwarded = state.forwarded
            for after, spec in state.specs:
                router.put(spec, after)
            self.add(router)
        self.next_number = max(self.next_number, section.next_number)
        self.hops = {topic_id: Hops(list(ranges)) for topic_id, ranges in section.hops}


def _state(router: Router) -> RouterCheckpoint:
    return RouterCheckpoint(
        router.number,
        router.name,
        router.source.id,
        router.dest_id,
        router.dest_base,
        router.created_ts,
        router.cursor,
        router.copied_to,
        router.forwarded,
        [(after, rule.spec) for after, rule in router.specs],
    )
