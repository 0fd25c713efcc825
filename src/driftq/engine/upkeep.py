"""The periodic work of a running engine, all on one timer; no answer depends on it to be right.

While space is short (`engine/load/disk_space`): a checkpoint at once, and again whenever one would free something.
Every second: compare the clocks, set delete flags, retry failed file work, seal segments by age, log the time seen if a
topic has a TTL, take a checkpoint if one is due, return memory after a load, release seqs that idle topics have
reserved, remove idempotency keys out of their window. Every five seconds: move segments to the cold tier, remove files
in `lost/` that retention has passed.
"""

import errno
import os
from collections.abc import Callable
from functools import partial

from driftq.config import Settings
from driftq.engine.block_fetch import Fetching
from driftq.engine.files.checkpoint import Checkpointer
from driftq.engine.files.lost_segments import passed
from driftq.engine.files.relocation import Relocation
from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.key_expiry import KeyWindows
from driftq.engine.load.disk_forecast import SpaceWatch
from driftq.engine.read.topic_page import Missing
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.control_frames import TimeSeenBody, encode_body
from driftq.engine.state.record_log import LogPart
from driftq.engine.state.topic import Topic
from driftq.engine.write.change_log import ChangeLog
from driftq.engine.write.commit_point import CommitPoint
from driftq.model.limits import MIB
from driftq.storage.blocks.frame import Kind, encode_control
from driftq.storage.space_reserve import SpaceReserve
from driftq.storage.wal.group_commit import Submission
from driftq.system.machine import give_freed_memory_back
from driftq.system.runtime import Pending, Runtime, Timer

TICK_MS = 1000
_SLOW_TICKS = 5
_TIDY_BYTES = 64 * MIB
"""Memory is returned to the kernel only after this many bytes of WAL."""
_QUIET_BYTES = 64 << 10
_SHRINK_MS = 50
"""How long the logs have to give space back before the next checkpoint, in ms."""
_SHORT_TICKS = 60
"""While space is short, time is logged only every this many ticks, to save the log's reserve for other frames."""
_LOOK_SHARE = 4
_LOOK_TOPIC_BYTES = 1024
"""The reserve is looked at after this much log per topic, because a look takes time for every topic."""
_SETTLE_MS = 5000
_FOLLOW_UPS_MAX = 5
"""Minimum time between checkpoints that are taken only for delete flags, file removals and relocations.
"""


class Upkeep:
    """Runs all periodic work on one timer."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        catalog: Catalog,
        change_log: ChangeLog,
        commit_point: CommitPoint,
        segment_files: SegmentFiles,
        checkpointer: Checkpointer,
        relocation: Relocation | None,
        space: SpaceWatch,
        fetching: Fetching,
        woke: Callable[[], None],
        key_windows: KeyWindows,
        space_reserve: SpaceReserve,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._catalog = catalog
        self._change_log = change_log
        self._commit_point = commit_point
        self._segment_files = segment_files
        self._checkpointer = checkpointer
        self._relocation = relocation
        self._space = space
        self._fetching = fetching
        self._fetching_for: set[Topic] = set()
        self._woke = woke
        self._key_windows = key_windows
        self._space_reserve = space_reserve
        self._relieving = False
        self._shrunk = False
        self._follow_ups = 0
        """Whether the logs have given back what they could since the last checkpoint that had room."""
        self._relieved = False
        """Whether a checkpoint was taken for lack of space since there was last enough of it."""
        self._ticks = 0
        self._written_before = 0
        self._tidied_at = 0
        self._look_at = 0
        """After how many bytes of log the size of the space reserve is compared with what a checkpoint needs."""
        self._last_checkpoint_ms = change_log.time.running()
        self._timer: Timer | None = None

    def start(self) -> None:
        """Start the timer, with the first tick after 1 ms.

        Records may have expired while the server was down, and readers see that at once, so the time must be logged.
        """
        self._segment_files.in_background(self._space.look)
        self._timer = self._runtime.later(1, self._tick)
        self._change_log.space.on_short = self.relieve
        self._change_log.space.on_roomy = self.keep_space_reserve
        self._change_log.space.free_last = partial(self._segment_files.in_background, self._space_reserve.release)
        for shard in self._change_log.shards.all:
            shard.look_for_room()
        self.keep_space_reserve()
        if self._settings.disk_reserve_bytes:
            self._change_log.at_turn(self._look_at_space_reserve)

    def stop(self) -> None:
        """Stop the timer; no more ticks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        try:
            self._look_after()
        finally:
            # Also after an exception.
            self._timer = self._runtime.later(TICK_MS, self._tick)

    def _look_after(self) -> None:
        self._ticks += 1
        time = self._change_log.time
        if time.look():
            self._woke()
        now = time.now()
        self._segment_files.flip()
        self._segment_files.retry()
        for topic in list(self._catalog.visible()):
            if topic.late:
                continue
            topic.expire(now)
            topic.evict()  # Earlier calls leave a block that was unavailable.
            if topic.unread is not None and topic not in self._fetching_for:
                self._fetch_front(topic, topic.unread)
            self._segment_files.renew(topic)
            self._segment_files.roll_by_age(topic, now)
            if topic.dropped:
                self._segment_files.drop(topic)
        self._note_time()
        self._commit_point.reservations.idle.look(now)
        self._key_windows.look(now)
        if self._ticks % _SLOW_TICKS == 0:
            self._slow()
        if self._due(time.running()):
            self.checkpoint()
        self._tidy_memory()

    def _fetch_front(self, topic: Topic, part: LogPart) -> None:
        """Fetch the block that retention could not read, on a thread, then continue retention."""
        self._fetching_for.add(topic)
        fetch = self._fetching.wait_for(topic, Missing(part, []))

        def settle(done: Pending[None]) -> None:
            self._fetching_for.discard(topic)
            if done.error is None:
                topic.unread = None
                if topic.visible:
                    topic.expire(self._change_log.time.now())
                    topic.evict()
                    self._segment_files.changed(topic)
            fetch.held.clear()

        fetch.then(settle)

    def _slow(self) -> None:
        self._segment_files.in_background(self._space.look)
        if self._relocation is not None:
            self._relocation.run()
        for topic_id, first_seq in passed(self._segment_files.lost, self._catalog):
            self._segment_files.in_background(partial(self._segment_files.lost.drop, topic_id, first_seq))
        self.keep_space_reserve()

    def _tidy_memory(self) -> None:
        """Return freed memory to the kernel once, in the first tick with few writes after many."""
        written = self._change_log.shards.bytes_written
        quiet, self._written_before = written - self._written_before < _QUIET_BYTES, written
        if quiet and written - self._tidied_at >= _TIDY_BYTES and not self._segment_files.busy:
            self._tidied_at = written
            self._segment_files.in_background(give_freed_memory_back)

    def checkpoint(self) -> None:
        """Take a checkpoint now, whether or not one is due."""
        self._last_checkpoint_ms = self._change_log.time.running()
        self._checkpointer.run().then(lambda done: self._checkpointed(installed=done.result()))

    def relieve(self) -> None:
        """Take a checkpoint for the log and segments that it frees, because space is short; at most one a second."""
        if not self._relieving:
            self._relieving = True
            self._change_log.space.relief_begins()
            age = self._change_log.time.running() - self._last_checkpoint_ms
            self._runtime.later(max(0, TICK_MS - age) if self._relieved else 0, self._relieve)

    def _relieve(self) -> None:
        self._relieving = False
        if self._timer is not None and self._change_log.space.short:
            self._relieved = True
            self.checkpoint()
        else:
            self._change_log.space.relief_ends()

    def _checkpointed(self, *, installed: bool) -> None:
        if installed:
            self.keep_space_reserve()
            self._segment_files.retry()
            self._relieved, self._shrunk = self._change_log.space.short, False
            self._follow_up()
        elif self._checkpointer.lacked and not self._shrunk:
            self._shrunk = True
            self._change_log.space.shrink_logs()
            self._runtime.later(_SHRINK_MS, self._relieve)
            return
        self._change_log.space.relief_ends()

    def _follow_up(self) -> None:
        """Take another checkpoint if space is still short after one, at most five in a row.

        The next one frees the WAL file that the mark of this one is in, and segments whose writes had no room before.
        """
        if self._change_log.space.short and self._follow_ups < _FOLLOW_UPS_MAX:
            self._follow_ups += 1
            self.relieve()
        else:
            self._follow_ups = 0

    def keep_space_reserve(self) -> None:
        """Reserve space for the next checkpoint, up to twice what it needs now; refuse records without it."""
        if not self._checkpointer.lacked:
            size = 2 * self._checkpointer.needed
            self._segment_files.in_background(partial(self._space_reserve.keep, size), self._space_reserve_checked)

    def _look_at_space_reserve(self) -> None:
        """Extend the reserve if it may be too small for what was logged since the last look.

        Looks again before the log since then could make the next checkpoint larger than the reserve.
        """
        written = self._change_log.shards.bytes_written
        if written < self._look_at or self._timer is None:
            return
        size, needed = self._space_reserve.size, self._checkpointer.needed
        most = min(size // _LOOK_SHARE, size - needed)
        self._look_at = written + max(most, _LOOK_TOPIC_BYTES * len(self._catalog.by_id))
        if 3 * needed > 2 * size:
            self.keep_space_reserve()

    def _space_reserve_checked(self) -> None:
        error = None if self._space_reserve.is_whole else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._change_log.space.note(self._space_reserve, error)

    def _due(self, now: int) -> bool:
        if not self._catalog.by_id:
            return False
        written = self._checkpointer.wal_bytes
        age = now - self._last_checkpoint_ms
        if written >= self._settings.checkpoint_wal_bytes or (self._awaited and age >= _SETTLE_MS):
            return True
        if self._checkpointer.lacked and age >= TICK_MS:
            return self._checkpointer.has_room()
        if self._change_log.space.short and written > 0 and age >= _SETTLE_MS:
            return True
        return written > 0 and age >= self._settings.checkpoint_interval_ms

    @property
    def _awaited(self) -> bool:
        """Whether something needs a checkpoint, even if nothing is written."""
        lost = bool(self._commit_point.losses)
        return lost or self._segment_files.waiting or (self._relocation is not None and self._relocation.waiting)

    def _note_time(self) -> None:
        """Log the time seen if a topic has a TTL, so that expired records stay expired after a restart."""
        if not any(topic.config.ttl_ms for topic in self._catalog.visible()):
            return
        if self._change_log.space.short and self._ticks % _SHORT_TICKS:
            return
        shard, time = self._change_log.shards.all[0], self._change_log.time
        if shard.stopped is None:
            frame = encode_control(
                Kind.TIME_SEEN,
                encode_body(TimeSeenBody(time.ahead())),
                topic_id=0,
                op=0,
                ts=time.stamp(),
                synced_to=shard.synced_to,
            )
            shard.submit(Submission([frame], sync=False, done=None, prompt=False, uses_reserve=True))
            self._change_log.schedule()
