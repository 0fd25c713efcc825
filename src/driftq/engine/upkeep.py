"""The periodic work of a running engine, all of it on one timer: nothing here is needed for an answer to be right.

Every second: flags flipped, failed file work tried again, segments sealed by age, time seen logged while some topic has
a TTL, a checkpoint taken when one is due, memory given back behind a load. Every five seconds: cold relocation, quiet
reservations lowered.
"""

from driftq.config import Settings
from driftq.engine.append import Appender, synced_seq
from driftq.engine.catalog import Catalog
from driftq.engine.checkpoint import Checkpointer
from driftq.engine.filing import Filing
from driftq.engine.frames import TimeSeenBody, encode_body
from driftq.engine.journal import Journal
from driftq.engine.relocation import Relocation
from driftq.engine.topic import Topic
from driftq.model.limits import MIB, RESERVE_MIN
from driftq.model.topic import Durability
from driftq.seam.memory import give_freed_memory_back
from driftq.seam.runtime import Runtime, Timer
from driftq.storage.commit import Submission
from driftq.storage.frame import Kind, encode_control

TICK_MS = 1000
_SLOW_TICKS = 5
_QUIET_MS = 5000
_TIDY_BYTES = 64 * MIB
"""After so many bytes of WAL it is worth looking for memory to return."""
_QUIET_BYTES = 64 << 10
_SETTLE_MS = 5000
"""After so long a checkpoint is taken for the sake of flags to flip, files to remove and segments to move."""


class Upkeep:
    """The one tick."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        catalog: Catalog,
        journal: Journal,
        appender: Appender,
        filing: Filing,
        checkpointer: Checkpointer,
        relocation: Relocation | None,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._catalog = catalog
        self._journal = journal
        self._appender = appender
        self._filing = filing
        self._checkpointer = checkpointer
        self._relocation = relocation
        self._ticks = 0
        self._written_before = 0
        self._tidied_at = 0
        self._last_checkpoint_ms = journal.time.now()
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to tick, nearly at once: readers see what expired while nobody ran, and that has to be noted."""
        self._timer = self._runtime.later(1, self._tick)

    def stop(self) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        try:
            self._look_after()
        finally:
            # Whatever became of this one, there is a next.
            self._timer = self._runtime.later(TICK_MS, self._tick)

    def _look_after(self) -> None:
        self._ticks += 1
        now = self._journal.time.now()
        self._filing.flip()
        self._filing.retry()
        for topic in list(self._catalog.visible()):
            self._retain(topic, now)
            self._filing.roll_by_age(topic, now)
            if topic.dropped:
                self._filing.drop(topic)
        self._note_time(now)
        if self._ticks % _SLOW_TICKS == 0:
            self._slow(now)
        if self._due(now):
            self.checkpoint()
        self._tidy_memory()

    def _retain(self, topic: Topic, now: int) -> None:
        try:
            topic.expire(now)
            topic.evict()  # A write that could not read the front of the log has left it half way.
        except OSError:
            # A block cannot be read now. The next tick tries again, and so does whoever asks before.
            self._filing.failures += 1

    def _slow(self, now: int) -> None:
        if self._relocation is not None:
            self._relocation.run()
        self._lower_reservations(now)

    def _tidy_memory(self) -> None:
        """A tick without a write, behind many: what they used goes back to the kernel, once."""
        written = sum(shard.counters.bytes for shard in self._journal.shards.all)
        quiet, self._written_before = written - self._written_before < _QUIET_BYTES, written
        if quiet and written - self._tidied_at >= _TIDY_BYTES and not self._filing.busy:
            self._tidied_at = written
            self._filing.in_background(give_freed_memory_back)

    def checkpoint(self) -> None:
        """Take one now."""
        self._last_checkpoint_ms = self._journal.time.now()
        self._checkpointer.run()

    def _due(self, now: int) -> bool:
        if not self._catalog.by_id:
            return False
        written = self._checkpointer.wal_bytes
        age = now - self._last_checkpoint_ms
        if written >= self._settings.checkpoint_wal_bytes or (self._awaited and age >= _SETTLE_MS):
            return True
        return written > 0 and age >= self._settings.checkpoint_interval_ms

    @property
    def _awaited(self) -> bool:
        """Does something wait for a checkpoint, whether or not anything is written?"""
        return self._filing.waiting or (self._relocation is not None and self._relocation.waiting)

    def _note_time(self, now: int) -> None:
        """While some topic has a TTL: what is seen expired stays so, whatever the clock says after a restart."""
        if not any(topic.config.ttl_ms for topic in self._catalog.visible()):
            return
        shard = self._journal.shards.all[0]
        if shard.stopped is None:
            frame = encode_control(
                Kind.TIME_SEEN,
                encode_body(TimeSeenBody(self._journal.time.ahead())),
                topic_id=0,
                op=0,
                ts=now,
                synced_to=shard.synced_to,
            )
            shard.submit(Submission([frame], sync=False, done=None, prompt=False))
            self._journal.schedule()

    def _lower_reservations(self, now: int) -> None:
        """A crash in quiet times shall leave a small hole."""
        for topic in self._catalog.visible():
            if (
                topic.durability is Durability.DISK
                and topic.reserved > topic.head + RESERVE_MIN
                and not topic.inflight_records
                and now - topic.last_ts > _QUIET_MS
                and synced_seq(topic, self._journal.shard_of(topic)) >= topic.head
                and self._journal.shard_of(topic).stopped is None
            ):
                self._appender.reserve(topic, topic.head + RESERVE_MIN)
                topic.reserve_window = RESERVE_MIN
