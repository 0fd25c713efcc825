"""Watches the writers of the log and of segments: whether they stopped, hang, or were replaced.

A writer is a process (`system/writer_process`), or a thread if there is none.

    log       running ⇄ hung ─(hang limit)→ stopped → ended
              running ─(process died, sync failed, or a committed change could not be applied)→ stopped ─(grace)→ ended
    segments  running ⇄ hung ─(hang limit)→ killed → replaced: threads of the server write segments
              running ─(process died)→ replaced

A writer hangs when its oldest job has been unanswered for `HUNG_MS`. This is checked once a second, and an idle writer
gets no extra messages. A second in which the server itself did not run, because the machine was suspended or the loop
was busy, counts little: the answer may have arrived but not been read yet.

Invariants
- While the log writer hangs, writes are refused with `429` before anything is changed. Writes that were sent before
  wait for it, at most until the hang limit.
- A log that stopped accepts no writes again in this process: only a restart, which reads the log, finds out what is
  stored. From the stop on, readiness fails (`wal_stopped`), reads are answered, and no checkpoint is taken.
- A hung log writer is never killed: it may be the only one that has some acked records, and writes them if it ever can.
- Threads write segments only after the process is gone: a late write of the process could undo a delete flag.
- `ended` settles at most once. `driftq serve` then exits, so that its supervisor starts it again. An embedded server
  continues to answer reads: this module never ends the process that it runs in.
"""

import logging
from collections.abc import Callable
from enum import Enum
from functools import partial

from driftq.engine.load.unsealed_limit import UnsealedLimit
from driftq.errors import ThrottledError
from driftq.model.units import MS_PER_S, NS_PER_MS
from driftq.model.v0_answers import WriterState
from driftq.storage.segments.segment_process import SegmentProcess
from driftq.storage.wal.group_commit import Shard
from driftq.storage.wal.shards import Shards
from driftq.system.clock import Clock
from driftq.system.file_thread import FileThread
from driftq.system.log_facts import facts
from driftq.system.runtime import Pending, Runtime, Timer

_log = logging.getLogger(__name__)

TICK_MS = 1000
HUNG_MS = 5000
"""A writer hangs if its oldest job has been unanswered for 5 s."""
_COUNTED_MS_MAX = 2 * TICK_MS
"""The most that one check adds to the age of a job, in ms."""
_RETRY_MS = 1000

LOG, SEGMENTS = "log", "segments"


class RestartReason(Enum):
    """Why the server has to be restarted."""

    LOG_STOPPED = "the log is stopped"
    LOG_HUNG = "the log writer hangs"


class _Watched:
    """One writer, and for how long its oldest job has been unanswered."""

    def __init__(self, name: str, oldest: Callable[[], int | None], pid: int | None) -> None:
        self.name = name
        self.pid = pid
        self.waited_ms = 0
        self.hung = False
        self._oldest = oldest
        self._seen: int | None = None

    def look(self, elapsed_ms: int, hung_ms: int) -> None:
        """Check for a hang or its end, and log it."""
        oldest = self._oldest()
        if oldest is None or oldest != self._seen:
            if self.hung:
                _log.warning("the %s writer answers again after %d s", self.name, self._waited_s, extra=self._facts())
            self.waited_ms = 0
        else:
            self.waited_ms += min(elapsed_ms, _COUNTED_MS_MAX)
        self._seen = oldest
        was, self.hung = self.hung, self.waited_ms >= hung_ms
        if self.hung and not was:
            _log.warning("the %s writer has not answered for %d s", self.name, self._waited_s, extra=self._facts())

    def forget(self) -> None:
        """Reset waiting time, hang and process id, because another writer takes over."""
        self.waited_ms, self.hung, self._seen, self.pid = 0, False, None, None

    @property
    def _waited_s(self) -> int:
        return self.waited_ms // MS_PER_S

    def _facts(self) -> dict[str, object]:
        return dict(facts(writer=self.name, pid=self.pid, waited_ms=self.waited_ms))


class Writers:
    """Watches all writers and reports their problems."""

    def __init__(
        self,
        runtime: Runtime,
        clock: Clock,
        shards: Shards,
        segments: SegmentProcess | None,
        blocks_thread: FileThread,
        unsealed: UnsealedLimit,
        *,
        grace_ms: int,
        limit_ms: int,
    ) -> None:
        self._runtime = runtime
        self._clock = clock
        self._segments = segments
        self._blocks_thread = blocks_thread
        self._unsealed = unsealed
        self._grace_ms = grace_ms
        self._limit_ms = limit_ms
        self._hung_ms = min(HUNG_MS, limit_ms)
        self._grace: Timer | None = None
        self._tick: Timer | None = None
        self._looked_ns = 0
        self._killed = False
        self.replaced = False
        """Whether threads write segments because their process ended."""
        self.stopped: str | None = None
        """Why the log stopped; None while it runs."""
        self.ended: Pending[RestartReason] = Pending()
        """Settles when only a restart helps and the grace time for reads is over."""
        self._read_only: set[Shard] = set()
        self._logs = [(shard, _Watched(LOG, partial(_oldest, shard), shard.writer_pid)) for shard in shards.all]
        self._sealing = _Watched(SEGMENTS, self._oldest_segment_job, None if segments is None else segments.pid)
        for shard in shards.all:
            shard.on_stopped = self._log_stopped
            shard.on_read_only = self._read_only_changed
        if segments is not None:
            segments.on_gone = self._segments_gone
        self._watch()

    @property
    def hung_ms(self) -> dict[str, int]:
        """Return for how many ms each kind of writer has hung; 0 for one that answers."""
        logs = [watched for _, watched in self._logs]
        return {
            LOG: max(watched.waited_ms if watched.hung else 0 for watched in logs),
            SEGMENTS: self._sealing.waited_ms if self._sealing.hung else 0,
        }

    @property
    def log_pids(self) -> list[int]:
        """Return the process ids of hung log writers."""
        return [watched.pid for _, watched in self._logs if watched.hung and watched.pid]

    def states(self) -> dict[str, WriterState] | None:
        """Return the states of writers with a problem, for readiness; None if there is no problem."""
        found = {name: WriterState("hung", waited) for name, waited in self.hung_ms.items() if waited}
        if self.replaced:
            found.setdefault(SEGMENTS, WriterState("replaced"))
        return found or None

    def close(self) -> None:
        """Stop asking for a restart, because the server is ending. Hangs are still noted until `end`."""
        if self._grace is not None:
            self._grace.cancel()

    def end(self) -> None:
        """Stop the checks of the writers."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    def abandon(self) -> None:
        """Kill the segment writer, for an end that cannot wait: everything it has is also in the log."""
        if self._segments is not None and not self._segments.gone:
            self._segments.kill()

    def _watch(self) -> None:
        self._looked_ns = self._clock.monotonic_ns()
        self._tick = self._runtime.later(TICK_MS, self._look)

    def _look(self) -> None:
        elapsed_ms = (self._clock.monotonic_ns() - self._looked_ns) // NS_PER_MS
        self._watch()
        for shard, watched in self._logs:
            self._look_at_log(shard, watched, elapsed_ms)
        self._look_at_segments(elapsed_ms)

    def _look_at_log(self, shard: Shard, watched: _Watched, elapsed_ms: int) -> None:
        if shard.stopped is not None:
            return
        watched.look(elapsed_ms, self._hung_ms)
        why = f"the process that writes the log has not answered for {watched.waited_ms // MS_PER_S} s"
        shard.hung = (
            ThrottledError(
                f"{why}; try again shortly",
                detail={"reason": "log_writer_hung", "hung_ms": watched.waited_ms, "retry_after_ms": _RETRY_MS},
                retry_after_ms=_RETRY_MS,
            )
            if watched.hung
            else None
        )
        if watched.waited_ms >= self._limit_ms:
            shard.give_up(why)
            self._end(RestartReason.LOG_HUNG)

    def _look_at_segments(self, elapsed_ms: int) -> None:
        watched = self._sealing
        watched.look(elapsed_ms, self._hung_ms)
        self._unsealed.stuck = watched.hung
        if (
            watched.waited_ms >= self._limit_ms
            and self._segments is not None
            and not self._killed
            and not self.replaced
        ):
            self._killed = True
            _log.error(
                "the segments writer has not answered for %d s and is killed",
                watched.waited_ms // MS_PER_S,
                extra=facts(writer=SEGMENTS, pid=self._segments.pid, waited_ms=watched.waited_ms),
            )
            self._segments.kill()

    def _oldest_segment_job(self) -> int | None:
        if self._segments is not None and not self._segments.gone:
            return self._segments.oldest
        return self._blocks_thread.oldest

    def _segments_gone(self) -> None:
        self.replaced = True
        self._unsealed.stuck = False
        _log.warning(
            "the process that writes segments has ended; threads of the server write them until the next start",
            extra=facts(writer=SEGMENTS, pid=self._sealing.pid),
        )
        self._sealing.forget()

    def _read_only_changed(self, shard: Shard) -> None:
        """Log the first shard that refuses writes, and the end of it for the last one."""
        before = bool(self._read_only)
        refusal = shard.full or shard.failing
        if shard.read_only and refusal is not None:
            self._read_only.add(shard)
            if not before:
                _log.error("writes are refused, reads are answered", extra=facts(reason=str(refusal)))
        else:
            self._read_only.discard(shard)
            if before and not self._read_only:
                _log.info("writes are accepted again")

    def _log_stopped(self, why: str) -> None:
        if self.stopped is not None:
            return  # another shard has stopped already
        self.stopped = why
        _log.error("the log is stopped: %s; writes are refused until a restart, reads are answered", why)
        if self._grace_ms:
            self._grace = self._runtime.later(self._grace_ms, lambda: self._end(RestartReason.LOG_STOPPED))
        else:
            self._end(RestartReason.LOG_STOPPED)

    def _end(self, why: RestartReason) -> None:
        if not self.ended.settled:
            self.ended.resolve(why)


def _oldest(shard: Shard) -> int | None:
    return shard.oldest
