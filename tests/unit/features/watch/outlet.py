"""A feed on an engine, and an outlet that keeps the events it is handed."""

import pickle
from typing import Any

from msgspec import json

from driftq.errors import SegmentUnavailableError
from driftq.features.watch.feed import Feed
from driftq.features.watch.position import Options, ReadPosition, ReadStart, begin
from driftq.features.watch.rendered_pages import RenderedPage
from driftq.features.watch.watch import Watch
from driftq.model.tombstone import Tombstone
from driftq.system.runtime import run
from driftq.testing import EngineRig, SeededEntropy

Event = tuple[Any, ...]


class KeptOutlet:
    """Takes events as long as the test says so."""

    def __init__(self) -> None:
        self.ready = True
        self.events: list[Event] = []
        self.broken = False
        self.flushed = 0
        self.room: int | None = None
        self.place: object = None
        """What it says of its standing."""
        self.said: bytes | None = None
        self.repeated = 0
        """How often it said what another one had said."""

    def standing(self) -> object:
        return self.place

    def say_again(self, said: bytes) -> None:
        self.repeated += 1
        for event in pickle.loads(said):
            self._take(*event)
        self.flush()

    def records(self, name: str, batch: RenderedPage, from_seq: int, head_seq: int) -> None:
        found = json.decode(b"[" + batch.records + b"]")
        self._take("record", name, [record["$seq"] for record in found], from_seq, head_seq)

    def tombstone(self, name: str, tombstone: Tombstone) -> None:
        self._take("tombstone", name, tombstone.reason.value, tombstone.gap_from, tombstone.gap_to)

    def caught_up(self, name: str, head_seq: int) -> None:
        self._take("caught-up", name, head_seq)

    def deleted(self, name: str, head_seq: int) -> None:
        self._take("deleted", name, head_seq)

    def paced(self, names: list[str], retry_after_ms: int) -> None:
        self._take("paced", names)

    def unavailable(self, name: str, error: SegmentUnavailableError) -> None:
        self._take("unavailable", name, error.code)

    def flush(self) -> None:
        self.said = pickle.dumps(self.events[self.flushed :])
        self.flushed = len(self.events)

    def failed(self) -> None:
        self.broken = True

    def _take(self, *event: Any) -> None:
        self.events.append(event)
        if self.room is not None:
            self.room -= 1
            self.ready = self.room > 0

    def taken(self) -> list[Event]:
        """The events since the last call."""
        assert self.flushed == len(self.events), "something was handed over and not flushed"
        self.flushed = 0
        events, self.events = self.events, []
        return events


class FeedRig(EngineRig):
    """An engine with what its feeds share."""

    def start(self) -> None:
        """Again, after a restart."""
        super().start()
        self.watch = Watch(self.engine, self.runtime, self.clock, SeededEntropy(0))

    def begin(self, name: str, *, strong: bool = False, **start: Any) -> ReadPosition:
        """A place in a topic."""
        pending = run(begin(self.engine, {name: ReadStart(**start)}, lenient=False, strong=strong))
        return self.run(pending)[name].place

    def feed(self, *names: str, start: dict[str, Any] | None = None, **options: Any) -> tuple[Feed, KeptOutlet]:
        """A feed of these topics, and what it said so far."""
        outlet = KeptOutlet()
        feed = Feed(self.watch, outlet)
        wanted = Options(**options)
        for name, place in [(name, self.begin(name, strong=wanted.strong, **(start or {}))) for name in names]:
            feed.add(name, place, wanted)
        self.runtime.run_until_idle()
        return feed, outlet
