"""Create, update and delete topics: each change is logged and synced before it is visible, in every durability class.

Two concurrent creations of one name make one topic. A put or a delete that meets a creation or deletion in flight waits
for it and then decides.
"""

from collections.abc import Callable

from driftq.engine.state.catalog import Catalog
from driftq.engine.state.control_frames import TopicFrame, encode_body
from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog, forward, settle_with
from driftq.engine.write.state_changes import apply_topic
from driftq.errors import (
    DriftQError,
    ThrottledError,
    TopicExistsIncompatibleError,
    TopicNotEmptyError,
    TopicNotFoundError,
)
from driftq.model.limits import RESERVE_MIN
from driftq.model.names import check_stored_name
from driftq.model.topic_config import Durability, TopicConfig, TopicPatch
from driftq.storage.blocks.frame import Kind
from driftq.system.runtime import Pending

_DEFAULT = TopicConfig()


class CatalogWriter:
    """The logged operations on the catalog."""

    def __init__(self, catalog: Catalog, change_log: ChangeLog, gone: Callable[[Topic, DriftQError], None]) -> None:
        self._catalog = catalog
        self._change_log = change_log
        self._gone = gone
        self._creating: dict[int, Pending[Topic]] = {}
        self._updating: dict[int, Pending[None]] = {}
        """The last update in flight, by topic id."""
        self._deleting: dict[int, Pending[bool]] = {}
        self.before_update: list[Callable[[Topic, TopicConfig], None]] = []
        """Callbacks that may log frames before the frame of a new config."""
        self.before_delete: list[Callable[[Topic], None]] = []
        """Callbacks that may log frames before the frame of a deletion."""

    def put(self, name: str, config: TopicConfig) -> Pending[bool]:
        """Create a topic or replace its config. The result is whether it was created."""
        check_stored_name(name)
        resolved = config.resolved(name)
        answer: Pending[bool] = Pending()
        existing = self._catalog.holder(name)
        if existing is None:
            settle_with(self.create(name, resolved), answer, lambda _: True)
        elif (unsettled := self.unsettled(existing)) is not None:
            unsettled.then(lambda _: forward(lambda: self.put(name, config), answer))
        else:
            self._check_type(existing, resolved)
            settle_with(self._update(existing, resolved), answer, lambda _: False)
        return answer

    def patch(self, name: str, patch: TopicPatch) -> Pending[TopicConfig]:
        """Change some fields of a config. The result is the whole config. Raises TopicNotFoundError.

        A patch waits for every change of its topic in flight, so two patches never undo each other.
        """
        topic = self._catalog.holder(name)
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
        """Create a topic unless it exists; then its config stays as it is. The result is whether it was created."""
        answer: Pending[bool] = Pending()
        existing = self._catalog.holder(name)
        if existing is None:
            settle_with(self.create(name, config.resolved(name)), answer, lambda _: True)
        elif (unsettled := self.unsettled(existing)) is not None:
            unsettled.then(lambda _: forward(lambda: self.ensure(name, config), answer))
        else:
            answer.resolve(False)
        return answer

    def unsettled(self, topic: Topic) -> "Pending[Topic] | Pending[bool] | None":
        """Return the creation or deletion of a topic while it is in flight, else None."""
        return self._creating.get(topic.id) or self.deleting(topic)

    def deleting(self, topic: Topic) -> Pending[bool] | None:
        """Return the deletion of a topic while it is in flight, else None."""
        return self._deleting.get(topic.id)

    def create(self, name: str, config: TopicConfig, *, for_write: bool = False) -> Pending[Topic]:
        """Create a topic whose name is free. With `for_write` it also reserves seqs, which a write uses at once."""
        check_stored_name(name)
        catalog = self._catalog
        if 0 < catalog.topics_max <= len(catalog.by_name):
            raise ThrottledError(
                f"topic limit reached (max_topics={catalog.topics_max})",
                detail={"limit": "max_topics", "max": catalog.topics_max},
                retry_after_ms=1000,
            )
        topic_id = catalog.next_id
        created_ts = self._change_log.time.wall()
        topic = catalog.adopt(topic_id, name, config)
        topic.in_flight.held += 1
        catalog.hold_name(topic)
        reserved = RESERVE_MIN if for_write and config.resolved_durability is Durability.DISK else 0
        body = TopicFrame(name, config, created_ts, reserved=reserved)

        def apply(op: int, ts: int) -> Topic:
            apply_topic(topic, body, op, ts)
            catalog.config_changes += 1
            topic.visible = True
            return topic

        try:
            created = self._change_log.control(topic, Kind.TOPIC, encode_body(body), apply, uses_reserve=False)
        except DriftQError:
            del catalog.by_id[topic_id]
            catalog.free_name(topic)
            raise
        self._creating[topic_id] = created
        created.then(lambda done: self._created(topic, done))
        return created

    def _created(self, topic: Topic, done: Pending[Topic]) -> None:
        del self._creating[topic.id]
        topic.in_flight.held -= 1
        if done.error is not None:
            assert isinstance(done.error, DriftQError)
            del self._catalog.by_id[topic.id]
            self._catalog.free_name(topic)
            self._gone(topic, done.error)
        self._change_log.schedule()

    def _check_type(self, topic: Topic, config: TopicConfig) -> None:
        if config.type != topic.config.type:
            raise TopicExistsIncompatibleError(
                f"topic {topic.name!r} has type {topic.config.type}, which cannot be changed",
                detail={"topic": topic.name, "existing_type": topic.config.type, "requested_type": config.type},
            )

    def _update(self, topic: Topic, config: TopicConfig) -> Pending[None]:
        """Replace the config. Writes wait meanwhile, because the frame stores the last seq of the old class."""
        topic.expire(self._change_log.time.now())
        for hears in self.before_update:
            hears(topic, config)
        head = topic.in_flight.next_seq - 1
        disk = config.resolved_durability is Durability.DISK
        body = TopicFrame(
            topic.name,
            config,
            topic.created_ts,
            head=head,
            earliest=topic.earliest,
            cap_lost=topic.cap_lost,
            ttl_lost=topic.ttl_lost,
            reserved=max(head, topic.reserved, topic.in_flight.reserve_asked) if disk else 0,
        )
        topic.in_flight.held += 1

        def apply(op: int, ts: int) -> None:
            apply_topic(topic, body, op, ts)
            self._catalog.config_changes += 1

        try:
            updated = self._change_log.control(topic, Kind.TOPIC, encode_body(body), apply)
        except DriftQError:
            topic.in_flight.held -= 1
            raise
        self._updating[topic.id] = updated
        updated.then(lambda done: self._updated(topic, done))
        return updated

    def _updated(self, topic: Topic, done: Pending[None]) -> None:
        if self._updating.get(topic.id) is done:
            del self._updating[topic.id]
        self._release(topic)

    def _release(self, topic: Topic) -> None:
        topic.in_flight.held -= 1
        self._change_log.schedule()

    def delete(self, name: str, *, if_empty: bool = False) -> Pending[bool]:
        """Delete a topic and everything that refers to it. The result is whether it existed."""
        answer: Pending[bool] = Pending()
        topic = self._catalog.holder(name)
        if topic is None:
            answer.resolve(False)
            return answer
        unsettled = self.unsettled(topic)
        if unsettled is not None:
            unsettled.then(lambda _: forward(lambda: self.delete(name, if_empty=if_empty), answer))
            return answer
        topic.expire(self._change_log.time.now())
        if if_empty and topic.count + topic.in_flight.records:
            raise TopicNotEmptyError(
                f"topic {name!r} is not empty",
                detail={"topic": name, "count": topic.count + topic.in_flight.records},
            )
        for hears in self.before_delete:
            hears(topic)
        topic.in_flight.held += 1

        def apply(_: int, __: int) -> bool:
            self._catalog.forget(topic)
            return True

        try:
            deleted = self._change_log.control(topic, Kind.TOPIC_DELETE, b"", apply)
        except DriftQError:
            topic.in_flight.held -= 1
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
