"""The parts that all feeds of a server share: engine, sessions, rendered pages and turns."""

from driftq.engine.engine import Engine
from driftq.engine.load.priority import effective_priority
from driftq.engine.state.topic import Topic
from driftq.features.watch.rendered_pages import RenderedPages
from driftq.features.watch.shared_reads import SharedReadTable
from driftq.features.watch.turns import Turns
from driftq.features.watch.watch_sessions import Sessions
from driftq.system.clock import Clock
from driftq.system.entropy import Entropy
from driftq.system.runtime import Runtime

_AGAIN_MS = 50
_KNOWN_MAX = 4096


class Watch:
    """Live reading, as one feature of the server."""

    def __init__(self, engine: Engine, runtime: Runtime, clock: Clock, entropy: Entropy) -> None:
        self.engine = engine
        self.runtime = runtime
        self.clock = clock
        self.sessions = Sessions(clock, entropy, engine.settings.limits.watch_sessions_max)
        self.batches = RenderedPages(engine)
        self.turns = Turns(engine, runtime, clock)
        self.shared_reads = SharedReadTable(engine, self.turns, self.priority)
        self._priorities: dict[int, tuple[int, int]] = {}

    def priority(self, topic: Topic) -> int:
        """Return the priority that a topic's streams are served with. A value is cached for `_AGAIN_MS` ms."""
        now_ms = self.turns.moment_ms
        known = self._priorities.get(topic.id)
        if known is not None and now_ms < known[0]:
            return known[1]
        found = effective_priority(topic.config, topic.consumed_at, self.engine.time.running())
        if len(self._priorities) >= _KNOWN_MAX:
            self._priorities.clear()
        self._priorities[topic.id] = (now_ms + _AGAIN_MS, found)
        return found
