"""Records of class `memory` that a start loads when the server is ready (http-v0 §17: they never hold readiness back).

While it reads the log, replay passes over spans (`storage/wal/memory_spans`): stretches with nothing but Append frames
of `memory` topics. It remembers where they are, and from then on keeps the Append frames that it does read of these
topics, so that a topic's frames stay in order. When the server takes calls, what was put off is applied, some
milliseconds at a time.

    a topic:   loaded → late, from the first span on that has frames of it → loaded, when its last piece is applied
    a start:   reading the log → ready, with topics that are late → all loaded

Which topics may be late: class `memory`, type `log`, not the broker's, and no router copies from it or into it. A frame
of a late topic that is not an Append, a frame about routers, and the end of a log some of whose frames wait for others
(`engine/recovery/early_frames`) have everything loaded at once, during the start: then all is as if nothing had been
put off. Only the deletion of a late topic is applied at once: what was put off for it is for nobody.

Invariants
- Nobody sees a late topic. Whoever asks the catalog for one has everything loaded first (`Catalog.find`), and so have
  writes, checkpoints, backups and a stop. Requests that name a late topic in their path wait for that topic alone.
- So no seq is given out before the head is known, no checkpoint lacks a record of a late topic, and no WAL file goes
  while a span of it is needed: only a checkpoint removes one.
- Nothing is written for it. A crash while topics are late is followed by a start that finds the same.
- What is applied late gives the same topic as a replay in order would: the frames of a topic are applied in their
  order, with their own stamps. A span that is damaged costs the topics in it what damage costs them in a replay.
- A file that cannot be read leaves its topics late: their calls are answered 503, and it is tried again.
"""

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
from driftq.storage.blocks.frame import Frame, Kind
from driftq.storage.wal.memory_spans import Span
from driftq.storage.wal.wal_reader import Damage, WalScan
from driftq.system.disk import Disk
from driftq.system.runtime import Pending, Runtime

STEP_FRAMES = 1024
"""So many frames are a few milliseconds of work."""


class _Stretch(NamedTuple):
    """A span, and where it is."""

    path: str
    salt: int
    span: Span


class _Kept(NamedTuple):
    """One frame of a topic that was late already, without its file."""

    buffer: bytes
    frame: Frame


class Late:
    """What replay has put off, in the order of the log."""

    def __init__(self, disk: Disk, catalog: Catalog, frames: Replay, deriver: Deriver | None) -> None:
        self._disk = disk
        self._deriver = deriver
        self._catalog = catalog
        self._frames = frames
        self._pieces: deque[_Stretch | _Kept] = deque()
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

    def keep(self, buffer: bytes, frame: Frame) -> None:
        """Put off one frame of a topic that is late."""
        cut = frame._replace(start=0, end=frame.end - frame.start)
        self._pieces.append(_Kept(buffer[frame.start : frame.end], cut))
        self.left[frame.topic_id] += 1

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

    def _apply(self, piece: _Stretch | _Kept) -> Iterator[int]:
        """Apply a piece; yields how many frames that was, now and then."""
        if isinstance(piece, _Kept):
            self._frames.append(*piece)
            yield 1
            return
        path, salt, span = piece
        frames = self._frames
        file = self._disk.open(path)
        try:
            buffer = file.pread(span.end - span.start, span.start)
        finally:
            file.close()
        # Number 0 is no file: what frames say of how far theirs was synced is of no use inside a span.
        scan = WalScan(buffer, 0, synced_end=span.end - span.start, salt=salt)
        for found in scan:
            if isinstance(found, Damage):
                self._damaged(found, span)
            elif found.kind == Kind.APPEND:
                frames.append(buffer, found)
                yield 1 + (frames.append_run(scan, found) if found.count == 1 else 0)

    def _damaged(self, damage: Damage, span: Span) -> None:
        """The damage is in a span, so it costs no other topics than those of the span."""
        header = damage.header
        if header is None:
            self._frames.report.damaged += 1
            self._frames.suspects.update(span.topics)
        elif header.kind == Kind.APPEND:
            self._frames.damaged(damage, None)


def _topics_of(piece: _Stretch | _Kept) -> list[int]:
    return piece.span.topics if isinstance(piece, _Stretch) else [piece.frame.topic_id]


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
            waiting, self._waiting = self._waiting, {}
            for pending in waiting.values():
                pending.fail(error)
            self._runtime.later(RETRY_AFTER_MS, self._turn)
        else:
            self._runtime.later(0, self._turn)

    def _step(self) -> None:
        try:
            topics = self._late.step()
        except OSError as error:
            raise unavailable(error, cold=False) from error
        for topic in self._late.under_way():
            self._changed(topic)
        for topic in topics:
            self._loaded(topic)
            waiting = self._waiting.pop(topic.id, None)
            if waiting is not None:
                waiting.resolve(None)
        for topic_id in [topic_id for topic_id in self._waiting if topic_id not in self._late.left]:
            self._waiting.pop(topic_id).resolve(None)  # it was deleted meanwhile
