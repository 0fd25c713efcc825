"""Group commit of one shard: one ordered writer, one write and at most one sync per batch (http-v0 §19.3).

There are two halves. `Shard` runs on the loop: it counts, queues and settles submissions. `WalWriter` owns the file. It
runs in a process of its own (`storage/wal/wal_process`) or, without such a process, on a thread. The halves share
nothing and exchange messages.

    submit → queued → handed over → written → synced → settled      `disk` is shown and acked when handed over
                 └──────────┴───────────┴─ failed → settled with an error

Invariants
- Submissions settle in the order in which they were queued. Either all frames of a submission are in the file, or none.
- A submission is handed over when the writer has it, or the kernel has it for the writer: from then on, the death of
  the server alone does not lose it. `handed` callbacks run in the order of submissions, each before its submission
  settles.
- A submission that asked for a sync settles only after a sync that covers it.
- A callback that raises does not prevent later callbacks from running.
- A failed write fails its submission and all that were queued after it, because their seqs build on it. `generation`
  identifies what was queued before the loop received the failure.
- A failed sync stops the shard, and so does the end of the writer: what is on disk is not known then. Only a restart
  ends that. A committed change that could not be applied stops the shard too (`stop`): later submissions are written
  but settle with an error, because they build on a state that does not exist.
- If the next WAL file cannot be made, the shard is full until it can: records are refused, and submissions that use the
  reserve work (`storage/wal/wal_writer`). Nothing was written, so nothing is undone.
- From a failure until a write works again, the shard is `failing`: meanwhile a write must not be acked when it is only
  queued.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from driftq.errors import DiskFullError, DriftQError, ShardStoppedError, ThrottledError
from driftq.model.limits import WAL_QUEUE_BYTES_MAX, WAL_QUEUE_MAX
from driftq.storage.wal.wal_file import WalFiles
from driftq.storage.wal.wal_head import FileHead
from driftq.storage.wal.wal_process import WalProcess
from driftq.storage.wal.wal_thread import WriterThread, Writing
from driftq.storage.wal.writer_messages import WalCounters, WriteReport
from driftq.system.clock import Clock
from driftq.system.entropy import Entropy, SystemEntropy
from driftq.system.lock import Lock
from driftq.system.runtime import Runtime

_RESTART = "restart the server to recover"


class Submission:
    """Frames that reach the file together. `done` is called on the loop, with None or the error.

    With `prompt=False`, `done` may be called as late as the next sync. `handed` is called when the submission is handed
    over. If that never happens, `handed` is called with the error instead, and `done` is not called.
    """

    __slots__ = (
        "done",
        "end",
        "frames",
        "generation",
        "handed",
        "in_place",
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
        in_place: bool = False,
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
        self.in_place = in_place
        self.shrinks = shrinks
        self.late = late
        """Topic id and timestamp of an Append frame that a start may load after the server is ready
        (`storage/wal/memory_spans`), else None.
        """
        self.number = 0
        self.generation = 0
        self.sync_ns = 0
        """How long the sync of this submission took, in nanoseconds."""
        self.end = 0
        """For a mark: its end in the log, as file number << 32 | offset."""

    @property
    def frame_count(self) -> int:
        """Return the number of frames."""
        return len(self.frames)


class Shard:
    """The half of a shard that runs on the loop."""

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
        """Counters from the writer's last report."""
        self.submit_full = self.queue_peak = 0
        self.synced_number = 0
        """Every submission up to this number is on stable storage."""
        self.stopped: ShardStoppedError | None = None
        """The error for every write after the log has stopped. Only a restart ends that."""
        self.on_stopped: Callable[[str], None] | None = None
        """Called once on the loop with the reason, before the writes in flight fail."""
        self._unapplied: ShardStoppedError | None = None
        self._deserted: ShardStoppedError | None = None
        """Set when the writer has ended or was given up."""
        self.hung: ThrottledError | None = None
        """The error for writes while the writer does not answer."""
        self._given_up = False
        self.failing: DriftQError | None = None
        """The error of the newest failed write, until a write works again."""
        self.full: DriftQError | None = None
        """The error for records while there is no room for them (`storage/wal/wal_writer`), else None."""
        self.on_room: Callable[[], None] | None = None
        """Called on the loop when `full` was set or cleared."""
        self.on_synced: Callable[[Shard], None] | None = None
        """Called on the loop after `synced_number` has grown and all submissions that this settles are settled."""
        self.on_read_only: Callable[[Shard], None] | None = None
        """Called on the loop when `read_only` has changed."""
        self._was_read_only = False
        self._was_full = False
        self._runtime = runtime
        self._queued: list[Submission] = []
        self._handing: list[Submission] = []
        """Submissions that wait to be handed over. Some of them may have been already."""
        self._outstanding: deque[Submission] = deque()
        self._outstanding_bytes = 0
        self.depth = 0
        """The number of submissions that are queued or being written."""
        self._last_number = 0
        self._generation = 0
        writer_process = None if lock is None else runtime.writer_process()
        self._writing: Writing = (
            WriterThread(runtime, clock, files, head, self.settle, entropy or SystemEntropy())
            if writer_process is None or lock is None
            else WalProcess(writer_process, lock, files, head, self.settle, self._abandoned, self.hand_over)
        )

    @property
    def read_only(self) -> bool:
        """Whether writes are refused because the disk is full or the next file cannot be made."""
        return self.full is not None or isinstance(self.failing, DiskFullError)

    @property
    def synced_to(self) -> int:
        """Return the synced end of the log for the header of a new frame: file number << 32 | offset."""
        return self._writing.synced_to

    @property
    def last_number(self) -> int:
        """Return the number of the newest submission."""
        return self._last_number

    @property
    def dirty(self) -> bool:
        """Whether submissions wait for the next `flush`."""
        return bool(self._queued)

    @property
    def has_room(self) -> bool:
        """Whether a submission would be accepted now."""
        return (
            self.stopped is None
            and self.hung is None
            and self.depth < WAL_QUEUE_MAX
            and self._outstanding_bytes <= WAL_QUEUE_BYTES_MAX
        )

    @property
    def oldest(self) -> int | None:
        """Return the number of the oldest submission that the writer has not answered."""
        return self._outstanding[0].number if self._outstanding else None

    @property
    def writer_pid(self) -> int | None:
        """Return the process id of the writer, or None if it is a thread."""
        return self._writing.pid

    def check_room(self) -> None:
        """Raise if the shard is stopped, its writer hangs, or its queue is full. Called before any state changes."""
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
        """Stop the shard because a committed change could not be applied: nothing queued after it may be applied.

        Returns the error for the caller of that change.
        """
        self._unapplied = self._stop(ShardStoppedError(why))
        return self._unapplied

    def give_up(self, why: str) -> None:
        """Stop the shard because the writer does not answer. It may still write what it was sent.

        A later `close` does not wait for it.
        """
        self._given_up = True
        self._desert(why)

    def submit(self, submission: Submission) -> int:
        """Queue frames for the writer; the next `flush` sends them. Returns the number of the submission."""
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
        """Send everything that was queued in this loop turn to the writer."""
        queued, self._queued = self._queued, []
        if queued and self._deserted is not None:
            self._runtime.soon(partial(self._fail_generation, self._deserted))
        elif queued:
            self._writing.put(queued)

    def hand_over(self) -> None:
        """Call `handed` of the waiting submissions if the writer has everything that was flushed."""
        if self._handing and not self._queued and self._deserted is None and self._writing.handed_over:
            handing, self._handing = self._handing, []
            for submission in handing:
                self._hand(submission, None)

    def sync(self, done: Callable[[Submission, DriftQError | None], None] | None) -> None:
        """Request a sync of everything queued so far."""
        self.submit(Submission((), sync=True, done=done))

    def look_for_room(self, *, shrink: bool = False) -> None:
        """Make the writer check now whether there is room for the next file.

        With `shrink`, it gives back all space that it does not use instead.
        """
        if self.stopped is None:
            self.submit(Submission((), sync=False, done=None, shrinks=shrink))
            self.flush()

    def close(self) -> None:
        """Write and sync what is queued, and end the writer. Callbacks on the loop report the remaining results."""
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
        """Apply a report of the writer: settle what is written, fail what failed."""
        further = report.synced > self.synced_number
        self.synced_number = max(self.synced_number, report.synced)
        self.counters = report.counters
        self.full = None if report.full is None else report.full.error()
        error = None if report.failure is None else report.failure.error()
        if isinstance(error, ShardStoppedError):
            error = self._stop(error)
        outstanding = self._outstanding
        # A mark does not prove that writing works again: it may have been left out for lack of room.
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
        """Call `on_read_only` and `on_room` if their state has changed."""
        if self.read_only is not self._was_read_only:
            self._was_read_only = self.read_only
            if self.on_read_only is not None:
                self.on_read_only(self)
        if (self.full is not None) is not self._was_full:
            self._was_full = self.full is not None
            if self.on_room is not None:
                self.on_room()

    def _abandoned(self) -> None:
        """Stop the shard because the writer process has ended: what it wrote of the rest is not known."""
        self._desert("the process that writes the log has ended")

    def _desert(self, why: str) -> None:
        """Stop the shard, fail all submissions, and expect no more reports from the writer."""
        self._deserted = self.failing = self._stop(ShardStoppedError(why))
        self._fail_generation(self._deserted)

    def _stop(self, error: ShardStoppedError) -> ShardStoppedError:
        """Refuse all later writes. Returns the error for the writes in flight, which may or may not be stored."""
        if self.stopped is None:
            self.stopped = ShardStoppedError(f"{error.message}; nothing of this write is stored; {_RESTART}")
            if self.on_stopped is not None:
                self.on_stopped(error.message)
        return ShardStoppedError(f"{error.message}; it is not known whether this write is stored; {_RESTART}")

    def _fail_generation(self, error: DriftQError) -> None:
        """Fail everything that was queued before the loop received a failure: none of it is in the file."""
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
                return  # it was never shown
        if submission.done is not None:
            try:
                submission.done(submission, error)
            except Exception as bug:  # noqa: BLE001 - the loop raises it later; the next callbacks must run
                self._runtime.soon(partial(_raise, bug))

    def _hand(self, submission: Submission, error: DriftQError | None) -> None:
        handed, submission.handed = submission.handed, None
        if handed is not None:
            try:
                handed(submission, error)
            except Exception as bug:  # noqa: BLE001 - the loop raises it later; the next callbacks must run
                self._runtime.soon(partial(_raise, bug))


def _raise(error: Exception) -> None:
    raise error
