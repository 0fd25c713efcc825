"""A cache of pages that are rendered to bytes once for all readers with the same request.

A page depends only on the state of the topic and on the request. While the head stays the same, records can only
disappear and holes can only be added. Head, count, earliest seq and holes therefore identify a state. When one of them
has changed, the cached pages of the topic are dropped.

Invariants
- Only pages of a topic's newest state are cached.
- The cache holds at most `bytes_max` bytes; the topics that were requested longest ago are dropped first.
"""

from collections import OrderedDict

from msgspec import structs

from driftq.codec.record_json import Fields, render_records
from driftq.engine.block_fetch import Fetch
from driftq.engine.engine import Engine
from driftq.engine.read.topic_page import Page
from driftq.engine.state.topic import Topic
from driftq.features.watch.position import Options
from driftq.model.limits import MIB

_BYTES_MAX = 32 * MIB
_TOPICS_MAX = 1024

_Key = tuple[int, int | None, Options]


class RenderedPage:
    """A page without its slices, and its records as JSON joined by commas."""

    __slots__ = ("event", "message", "page", "records", "size")

    def __init__(self, page: Page, fields: Fields) -> None:
        # The slices of the page are dropped, because they would keep blocks in memory.
        self.size = page.size
        self.records = render_records(page, fields) if page.slices else b""
        self.page = page._replace(slices=[])
        self.event: bytes | None = None
        """The records as an event of a stream; the first stream that sends them sets it."""
        self.message: bytes | None = None
        """The records as a message of a WebSocket; the first socket that sends them sets it."""


class _Kept:
    __slots__ = ("_count", "_earliest", "_head", "_holes", "batches", "size")

    def __init__(self, topic: Topic) -> None:
        self._head = topic.head
        self._count = topic.count
        self._earliest = topic.earliest
        self._holes = list(topic.holes.all)
        self.batches: dict[_Key, RenderedPage] = {}
        self.size = 0

    def is_of(self, topic: Topic) -> bool:
        """Whether the topic is still in the state that was cached."""
        return (
            self._head == topic.head
            and self._count == topic.count
            and self._earliest == topic.earliest
            and self._holes == topic.holes.all
        )


class RenderedPages:
    """The cache of rendered pages, by topic."""

    def __init__(self, engine: Engine, bytes_max: int = _BYTES_MAX) -> None:
        self._engine = engine
        self._bytes_max = bytes_max
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self.kept_bytes = 0
        self.rendered = 0
        """How often records were rendered, for tests and metrics."""

    def read(self, topic: Topic, cursor: int, up_to: int | None, options: Options) -> RenderedPage | Fetch:
        """Return a page of a topic, or the Fetch to wait for before the next call. The caller has applied retention."""
        if options.nodes and not topic.config.dedupe_node:
            options = structs.replace(options, nodes=frozenset())
        key = (cursor, up_to, options)
        kept = self._kept_of(topic)
        found = kept.batches.get(key)
        if found is not None:
            self._kept.move_to_end(topic.id)
            return found
        page = self._engine.diff(topic.name, options.query(cursor, up_to))
        if isinstance(page, Fetch):
            return page
        batch = RenderedPage(page, options.fields())
        if batch.size:
            self.rendered += 1
            self._keep(topic, key, batch)
        return batch

    def _kept_of(self, topic: Topic) -> _Kept:
        kept = self._kept.get(topic.id)
        if kept is not None:
            if kept.is_of(topic):
                return kept
            self._drop(topic.id)
        return _Kept(topic)

    def _keep(self, topic: Topic, key: _Key, batch: RenderedPage) -> None:
        kept = self._kept_of(topic)
        self._kept[topic.id] = kept
        kept.batches[key] = batch
        # The records may also be kept as an event and as a message.
        size = 3 * len(batch.records)
        kept.size += size
        self.kept_bytes += size
        while self.kept_bytes > self._bytes_max or len(self._kept) > _TOPICS_MAX:
            self._drop(next(iter(self._kept)))

    def _drop(self, topic_id: int) -> None:
        self.kept_bytes -= self._kept.pop(topic_id).size
