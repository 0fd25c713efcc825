"""Which topics there are: create, update, delete, look up. Logged and synced before anything is seen, in every class.

A topic's name is held from the moment its creation is submitted until its deletion is committed, so that two creators
of one name make one topic; it is visible from the one commit to the other. What a put or a delete means that meets
either under way is decided when that is over. Ids are never used twice, so a recreated name is another topic:
`epoch` = id.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from driftq.engine.apply import apply_topic
from driftq.engine.blocks import Blocks
from driftq.engine.durable import DurableState
from driftq.engine.frames import TopicBody, encode_body
from driftq.engine.journal import Journal, forward, settle_with
from driftq.engine.timeline import Timeline
from driftq.engine.topic import FloorMoved, Topic
from driftq.errors import (
    DriftQError,
    EpochMismatchError,
    ThrottledError,
    TopicExistsIncompatibleError,
    TopicNotEmptyError,
    TopicNotFoundError,
)
from driftq.model.limits import RESERVE_MIN
from driftq.model.names import check_stored_name
from driftq.model.topic import Durability, TopicConfig, TopicPatch
from driftq.seam.runtime import Pending
from driftq.storage.frame import Kind

_DEFAULT = TopicConfig()


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
        """How many configs have been applied, for whoever remembers something that follows from them."""
        self._sorted: list[str] | None = None
        self.next_id = 1
        self.features: list[DurableState] = []
        self.deleted: list[Topic] = []
        """Topics whose files wait to be removed."""
        self._floor_moved: FloorMoved | None = None
        self._keyed: Callable[[Topic], None] | None = None

    def find(self, name: str) -> Topic | None:
        """The topic of a name, if it is there for readers."""
        topic = self.by_name.get(name)
        return topic if topic is not None and topic.visible else None

    def get(self, name: str) -> Topic:
        """The topic of a name, or the error that there is none."""
        topic = self.find(name)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def names(self) -> list[str]:
        """Every name that is held, in order; not all of them are there for readers."""
        if self._sorted is None:
            self._sorted = sorted(self.by_name)
        return self._sorted

    def hold_name(self, topic: Topic) -> None:
        """The topic's name is taken from now on."""
        self.by_name[topic.name] = topic
        if self._sorted is not None:
            insort(self._sorted, topic.name)

    def free_name(self, topic: Topic) -> None:
        """And free again, if it was this topic's."""
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
            if self._sorted is not None:
                del self._sorted[bisect_left(self._sorted, topic.name)]

    def visible(self) -> Iterable[Topic]:
        """Every topic that is there for readers."""
        return [topic for topic in self.by_id.values() if topic.visible]

    def rename(self, topic: Topic, name: str) -> None:
        """Give a topic another name. The log still has the old one: every start that finds it must rename again."""
        self.free_name(topic)
        topic.name = name
        self.hold_name(topic)

    def adopt(self, topic_id: int, name: str, config: TopicConfig) -> Topic:
        """A topic that the log or a checkpoint names."""
        topic = Topic(topic_id, name, config, self._blocks, self._timeline)
        topic.floor_moved, topic.keyed = self._floor_moved, self._keyed
        self.by_id[topic_id] = topic
        self.next_id = max(self.next_id, topic_id + 1)
        return topic

    def watch_keys(self, hears: Callable[[Topic], None]) -> None:
        """Call this one whenever a topic gets an idempotency key, and now for those that have some."""
        self._keyed = hears
        for topic in self.by_id.values():
            topic.keyed = hears
            hears(topic)

    def watch_floors(self, hears: FloorMoved) -> None:
        """From now on somebody hears of floors that the log does not give."""
        self._floor_moved = hears
        for topic in self.by_id.values():
            topic.floor_moved = hears

    def forget(self, topic: Topic) -> None:
        """A topic is deleted: nothing of it is left but files, for a while."""
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


class CatalogWriter:
    """The logged operations on the catalog."""

    def __init__(self, catalog: Catalog, journal: Journal, gone: Callable[[Topic, DriftQError], None]) -> None:
        self._catalog = catalog
        self._journal = journal
        self._gone = gone
        self._creating: dict[int, Pending[Topic]] = {}
        self._updating: dict[int, Pending[None]] = {}
        """The last update of each topic that has any under way."""
        self._deleting: dict[int, Pending[bool]] = {}
        self.before_update: list[Callable[[Topic, TopicConfig], None]] = []
        """Who logs something before the frame of a new config."""
        self.before_delete: list[Callable[[Topic], None]] = []
        """Who logs something before the frame of a deletion."""

    def put(self, name: str, config: TopicConfig) -> Pending[bool]:
        """Create a topic or replace its config. The answer says whether it was created."""
        check_stored_name(name)
        resolved = config.resolved(name)
        answer: Pending[bool] = Pending()
        existing = self._catalog.by_name.get(name)
        if existing is None:
            settle_with(self.create(name, resolved), answer, lambda _: True)
        elif (unsettled := self.unsettled(existing)) is not None:
            unsettled.then(lambda _: forward(lambda: self.put(name, config), answer))
        else:
            self._check_type(existing, resolved)
            settle_with(self._update(existing, resolved), answer, lambda _: False)
        return answer

    def patch(self, name: str, patch: TopicPatch) -> Pending[TopicConfig]:
        """Change some fields of a config. The answer is the whole config. Raise TopicNotFoundError.

        A patch waits for every change of its topic that is under way, so two of them never undo each other.
        """
        topic = self._catalog.by_name.get(name)
        if topic is None:
            raise TopicNotFoundError(name)
        answer: Pending[TopicConfig] = Pending()
        unsettled = self.unsettled(topic) or self._updating.get(topic.id)
        if unsettled is not None:
            unsettled.then(lambda _: forward(lambda: self.patch(name, patch), answer))
            return answer
        config = patch.over(topic.config).resolved(name)
        self._check_type(topic, config)
        settle_with(self._update(topic, config), answer, lambda _: config)
        return answer

    def ensure(self, name: str, config: TopicConfig = _DEFAULT) -> Pending[bool]:
        """Create a topic unless it is there; its config then stays. The answer says whether it was created."""
        answer: Pending[bool] = Pending()
        existing = self._catalog.by_name.get(name)
        if existing is None:
            settle_with(self.create(name, config.resolved(name)), answer, lambda _: True)
        elif (unsettled := self.unsettled(existing)) is not None:
            unsettled.then(lambda _: forward(lambda: self.ensure(name, config), answer))
        else:
            answer.resolve(False)
        return answer

    def unsettled(self, topic: Topic) -> "Pending[Topic] | Pending[bool] | None":
        """The creation or deletion of a topic, while it is under way."""
        return self._creating.get(topic.id) or self.deleting(topic)

    def deleting(self, topic: Topic) -> Pending[bool] | None:
        """The deletion of a topic, while it is under way."""
        return self._deleting.get(topic.id)

    def create(self, name: str, config: TopicConfig, *, for_write: bool = False) -> Pending[Topic]:
        """Create a topic whose name is free. Only one that a write waits for reserves seqs: it is about to use them."""
        check_stored_name(name)
        catalog = self._catalog
        if 0 < catalog.topics_max <= len(catalog.by_name):
            raise ThrottledError(
                "there are as many topics as there may be",
                detail={"limit": "max_topics", "max": catalog.topics_max},
                retry_after_ms=1000,
            )
        topic_id = catalog.next_id
        created_ts = self._journal.time.wall()
        topic = catalog.adopt(topic_id, name, config)
        topic.held += 1
        catalog.hold_name(topic)
        reserved = RESERVE_MIN if for_write and config.resolved_durability is Durability.DISK else 0
        body = TopicBody(name, config, created_ts, reserved=reserved)

        def apply(op: int, ts: int) -> Topic:
            apply_topic(topic, body, op, ts)
            catalog.config_changes += 1
            topic.visible = True
            return topic

        try:
            created = self._journal.control(topic, Kind.TOPIC, encode_body(body), apply, uses_reserve=False)
        except DriftQError:
            del catalog.by_id[topic_id]
            catalog.free_name(topic)
            raise
        self._creating[topic_id] = created
        created.then(lambda done: self._created(topic, done))
        return created

    def _created(self, topic: Topic, done: Pending[Topic]) -> None:
        del self._creating[topic.id]
        topic.held -= 1
        if done.error is not None:
            assert isinstance(done.error, DriftQError)
            del self._catalog.by_id[topic.id]
            self._catalog.free_name(topic)
            self._gone(topic, done.error)
        self._journal.schedule()

    def _check_type(self, topic: Topic, config: TopicConfig) -> None:
        if config.type != topic.config.type:
            raise TopicExistsIncompatibleError(
                f"topic {topic.name!r} is a {topic.config.type} and stays one",
                detail={"topic": topic.name, "existing_type": topic.config.type, "requested_type": config.type},
            )

    def _update(self, topic: Topic, config: TopicConfig) -> Pending[None]:
        """Replace the config. Writes wait meanwhile: the frame says up to where the old class held."""
        topic.expire(self._journal.time.now())
        for hears in self.before_update:
            hears(topic, config)
        head = topic.next_seq - 1
        disk = config.resolved_durability is Durability.DISK
        body = TopicBody(
            topic.name,
            config,
            topic.created_ts,
            head=head,
            earliest=topic.earliest,
            cap_lost=topic.cap_lost,
            ttl_lost=topic.ttl_lost,
            reserved=max(head, topic.reserved, topic.reserve_asked) if disk else 0,
        )
        topic.held += 1

        def apply(op: int, ts: int) -> None:
            apply_topic(topic, body, op, ts)
            self._catalog.config_changes += 1

        try:
            updated = self._journal.control(topic, Kind.TOPIC, encode_body(body), apply)
        except DriftQError:
            topic.held -= 1
            raise
        self._updating[topic.id] = updated
        updated.then(lambda done: self._updated(topic, done))
        return updated

    def _updated(self, topic: Topic, done: Pending[None]) -> None:
        if self._updating.get(topic.id) is done:
            del self._updating[topic.id]
        self._release(topic)

    def _release(self, topic: Topic) -> None:
        topic.held -= 1
        self._journal.schedule()

    def delete(self, name: str, *, if_empty: bool = False) -> Pending[bool]:
        """Delete a topic and everything that names it. The answer says whether it was there."""
        answer: Pending[bool] = Pending()
        topic = self._catalog.by_name.get(name)
        if topic is None:
            answer.resolve(False)
            return answer
        unsettled = self.unsettled(topic)
        if unsettled is not None:
            unsettled.then(lambda _: forward(lambda: self.delete(name, if_empty=if_empty), answer))
            return answer
        topic.expire(self._journal.time.now())
        if if_empty and topic.count + topic.inflight_records:
            raise TopicNotEmptyError(
                f"topic {name!r} is not empty",
                detail={"topic": name, "count": topic.count + topic.inflight_records},
            )
        for hears in self.before_delete:
            hears(topic)
        topic.held += 1

        def apply(_: int, __: int) -> bool:
            self._catalog.forget(topic)
            return True

        try:
            deleted = self._journal.control(topic, Kind.TOPIC_DELETE, b"", apply)
        except DriftQError:
            topic.held -= 1
            raise

        self._deleting[topic.id] = deleted

        def settle(done: Pending[bool]) -> None:
            del self._deleting[topic.id]
            if done.error is not None:
                self._release(topic)
                answer.fail(done.error)
            else:
                self._gone(topic, TopicNotFoundError(name))
                answer.resolve(True)

        deleted.then(settle)
        return answer


def check_epoch(topic: Topic, epoch: int | None) -> None:
    """Refuse who means an earlier topic of this name."""
    if epoch is not None and epoch != topic.id:
        raise EpochMismatchError(f"topic {topic.name!r} was deleted and made again since", detail={"epoch": topic.id})
