"""All routers, and the inflows and hops that follow from them.

Invariant: a router is in `by_name`, `by_number` and in the inflow of its dest, or in none of them; a topic that some
router copies from has a guard, and no other has; one that some router copies into is `fed`, and no other is.
"""

from collections import Counter

from driftq.engine.state.catalog import Catalog
from driftq.engine.state.durable_feature import DurableState
from driftq.engine.state.topic import Guard, Topic
from driftq.features.router.destination import Inflow, Router
from driftq.features.router.hops import Hops
from driftq.features.router.router_frames import RouterCheckpoint, Section


class RouterTable:
    """The routers of a server."""

    def __init__(self, feature: DurableState, guard: Guard) -> None:
        self.feature = feature
        """Whose frames are logged."""
        self._guard = guard
        self.catalog: Catalog | None = None
        self.next_number = 1
        self.by_name: dict[str, Router] = {}
        self.by_number: dict[int, Router] = {}
        self.inflows: dict[int, list[Inflow]] = {}
        """By the id of dest. Only replay, which meets frames of several shards in any order, may see more than one."""
        self.out: dict[int, list[Inflow]] = {}
        """By the id of source."""
        self.hops: dict[int, Hops] = {}
        self.making: Counter[int] = Counter()
        """The dests of routers whose frames are under way, by id."""

    def topic(self, topic_id: int) -> Topic | None:
        """A topic that is there."""
        assert self.catalog is not None
        return self.catalog.by_id.get(topic_id)

    def inflow(self, dest_id: int) -> Inflow | None:
        """The inflow of a dest."""
        inflows = self.inflows.get(dest_id)
        return None if inflows is None else inflows[0]

    def all_inflows(self) -> list[Inflow]:
        """Every inflow."""
        return [inflow for inflows in self.inflows.values() for inflow in inflows]

    def is_caught_up(self, topic: Topic) -> bool:
        """Whether every record that was submitted and is to be copied into a topic has been, through any chain."""
        seen: set[int] = set()
        topic_id = topic.id
        while topic_id not in seen:
            seen.add(topic_id)
            if topic_id in self.making:
                return False
            inflow = self.inflow(topic_id)
            if inflow is None:
                return True
            if inflow.busy or inflow.low < inflow.source.next_seq - 1:
                return False
            topic_id = inflow.source.id
        return True

    def add(self, router: Router) -> None:
        """One more."""
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
        """One less. Returns its inflow, which is no more when it was the last."""
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
        """Is something copied into this topic?"""
        dest = self.topic(topic_id)
        if dest is not None:
            dest.fed = topic_id in self.inflows

    def note_all_fed(self) -> None:
        """All topics are there: a router may have been before its dest."""
        for topic_id in self.inflows:
            self.note_fed(topic_id)

    def touching(self, topic: Topic) -> list[Router]:
        """The routers from or to a topic."""
        inflows = [*self.inflows.get(topic.id, ()), *self.out.get(topic.id, ())]
        return [router for inflow in inflows for router in inflow.routers]

    def note_hops(self, topic: Topic, first: int, last: int, hops: int) -> None:
        """Copies have come so far. Nobody asks where nothing is copied from."""
        if topic.id in self.out:
            self.hops.setdefault(topic.id, Hops()).add(first, last, hops)

    def forget_hops(self, topic: Topic) -> None:
        """What every router has passed is asked for no more."""
        hops = self.hops.get(topic.id)
        if hops is not None:
            hops.forget(min(inflow.low for inflow in self.out[topic.id]))
            if not hops.ranges:
                del self.hops[topic.id]

    def capture(self) -> Section:
        """As a checkpoint has it."""
        return Section(
            self.next_number,
            [_state(router) for router in self.by_number.values()],
            [(topic_id, list(hops.ranges)) for topic_id, hops in self.hops.items()],
        )

    def restore(self, section: Section) -> None:
        """From a checkpoint; its topics are there."""
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
