"""Loads records of class `memory` after the server is ready (http-v0 §17: they never delay readiness).

While it reads the log, replay skips spans (`storage/wal/memory_spans`): ranges with only Append frames of `memory`
topics. Between spans, where frames of such a topic alternate with others, it checks the Append frames of `memory`
topics one by one and remembers the position of each instead of applying it, except for the first `EAGER_FRAMES`. Both
are called pieces and are kept in the order of the log. When the server accepts requests, the pieces are read again and
applied, a few milliseconds at a time.

    a topic:   loaded → late, from its first frame on that is in a piece → loaded, when its last piece is applied
    a start:   reading the log → ready, with topics that are late → all loaded

A topic may be late if it has class `memory` and type `log`, does not belong to the broker, and no router copies from it
or into it. Three things load everything at once during the start, as if nothing had been deferred: a frame of a late
topic that is not an Append, a frame about routers, and the end of a log some of whose frames wait for others
(`engine/recovery/early_frames`). Only the deletion of a late topic is applied at once: its deferred records are not
needed.

Invariants
- No caller sees a late topic. Requests that name one in their path wait for that topic alone. Requests that may name
  several (`Route.names_topics`), checkpoints, backups and a stop wait until all are loaded. Meanwhile the loop answers
  other requests between two steps. Any other code that asks the catalog for a late topic, for example a new stream or
  socket, first loads everything at once (`Catalog.find`).
- So no seq is given out before the head is known, no checkpoint lacks a record of a late topic, and no WAL file is
  removed while a piece of it is needed: only a checkpoint removes one.
- Loading writes nothing. After a crash while topics are late, the next start finds the same files.
- Late loading gives the same topic as a replay in order would: the frames of a topic are applied in their order, with
  their own stamps, because once a topic is late, each of its frames is deferred. A damaged piece costs the topics in it
  the same as damage in a replay.
- Before it is ready, a start decodes no more than `EAGER_FRAMES` frames of topics that may be late. It reads the
  headers and checksums of those that no span covers: at most 4 KiB of them in a row, so they are few if no other topic
  is written.
- If a file cannot be read, its topics stay late: requests for them are answered 503, and loading is tried again.
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
"""Work of one step, a few milliseconds: frames with one record. Four records of a larger frame count as one more."""
EAGER_FRAMES = 1024
"""Number of Append frames of class `memory` that are applied during the start before others are deferred."""


class _Stretch(NamedTuple):
    """A span, and the file that contains it."""

    path: str
    salt: int
    span: Span


class _Scattered:
    """Positions of Append frames of one file that are between frames of other topics."""

    __slots__ = ("end", "path", "places", "salt", "start", "topics")

    def __init__(self, path: str, frame: Frame) -> None:
        self.path = path
        self.salt = frame.salt
        self.start = frame.start
        self.end = frame.start
        self.places = array("I")
        self.topics: dict[int, None] = {}


class Late:
    """The pieces that replay has deferred, in the order of the log."""

    def __init__(self, disk: Disk, catalog: Catalog, frames: Replay, deriver: Deriver | None) -> None:
        self._disk = disk
        self._deriver = deriver
        self._catalog = catalog
        self._frames = frames
        self._pieces: deque[_Stretch | _Scattered] = deque()
        self._eager = EAGER_FRAMES
        self.left: Counter[int] = Counter()
        """Number of pieces that are left of each late topic."""
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
        """Defer a span, and mark its topics as late."""
        self._pieces.append(_Stretch(path, salt, span))
        self.left.update(topic_id for topic_id in span.topics if topic_id in self._catalog.by_id)
        for topic_id in span.topics:
            if topic_id in self._catalog.by_id:
                self._catalog.by_id[topic_id].late = True

    def takes_frame(self, frame: Frame) -> bool:
        """Whether an Append frame of a topic that is not late may be deferred.

        The first `EAGER_FRAMES` of a start are not: applying them is as quick, and a server with few records has no
        late topic.
        """
        topic = self._catalog.by_id.get(frame.topic_id)
        if topic is None or topic.durability is not Durability.MEMORY or not self._may_be_late(topic):
            return False
        self._eager -= 1
        return self._eager < 0

    def keep(self, path: str, frame: Frame) -> None:
        """Defer one Append frame that `takes_frame` accepted, or whose topic is late."""
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
        """Stop deferring a topic that is deleted; its pieces are skipped."""
        del self.left[topic_id]
        self._catalog.by_id[topic_id].late = False

    def step(self) -> list[Topic]:
        """Apply some frames. Returns the topics that are complete now. Raises OSError; nothing is lost then."""
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
                self._under_way = None  # a new pass over the piece skips what is applied
                raise
            self._under_way = None
            self._pieces.popleft()
            loaded = self._loaded_with(_topics_of(piece))
            if loaded:
                return loaded
        return []

    def under_way(self) -> list[Topic]:
        """Return the late topics that the next piece contains."""
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
        """Apply a piece; yields the number of frames at intervals."""
        return self._apply_scattered(piece) if isinstance(piece, _Scattered) else self._apply_span(*piece)

    def _apply_scattered(self, piece: _Scattered) -> Iterator[int]:
        buffer = self._read(piece.path, piece.start, piece.end)
        for place in piece.places:
            found = read_frame(buffer, place - piece.start, len(buffer), piece.salt)
            if isinstance(found, Frame):
                self._frames.append(buffer, found)
                yield _work(found)
            else:  # replay has seen an intact frame here: it was damaged since
                header = found.header if isinstance(found, Bad) else None
                self._damaged(Damage(place, piece.end, header), list(piece.topics))

    def _apply_span(self, path: str, salt: int, span: Span) -> Iterator[int]:
        frames = self._frames
        buffer = self._read(path, span.start, span.end)
        # Number 0 stands for no file: what frames record about synced positions is not used inside a span.
        scan = WalScan(buffer, 0, synced_end=span.end - span.start, salt=salt)
        for found in scan:
            if isinstance(found, Damage):
                self._damaged(found, span.topics)
            elif found.kind == Kind.APPEND:
                frames.append(buffer, found)
                yield _work(found) + (frames.append_run(scan, found) if found.count == 1 else 0)

    def _damaged(self, damage: Damage, topics: list[int]) -> None:
        """Count damage in a deferred piece; it affects only the topics of the piece."""
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
    """Applies deferred pieces once the server is ready."""

    def __init__(
        self,
        runtime: Runtime,
        late: Late,
        changed: Callable[[Topic], None],
        loaded: Callable[[Topic], None],
    ) -> None:
        """`changed` is called for every topic that got more records, `loaded` for those that have all."""
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
        """Return a Pending that settles when a late topic is loaded, or fails if it cannot be loaded now."""
        return self._waiting.setdefault(topic.id, Pending())

    def wait_for_all(self) -> Pending[None]:
        """Return a Pending that settles when no topic is late any more, or fails if one cannot be loaded now."""
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
            self._waiting.pop(topic_id).resolve(None)  # the topic was deleted meanwhile
        if not self.open and self._waiting_for_all is not None:
            everything, self._waiting_for_all = self._waiting_for_all, None
            everything.resolve(None)
