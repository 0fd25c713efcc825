"""Which topics exist: by name, by id, and the names that a creation or deletion holds.

A topic's name is held from the moment its creation is submitted until its deletion is committed. The topic is visible
from the commit of its creation to the commit of its deletion. `engine/write/catalog_writer` logs both. Ids are never
used twice, so a recreated name is another topic: `epoch` = id.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from driftq.engine.state.block_cache import Blocks
from driftq.engine.state.durable_feature import DurableState
from driftq.engine.state.topic import FloorMoved, Topic
from driftq.engine.timeline import Timeline
from driftq.errors import EpochMismatchError, TopicNotFoundError
from driftq.model.topic_config import TopicConfig
from driftq.system.runtime import Pending


class Catalog:
    """All topics, by name and by id."""

    def __init__(self, blocks: Blocks, topics_max: int, timeline: Timeline) -> None:
        self._blocks = blocks
        self._timeline = timeline
        self.usage = blocks.usage
        self.topics_max = topics_max
        self.by_id: dict[int, Topic] = {}
        self.by_name: dict[str, Topic] = {}
        self.config_changes = 0
        """How many configs have been applied. Code that caches values computed from configs compares it."""
        self._sorted: list[str] | None = None
        self.next_id = 1
        self.features: list[DurableState] = []
        self.deleted: list[Topic] = []
        """Topics whose files wait to be removed."""
        self.load_late: Callable[[], None] | None = None
        """Loads every topic that is late (`engine/recovery/deferred_load`). Raises SegmentUnavailableError."""
        self.wait_for_late: Callable[[], Pending[None]] | None = None
        """Returns a Pending that settles when no topic is late any more, or when one cannot be loaded now."""
        self._floor_moved: FloorMoved | None = None
        self._keyed: Callable[[Topic], None] | None = None

    def find(self, name: str) -> Topic | None:
        """Return the topic with this name if readers can see it. Raises SegmentUnavailableError."""
        topic = self.holder(name)
        return topic if topic is not None and topic.visible else None

    def holder(self, name: str) -> Topic | None:
        """Return the topic that holds a name, with all its records loaded. Raises SegmentUnavailableError."""
        topic = self.by_name.get(name)
        if topic is not None and topic.late:
            self.load_all()
        return topic

    def when_loaded(self, then: Callable[[BaseException | None], None]) -> None:
        """Call back when the records of all topics are loaded, or with an error if a topic cannot be loaded now."""
        if self.wait_for_late is None:
            then(None)
        else:
            self.wait_for_late().then(lambda done: then(done.error))

    def load_all(self) -> None:
        """Load all topics that are late. Raises SegmentUnavailableError."""
        if self.load_late is not None:
            self.load_late()

    def get(self, name: str) -> Topic:
        """Return the topic with this name, or raise TopicNotFoundError."""
        topic = self.find(name)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def names(self) -> list[str]:
        """Return every name that is held, sorted; readers may not see all of these topics."""
        if self._sorted is None:
            self._sorted = sorted(self.by_name)
        return self._sorted

    def hold_name(self, topic: Topic) -> None:
        """Reserve the topic's name for it."""
        self.by_name[topic.name] = topic
        if self._sorted is not None:
            insort(self._sorted, topic.name)

    def free_name(self, topic: Topic) -> None:
        """Release the topic's name, unless another topic holds it now."""
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
            if self._sorted is not None:
                del self._sorted[bisect_left(self._sorted, topic.name)]

    def visible(self) -> Iterable[Topic]:
        """Return every topic that readers can see."""
        return [topic for topic in self.by_id.values() if topic.visible]

    def adopt(self, topic_id: int, name: str, config: TopicConfig) -> Topic:
        """Register a topic that the log or a checkpoint contains."""
        topic = Topic(topic_id, name, config, self._blocks, self._timeline)
        topic.floor_moved, topic.keyed = self._floor_moved, self._keyed
        self.by_id[topic_id] = topic
        self.next_id = max(self.next_id, topic_id + 1)
        return topic

    def watch_keys(self, hears: Callable[[Topic], None]) -> None:
        """Call back whenever a topic gets an idempotency key, and now for every topic."""
        self._keyed = hears
        for topic in self.by_id.values():
            topic.keyed = hears
            hears(topic)

    def watch_floors(self, hears: FloorMoved) -> None:
        """Call back whenever a retention floor moves that replay cannot compute from the log."""
        self._floor_moved = hears
        for topic in self.by_id.values():
            topic.floor_moved = hears

    def forget(self, topic: Topic) -> None:
        """Remove a deleted topic from memory; only its files remain for a while."""
        topic.visible = False
        topic.gone = True
        self.by_id.pop(topic.id, None)
        self.free_name(topic)
        for feature in self.features:
            feature.forget(topic)
        self.usage.records -= topic.count
        self.usage.payload -= topic.payload
        for segment in topic.segments:
            self._blocks.forget(topic.id, segment)
        self.deleted.append(topic)


def check_epoch(topic: Topic, epoch: int | None) -> None:
    """Raise EpochMismatchError if the caller means an earlier topic with the same name."""
    if epoch is not None and epoch != topic.id:
        raise EpochMismatchError(f"topic {topic.name!r} was deleted and created again", detail={"epoch": topic.id})
