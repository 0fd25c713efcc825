"""Named cursors (http-v0 §22.4): positions of readers, stored by the server so that others can see them.

    absent → put → moved, forwards, or anywhere with `rewind` → deleted, or gone with its topic

A put is logged like a `disk` write: it is answered when its frame is written, and durable after the shard's next sync.
A power loss may therefore restore an earlier position of the cursor. The effect of a put is decided when its frame is
applied, live and in replay alike: of several concurrent puts the highest wins, in whatever order they arrived.

Frame kind 80 and the checkpoint's section `cursors`: docs/formats/wal.md and docs/formats/snapshot.md.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct, msgpack

from driftq.engine.engine import Engine
from driftq.engine.state.catalog import check_epoch
from driftq.engine.state.topic import Topic
from driftq.errors import InvalidRequestError, NotFoundError, ThrottledError
from driftq.model.limits import CURSORS_MAX
from driftq.model.names import is_router_name
from driftq.system.runtime import Pending

KIND = 80


class NamedCursor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The position of one reader in a topic."""

    seq: int
    updated_ts: int
    meta: dict[str, str] | None = None


class CursorBody(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Kind 80: a put; without a seq, a delete."""

    name: str
    seq: int | None
    rewind: bool = False
    meta: dict[str, str] | None = None


class Put(Struct, frozen=True):
    """The answer to a put: the cursor after it, and whether this put moved it."""

    cursor: NamedCursor
    moved: bool


class NamedCursors:
    """The named cursors of all topics."""

    name = "cursors"
    kinds = frozenset((KIND,))

    def __init__(self) -> None:
        self._topics: dict[int, dict[str, NamedCursor]] = {}
        self._under_way: Counter[tuple[int, str]] = Counter()
        """How many frames of a cursor are logged and not applied yet."""
        self._effect = False
        """Whether the last applied frame created, moved or deleted a cursor."""
        self._engine: Engine

    def bind(self, engine: Engine) -> None:
        """Set the engine, before any other call."""
        self._engine = engine

    # Calls from handlers

    def put(
        self,
        name: str,
        cursor: str,
        seq: int,
        *,
        epoch: int | None = None,
        rewind: bool = False,
        meta: dict[str, str] | None = None,
    ) -> Pending[Put]:
        """Create or move a cursor."""
        topic = self._topic(name, cursor)
        check_epoch(topic, epoch)
        if seq > topic.head:
            raise InvalidRequestError(f"seq {seq} is above the head of the topic ({topic.head})")
        stored = self._topics.get(topic.id, {}).get(cursor)
        answer: Pending[Put] = Pending()
        body = CursorBody(cursor, seq, rewind, meta)
        if stored is not None and not self._under_way[topic.id, cursor] and _after(stored, body, 0) == stored:
            answer.resolve(Put(stored, False))
            return answer
        self._check_room(topic, cursor)

        def settle(done: Pending[None]) -> None:
            if done.error is not None:
                answer.fail(done.error)
            else:
                answer.resolve(Put(self._topics[topic.id][cursor], self._effect))

        self._log(topic, body).then(settle)
        return answer

    def delete(self, name: str, cursor: str) -> Pending[bool]:
        """Delete a cursor. The answer is whether it existed."""
        topic = self._engine.topic(name)
        answer: Pending[bool] = Pending()
        if cursor not in self._topics.get(topic.id, {}) and not self._under_way[topic.id, cursor]:
            answer.resolve(False)
            return answer

        def settle(done: Pending[None]) -> None:
            if done.error is not None:
                answer.fail(done.error)
            else:
                answer.resolve(self._effect)

        self._log(topic, CursorBody(cursor, None)).then(settle)
        return answer

    def get(self, name: str, cursor: str) -> NamedCursor:
        """Return one cursor. Raise NotFoundError or TopicNotFoundError."""
        found = self._topics.get(self._engine.topic(name).id, {}).get(cursor)
        if found is None:
            raise NotFoundError(f"topic {name!r} has no cursor {cursor[:256]!r}")
        return found

    def all(self, name: str) -> dict[str, NamedCursor]:
        """Return the cursors of a topic, by name."""
        return self._topics.get(self._engine.topic(name).id, {})

    def lags(self, topics: Iterable[Topic]) -> Iterator[tuple[str, str, int]]:
        """Yield topic, cursor and lag in seqs for every cursor of these topics."""
        for topic in topics:
            for name, cursor in self._topics.get(topic.id, {}).items():
                yield topic.name, name, topic.head - cursor.seq

    def _topic(self, name: str, cursor: str) -> Topic:
        if not is_router_name(cursor):
            raise InvalidRequestError(
                "a cursor name has 1 to 255 characters of A-Z a-z 0-9 . _ : > - and begins with a letter or a digit"
            )
        return self._engine.topic(name)

    def _check_room(self, topic: Topic, cursor: str) -> None:
        names = {*self._topics.get(topic.id, {}), *(name for of, name in self._under_way if of == topic.id)}
        if cursor not in names and len(names) >= CURSORS_MAX:
            raise ThrottledError(
                f"cursor limit of topic {topic.name!r} reached (max_cursors={CURSORS_MAX})",
                detail={"limit": "max_cursors", "max": CURSORS_MAX},
                retry_after_ms=1000,
            )

    def _log(self, topic: Topic, body: CursorBody) -> Pending[None]:
        key = (topic.id, body.name)
        logged = self._engine.log(topic, KIND, msgpack.encode(body), self, sync=False)
        self._under_way[key] += 1

        def settle(_: Pending[None]) -> None:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

        logged.then(settle)
        return logged

    # Calls from the engine

    def apply(self, _: int, topic: Topic, ts: int, body: bytes) -> None:
        """Apply a committed put or delete."""
        asked = msgpack.decode(body, type=CursorBody)
        cursors = self._topics.setdefault(topic.id, {})
        stored = cursors.pop(asked.name, None)
        if asked.seq is None:
            self._effect = stored is not None
            return
        cursors[asked.name] = found = _after(stored, asked, ts)
        self._effect = stored is None or found.seq != stored.seq

    def capture(self) -> bytes:
        """Return the checkpoint section: topic id to cursors by name."""
        return msgpack.encode({topic_id: cursors for topic_id, cursors in self._topics.items() if cursors})

    def restore(self, section: bytes) -> None:
        """Restore all cursors from a checkpoint section."""
        self._topics = msgpack.decode(section, type=dict[int, dict[str, NamedCursor]])

    def forget(self, topic: Topic) -> None:
        """Drop the cursors of a deleted topic."""
        self._topics.pop(topic.id, None)


def _after(stored: NamedCursor | None, asked: CursorBody, ts: int) -> NamedCursor:
    """Return the cursor after a put. Without a new meta, the old one is kept."""
    assert asked.seq is not None
    if stored is None:
        return NamedCursor(asked.seq, ts, asked.meta)
    if asked.seq < stored.seq and not asked.rewind:
        return stored
    if asked.seq == stored.seq and asked.meta in (None, stored.meta):
        return stored
    return NamedCursor(asked.seq, ts, stored.meta if asked.meta is None else asked.meta)
