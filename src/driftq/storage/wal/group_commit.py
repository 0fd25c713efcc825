"""Group commit of one shard: one ordered writer, one write and at most one sync per batch (http-v0 §19.3).

Two halves. `Shard` lives on the loop: it counts, queues, and settles. `WalWriter` knows the file, and lives in a
process of its own where there is one (`storage/wal/wal_process`), else on a thread. They share nothing but messages.

    submit → queued → handed over → written → synced → settled      `disk` is shown and acked when handed over
                 └──────────┴───────────┴─ failed → settled with an error

Invariants
- Submissions settle in the order in which they were queued, all their frames or none in the file.
- A submission is handed over when the writer has it, or the kernel has it for the writer: the death of the server alone
  does not lose it any more. Those who wait for that hear of it in their order, and before it settles.
- A submission that asked for a sync settles only after a sync that covers it.
- Whoever fails when he is told skips nobody behind him.
- A failed write fails it and everything queued behind it, for their seqs build on it. `generation` tells what was
  queued before the loop heard of it.
- A failed sync stops the shard, and so does a writer that is gone: nobody can say what is on disk. Only a restart ends
  that. So it is with a committed change that could not be applied (`stop`): what is behind it is written, but settles
  with an error, for it builds on a state that is not there.
- A WAL file that cannot be made makes the shard full until it can: records are refused, and what uses the reserve
  works (`storage/wal/wal_writer`). Nothing was written, so nothing is undone.
- From a failure until a write works again the shard is `failing`: nobody may be told that it was enough to queue.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from driftq.errors import DiskFullError, DriftQError, ShardStoppedError, ThrottledError
from driftq.model.limits import WAL_QUEUE_BYTES_MAX, WAL_QUEUE_MAX
from driftq.storage.wal.wal_file import WalFiles
from driftq.storage.wal.wal_head import FileHead
from driftq.storage.wal.wal_process import WalScribe
from driftq.storage.wal.wal_thread import WriterThread, Writing
from driftq.storage.wal.writer_messages import WalCounters, WriteReport
from driftq.system.clock import Clock
from driftq.system.entropy import Entropy, SystemEntropy
from driftq.system.lock import Lock
from driftq.system.runtime import Runtime

_RESTART = "restart the server to recover"


class Submission:
    """Frames that reach the file together. `done` hears None or the error, on the loop.

    It is not `prompt` where nobody waits for that: then `done` may hear it with the next sync. `handed` is called when
    it is handed over; or with an error if it never is, and `done` then is not.
    """

    __slots__ = (
        "done",
        "end",
        "frames",
        "generation",
        "handed",
        "is_mark",
        "late",
        "number",
        "prompt",
        "shrinks",
        "size",
        "sync",
        "sync_ns",
        "uses_reserve",
    )

    def __init__(
        self,
        frames: Sequence[bytes],
        *,
        sync: bool,
        done: Callable[["Submission", DriftQError | None], None] | None,
        prompt: bool = True,
        handed: Callable[["Submission", DriftQError | None], None] | None = None,
        uses_reserve: bool = False,
        is_mark: bool = False,
        shrinks: bool = False,
        late: tuple[int, int] | None = None,
    ) -> None:
        self.frames = frames
        self.size = sum(map(len, frames))
        self.sync = sync
        self.done = done
        self.prompt = prompt
        self.handed = handed
        self.uses_reserve = uses_reserve
        self.is_mark = is_mark
        self.shrinks = shrinks
        self.late = late
        """Topic and stamp, where it is an Append frame that a start may read when it is ready
        (`storage/wal/memory_spans`)."""
        self.number = 0
        self.generation = 0
        self.sync_ns = 0
        """How long its sync took."""
        self.end = 0
        """Where it ends in the log, if it is a mark: file number << 32 | offset."""

    @property
    def frame_count(self) -> int:
        """How many frames."""
        return len(self.frames)


class Shard:
    """The loop's half."""

    def __init__(
        self,
        runtime: Runtime,
        clock: Clock,
        files: WalFiles,
        head: FileHead,
        lock: Lock | None = None,
        *,
        entropy: Entropy | None = None,
    ) -> None:
        self.counters = WalCounters()
        """As of the last report."""
        self.submit_full = self.queue_peak = 0
        self.synced_number = 0
        """Every submission up to this number is on stable storage."""
        self.stopped: ShardStoppedError | None = None
        """What every write is refused with once the log has stopped; only a restart ends that."""
        self.on_stopped: Callable[[str], None] | None = None
        """Is called once with the reason, on the loop, before the writes under way fail."""
        self._unapplied: ShardStoppedError | None = None
        self._deserted: ShardStoppedError | None = None
        """Is the writer gone?"""
        self.hung: ThrottledError | None = None
        """What writes are refused with while the writer does not answer."""
        self._given_up = False
        self.failing: DriftQError | None = None
        """What the newest write failed with, until one works again."""
        self.full: DriftQError | None = None
        """What records are refused with while there is no room for them (`storage/wal/wal_writer`); else None."""
        self.on_room: Callable[[], None] | None = None
        """Called, on the loop, when `full` has begun or ended."""
        self.on_synced: Callable[[Shard], None] | None = None
        """Hears, on the loop, that `synced_number` has grown, when everything that settles with it has settled."""
        self.on_read_only: Callable[[Shard], None] | None = None
        """Is called on the loop when `read_only` has changed."""
        self._was_read_only = False
        self._was_full = False
        self._runtime = runtime
        self._queued: list[Submission] = []
        self._handing: list[Submission] = []
        """Those who wait to be handed over, and some that have been."""
        self._outstanding: deque[Submission] = deque()
        self._outstanding_bytes = 0
        self.depth = 0
        """Submissions that are queued or being written."""
        self._last_number = 0
        self._generation = 0
        scribe = None if lock is None else runtime.scribe()
        self._writing: Writing = (
            WriterThread(runtime, clock, files, head, self.settle, entropy or SystemEntropy())
            if scribe is None or lock is None
            else WalScribe(scribe, lock, files, head, self.settle, self._abandoned, self.hand_over)
        )

    @property
    def read_only(self) -> bool:
        """Whether writes are refused because the disk is full, or because the next file cannot be made."""
        return self.full is not None or isinstance(self.failing, DiskFullError)

    @property
    def synced_to(self) -> int:
        """What a frame that is built now may say: file number << 32 | synced offset."""
        return self._writing.synced_to

    @property
    def last_number(self) -> int:
        """Number of the newest submission."""
        return self._last_number

    @property
    def dirty(self) -> bool:
        """Is anything waiting for `flush`?"""
        return bool(self._queued)

    @property
    def has_room(self) -> bool:
        """Would a submission be taken?"""
        return (
            self.stopped is None
            and self.hung is None
            and self.depth < WAL_QUEUE_MAX
            and self._outstanding_bytes <= WAL_QUEUE_BYTES_MAX
        )

    @property
    def oldest(self) -> int | None:
        """The number of the oldest submission that the writer has not answered."""
        return self._outstanding[0].number if self._outstanding else None

    @property
    def writer_pid(self) -> int | None:
        """The process that writes; None for a thread."""
        return self._writing.pid

    def check_room(self) -> None:
        """Refuse before anything is changed: a stopped shard, or a full queue."""
        if self.stopped is not None:
            raise self.stopped
        if self.hung is not None:
            raise self.hung
        if not self.has_room:
            self.submit_full += 1
            raise ThrottledError(
                "the log cannot keep up; try again shortly", detail={"retry_after_ms": 50}, retry_after_ms=50
            )

    def stop(self, why: str) -> ShardStoppedError:
        """Stop, because a committed change could not be applied: nothing that is queued after it may be.

        Returns what its caller is answered with.
        """
        self._unapplied = self._stop(ShardStoppedError(why))
        return self._unapplied

    def give_up(self, why: str) -> None:
        """Stop, because the writer does not answer. It may still write what it was sent; `close` does not wait."""
        self._given_up = True
        self._desert(why)

    def submit(self, submission: Submission) -> int:
        """Queue frames; they go to the thread with the next `flush`. Returns the submission's number."""
        self._last_number += 1
        submission.number = self._last_number
        submission.generation = self._generation
        self._outstanding.append(submission)
        self._outstanding_bytes += submission.size
        self._queued.append(submission)
        if submission.handed is not None:
            self._handing.append(submission)
        self.depth += 1
        self.queue_peak = max(self.queue_peak, self.depth)
        return submission.number

    def flush(self) -> None:
        """Hand over what this loop turn has queued, all at once."""
        queued, self._queued = self._queued, []
        if queued and self._deserted is not None:
            self._runtime.soon(partial(self._fail_generation, self._deserted))
        elif queued:
            self._writing.put(queued)

    def hand_over(self) -> None:
        """Tell those who wait for it that the writer has what this loop turn and those before it have flushed."""
        if self._handing and not self._queued and self._deserted is None and self._writing.handed_over:
            handing, self._handing = self._handing, []
            for submission in handing:
                self._hand(submission, None)

    def sync(self, done: Callable[[Submission, DriftQError | None], None] | None) -> None:
        """Ask for a sync of everything queued so far."""
        self.submit(Submission((), sync=True, done=done))

    def look_for_room(self, *, shrink: bool = False) -> None:
        """Have the writer see now whether there is room for the next file, or give back all space it does not use."""
        if self.stopped is None:
            self.submit(Submission((), sync=False, done=None, shrinks=shrink))
            self.flush()

    def close(self) -> None:
        """Write and sync what is queued, end the writer. The loop hears what is left through its callbacks."""
        self.flush()
        if self._given_up:
            self._writing.leave()
            return
        last = self._writing.close()
        if last is not None:
            self.synced_number = max(self.synced_number, last.synced)
            error = None if last.failure is None else last.failure.error()
            if isinstance(error, ShardStoppedError):
                self.stopped = error

    def settle(self, report: WriteReport) -> None:
        """From the writer: how far it has come, and what went wrong."""
        further = report.synced > self.synced_number
        self.synced_number = max(self.synced_number, report.synced)
        self.counters = report.counters
        self.full = None if report.full is None else report.full.error()
        error = None if report.failure is None else report.failure.error()
        if isinstance(error, ShardStoppedError):
            error = self._stop(error)
        outstanding = self._outstanding
        # A mark says nothing about it: it may have been left out for lack of room.
        if self.failing is not None and any(
            s.frames and not s.is_mark for s in outstanding if s.number <= report.written
        ):
            self.failing = None
        while outstanding and outstanding[0].number <= report.written:
            first = outstanding[0]
            first.sync_ns = report.sync_ns
            if first.is_mark:
                first.end = report.ends[first.number]
            self._settle_first(self._unapplied)
        if error is not None:
            self.failing = error
            if report.generation == self._generation:
                self._fail_generation(error)
        if further and self.on_synced is not None:
            self.on_synced(self)
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        """Call those who want to know that writes are refused for lack of room, or are not any more."""
        if self.read_only is not self._was_read_only:
            self._was_read_only = self.read_only
            if self.on_read_only is not None:
                self.on_read_only(self)
        if (self.full is not None) is not self._was_full:
            self._was_full = self.full is not None
            if self.on_room is not None:
                self.on_room()

    def _abandoned(self) -> None:
        """The writer is gone, and nobody can say what of the rest is on disk."""
        self._desert("the process that writes the log has ended")

    def _desert(self, why: str) -> None:
        """Expect nothing more of the writer."""
        self._deserted = self.failing = self._stop(ShardStoppedError(why))
        self._fail_generation(self._deserted)

    def _stop(self, error: ShardStoppedError) -> ShardStoppedError:
        """Take no more writes. Returns what the writes under way are answered with: they may be stored or not."""
        if self.stopped is None:
            self.stopped = ShardStoppedError(f"{error.message}; nothing of this write is stored; {_RESTART}")
            if self.on_stopped is not None:
                self.on_stopped(error.message)
        return ShardStoppedError(f"{error.message}; it is not known whether this write is stored; {_RESTART}")

    def _fail_generation(self, error: DriftQError) -> None:
        """Nothing that was queued before the loop heard of a failure is in the file."""
        failed, self._generation = self._generation, self._generation + 1
        self._queued.clear()
        while self._outstanding and self._outstanding[0].generation == failed:
            self._settle_first(self._unapplied or error)

    def _settle_first(self, error: DriftQError | None) -> None:
        submission = self._outstanding.popleft()
        self.depth -= 1
        self._outstanding_bytes -= submission.size
        if submission.handed is not None:
            self._hand(submission, error)
            if error is not None:
                return  # nobody has seen it
        if submission.done is not None:
            try:
                submission.done(submission, error)
            except Exception as bug:  # noqa: BLE001 - the loop hears of it, and whoever comes next is answered
                self._runtime.soon(partial(_raise, bug))

    def _hand(self, submission: Submission, error: DriftQError | None) -> None:
        handed, submission.handed = submission.handed, None
        if handed is not None:
            try:
                handed(submission, error)
            except Exception as bug:  # noqa: BLE001 - the loop hears of it, and whoever comes next is answered
                self._runtime.soon(partial(_raise, bug))


def _raise(error: Exception) -> None:
    raise error
