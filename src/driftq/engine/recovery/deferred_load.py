"""Records of class `memory` that a start loads when the server is ready (http-v0 §17: they never hold readiness back).

While it reads the log, replay passes over spans (`storage/wal/memory_spans`): stretches with nothing but Append frames
of `memory` topics. Between spans, where such a topic is written in turn with others, it checks the Append frames of
`memory` topics one by one, and remembers where each begins instead of applying it; but for the first `EAGER_FRAMES`.
Both are pieces, in the order of the log. When the server takes calls, they are read again and applied, some
milliseconds at a time.

    a topic:   loaded → late, from its first frame on that is in a piece → loaded, when its last piece is applied
    a start:   reading the log → ready, with topics that are late → all loaded

Which topics may be late: class `memory`, type `log`, not the broker's, and no router copies from it or into it. A frame
of a late topic that is not an Append, a frame about routers, and the end of a log some of whose frames wait for others
(`engine/recovery/early_frames`) have everything loaded at once, during the start: then all is as if nothing had been
put off. Only the deletion of a late topic is applied at once: what was put off for it is for nobody.

Invariants
- Nobody sees a late topic. Requests that name one in their path wait for that topic alone. Requests that may name
  several (`Route.names_topics`), checkpoints, backups and a stop wait until all are loaded. Meanwhile the loop answers
  others between two steps. Whoever else asks the catalog for a late topic has everything loaded first, at once
  (`Catalog.find`): a stream or a socket that begins.
- So no seq is given out before the head is known, no checkpoint lacks a record of a late topic, and no WAL file goes
  while a piece of it is needed: only a checkpoint removes one.
- Nothing is written for it. A crash while topics are late is followed by a start that finds the same.
- What is applied late gives the same topic as a replay in order would: the frames of a topic are applied in their
  order, with their own stamps: once a topic is late, each of its frames is put off. A piece that is damaged costs the
  topics in it what damage costs them in a replay.
- Before it is ready, a start decodes no more than `EAGER_FRAMES` frames of topics that may be late. It looks at the
  headers and checksums of those that no span covers: at most 4 KiB of them in a row, so they are few where no other
  topic is written.
- A file that cannot be read leaves its topics late: their calls are answered 503, and it is tried again.
"""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from driftq.engine.recovery.derived_copies import Deriver
from driftq.engine.recovery.replay import Replay
from driftq.engine.state.block_cache import RETRY_AFTER_MS, unavailable
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.topic import Topic
from driftq.errors import DriftQError
from driftq.model.names import is_broker_topic
from driftq.model.topic_config import Durability
from driftq.storage.blocks.frame import Bad, Frame, Kind, read_frame
from driftq.storage.wal.memory_spans import SPAN_BYTES_MAX, Span
from driftq.storage.wal.wal_reader import Damage, WalScan
from driftq.system.disk import Disk
from driftq.system.runtime import Pending, Runtime

STEP_FRAMES = 1024
"""So many frames of one record are a few milliseconds of work; four records of a larger frame count as one more."""
EAGER_FRAMES = 1024
"""So many Append frames of class `memory` are applied during the start before others are put off."""


class _Stretch(NamedTuple):
    """A span, and where it is."""

    path: str
    salt: int
    span: Span


class _Scattered:
    """Append frames of one file that stand between frames of other topics: where each begins."""

    __slots__ = ("end", "path", "places", "salt", "start", "topics")

    def __init__(self, path: str, frame: Frame) -> None:
        self.path = path
        self.salt = frame.salt
        self.start = frame.start
        self.end = frame.start
        self.places = array("I")
        self.topics: dict[int, None] = {}


class Late:
    """What replay has put off, in the order of the log."""

    def __init__(self, disk: Disk, catalog: Catalog, frames: Replay, deriver: Deriver | None) -> None:
        self._disk = disk
        self._deriver = deriver
        self._catalog = catalog
        self._frames = frames
        self._pieces: deque[_Stretch | _Scattered] = deque()
        self._eager = EAGER_FRAMES
        self.left: Counter[int] = Counter()
        """How many pieces there are of each late topic."""
        self._under_way: Iterator[int] | None = None
        """The frames of the first piece that are not applied yet."""

    def takes(self, span: Span) -> bool:
        """Whether every topic of a span may be late."""
        topics = (self._catalog.by_id.get(topic_id) for topic_id in span.topics)
        return all(topic is None or self._may_be_late(topic) for topic in topics)

    def _may_be_late(self, topic: Topic) -> bool:
        return (
            topic.durability is Durability.MEMORY
            and topic.config.type == "log"
            and topic.guard is None
            and not topic.fed
            and not (self._deriver is not None and self._deriver.derives(topic))
            and not is_broker_topic(topic.name)
        )

    def put_off(self, path: str, salt: int, span: Span) -> None:
        """Pass over a span."""
        self._pieces.append(_Stretch(path, salt, span))
        self.left.update(topic_id for topic_id in span.topics if topic_id in self._catalog.by_id)
        for topic_id in span.topics:
            if topic_id in self._catalog.by_id:
                self._catalog.by_id[topic_id].late = True

    def takes_frame(self, frame: Frame) -> bool:
        """Whether an Append frame of a topic that is not late may be put off.

        The first ones of a start are not: it is as quick to apply them, and a server with few records has nothing late.
        """
        topic = self._catalog.by_id.get(frame.topic_id)
        if topic is None or topic.durability is not Durability.MEMORY or not self._may_be_late(topic):
            return False
        self._eager -= 1
        return self._eager < 0

    def keep(self, path: str, frame: Frame) -> None:
        """Put off one Append frame, which `takes_frame` or whose topic is late."""
        piece = self._pieces[-1] if self._pieces else None
        if (
            not isinstance(piece, _Scattered)
            or piece.path != path
            or frame.end - piece.start > SPAN_BYTES_MAX
            or (self._under_way is not None and len(self._pieces) == 1)
        ):
            piece = _Scattered(path, frame)
            self._pieces.append(piece)
        piece.places.append(frame.start)
        piece.end = frame.end
        topic_id = frame.topic_id
        if topic_id not in piece.topics:
            piece.topics[topic_id] = None
            self.left[topic_id] += 1
            self._catalog.by_id[topic_id].late = True

    def forget(self, topic_id: int) -> None:
        """The topic is deleted: what was put off for it is passed over."""
        del self.left[topic_id]
        self._catalog.by_id[topic_id].late = False

    def step(self) -> list[Topic]:
        """Apply some frames. Returns the topics that are loaded with them. Raises OSError; nothing is lost then."""
        done = 0
        while self._pieces and done < STEP_FRAMES:
            piece = self._pieces[0]
            if self._under_way is None:
                self._under_way = self._apply(piece)
            try:
                for frames in self._under_way:
                    done += frames
                    if done >= STEP_FRAMES:
                        return []
            except OSError:
                self._under_way = None  # begun again, it skips what is applied
                raise
            self._under_way = None
            self._pieces.popleft()
            loaded = self._loaded_with(_topics_of(piece))
            if loaded:
                return loaded
        return []

    def under_way(self) -> list[Topic]:
        """Return the late topics that the next frames are of."""
        if not self._pieces:
            return []
        return [self._catalog.by_id[topic_id] for topic_id in _topics_of(self._pieces[0]) if topic_id in self.left]

    def _loaded_with(self, topic_ids: list[int]) -> list[Topic]:
        loaded = []
        for topic_id in topic_ids:
            if topic_id in self.left:
                self.left[topic_id] -= 1
                if not self.left[topic_id]:
                    del self.left[topic_id]
                    loaded.append(self._catalog.by_id[topic_id])
        return loaded

    def _read(self, path: str, start: int, end: int) -> bytes:
        file = self._disk.open(path)
        try:
            return file.pread(end - start, start)
        finally:
            file.close()

    def _apply(self, piece: _Stretch | _Scattered) -> Iterator[int]:
        """Apply a piece; yields how many frames that was, now and then."""
        return self._apply_scattered(piece) if isinstance(piece, _Scattered) else self._apply_span(*piece)

    def _apply_scattered(self, piece: _Scattered) -> Iterator[int]:
        buffer = self._read(piece.path, piece.start, piece.end)
        for place in piece.places:
            found = read_frame(buffer, place - piece.start, len(buffer), piece.salt)
            if isinstance(found, Frame):
                self._frames.append(buffer, found)
                yield _work(found)
            else:  # the walk has seen a whole frame here: it was damaged since
                header = found.header if isinstance(found, Bad) else None
                self._damaged(Damage(place, piece.end, header), list(piece.topics))

    def _apply_span(self, path: str, salt: int, span: Span) -> Iterator[int]:
        frames = self._frames
        buffer = self._read(path, span.start, span.end)
        # Number 0 is no file: what frames say of how far theirs was synced is of no use inside a span.
        scan = WalScan(buffer, 0, synced_end=span.end - span.start, salt=salt)
        for found in scan:
            if isinstance(found, Damage):
                self._damaged(found, span.topics)
            elif found.kind == Kind.APPEND:
                frames.append(buffer, found)
                yield _work(found) + (frames.append_run(scan, found) if found.count == 1 else 0)

    def _damaged(self, damage: Damage, topics: list[int]) -> None:
        """Count damage in a piece that was put off: it costs no other topics than those of the piece."""
        header = damage.header
        if header is None:
            self._frames.report.damaged += 1
            self._frames.suspects.update(topics)
        elif header.kind == Kind.APPEND:
            self._frames.damaged(damage, None)


def _work(frame: Frame) -> int:
    """Return how much of a step an Append frame takes."""
    return 1 + frame.count // 4


def _topics_of(piece: _Stretch | _Scattered) -> list[int]:
    return piece.span.topics if isinstance(piece, _Stretch) else list(piece.topics)


class Loading:
    """Applies what was put off, once the server is ready."""

    def __init__(
        self,
        runtime: Runtime,
        late: Late,
        changed: Callable[[Topic], None],
        loaded: Callable[[Topic], None],
    ) -> None:
        """`changed` hears of every topic that has got more records, `loaded` of those that have all."""
        self._runtime = runtime
        self._late = late
        self._changed = changed
        self._loaded = loaded
        self._waiting: dict[int, Pending[None]] = {}
        self._waiting_for_all: Pending[None] | None = None
        self._failure: DriftQError | None = None
        """Why the last try failed, until the next one."""

    @property
    def open(self) -> bool:
        """Whether there is anything left to load."""
        return bool(self._late.left)

    def start(self) -> None:
        """Begin to load, in turns of the loop."""
        if self.open:
            self._runtime.soon(self._turn)

    def wait(self, topic: Topic) -> Pending[None]:
        """Settle when a late topic is loaded, or when it is known that it cannot be now."""
        return self._waiting.setdefault(topic.id, Pending())

    def wait_for_all(self) -> Pending[None]:
        """Settle when nothing is late any more, or when it is known that something cannot be loaded now."""
        waiting = self._waiting_for_all or Pending()
        if not self.open:
            waiting.resolve(None)
        elif self._failure is not None:
            waiting.fail(self._failure)
        else:
            self._waiting_for_all = waiting
        return waiting

    def finish(self) -> None:
        """Load all that is left, now. Raises SegmentUnavailableError."""
        while self.open:
            self._step()

    def _turn(self) -> None:
        if not self.open:
            return
        try:
            self._step()
        except DriftQError as error:
            self._failure = error
            waiting, self._waiting = self._waiting, {}
            everything, self._waiting_for_all = self._waiting_for_all, None
            for pending in [*waiting.values(), *([] if everything is None else [everything])]:
                pending.fail(error)
            self._runtime.later(RETRY_AFTER_MS, self._turn)
        else:
            self._runtime.later(0, self._turn)

    def _step(self) -> None:
        try:
            topics = self._late.step()
        except OSError as error:
            raise unavailable(error, cold=False) from error
        self._failure = None
        for topic in self._late.under_way():
            self._changed(topic)
        for topic in topics:
            self._loaded(topic)
            waiting = self._waiting.pop(topic.id, None)
            if waiting is not None:
                waiting.resolve(None)
        for topic_id in [topic_id for topic_id in self._waiting if topic_id not in self._late.left]:
            self._waiting.pop(topic_id).resolve(None)  # it was deleted meanwhile
        if not self.open and self._waiting_for_all is not None:
            everything, self._waiting_for_all = self._waiting_for_all, None
            everything.resolve(None)
