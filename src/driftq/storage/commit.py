"""Group commit of one shard: one ordered writer, one write and at most one sync per batch (http-v0 §19.3).

Two halves. `Shard` lives on the loop: it counts, queues, and settles. `WalWriter` knows the file, and lives in a
process of its own where there is one (`storage.wal_scribe`), else on a thread. They share nothing but messages.

    submit → queued → written → synced → settled            the good way; `disk` is settled by its caller when queued
                 └────────┴─ failed → settled with an error

Invariants
- Submissions settle in the order in which they were queued, all their frames or none in the file.
- A submission that asked for a sync settles only after a sync that covers it.
- Whoever fails when he is told skips nobody behind him.
- A failed write fails it and everything queued behind it, for their seqs build on it. `generation` tells what was
  queued before the loop heard of it.
- A failed sync stops the shard, and so does a writer that is gone: nobody can say what is on disk. Only a restart ends
  that. So it is with a committed change that could not be applied (`stop`): what is behind it is written, but settles
  with an error, for it builds on a state that is not there.
- A WAL file that cannot be made makes the shard read-only until it can; nothing was written, so nothing is undone.
- From a failure until a write works again the shard is `failing`: nobody may be told that it was enough to queue.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from driftq.errors import DriftQError, ShardReadOnlyError, ShardStoppedError, ThrottledError
from driftq.model.limits import WAL_QUEUE_BYTES_MAX, WAL_QUEUE_MAX
from driftq.seam.clock import Clock
from driftq.seam.lock import Lock
from driftq.seam.runtime import Runtime, Worker
from driftq.storage.bodies import FileHead
from driftq.storage.wal_file import WalFiles
from driftq.storage.wal_scribe import WalScribe
from driftq.storage.wal_writer import Report, WalCounters, WalWriter


class Submission:
    """Frames that reach the file together. `done` hears None or the error, on the loop.

    It is not `prompt` where nobody waits for that: then `done` may hear it with the next sync.
    """

    __slots__ = ("done", "end", "frames", "generation", "number", "placed", "prompt", "size", "sync", "sync_ns")

    def __init__(
        self,
        frames: Sequence[bytes],
        *,
        sync: bool,
        done: Callable[["Submission", DriftQError | None], None] | None,
        prompt: bool = True,
        placed: bool = False,
    ) -> None:
        self.frames = frames
        self.size = sum(map(len, frames))
        self.sync = sync
        self.done = done
        self.prompt = prompt
        self.placed = placed
        self.number = 0
        self.generation = 0
        self.sync_ns = 0
        """How long its sync took."""
        self.end = 0
        """Where it ends in the log, if it is to be `placed`: file number << 32 | offset."""

    @property
    def frame_count(self) -> int:
        """How many frames."""
        return len(self.frames)


class _Writing(Protocol):
    """The way to the writer."""

    @property
    def synced_to(self) -> int:
        """A place in the log up to which everything is known to be on stable storage."""
        ...

    def put(self, batch: list[Submission]) -> None:
        """Have it written."""
        ...

    def close(self) -> Report | None:
        """Write and sync what is queued, and end. The last word, if there is one."""
        ...


class _WriterThread:
    """A writer on a thread."""

    def __init__(
        self, runtime: Runtime, clock: Clock, files: WalFiles, head: FileHead, settle: Callable[[Report], None]
    ) -> None:
        self._writer = WalWriter(
            clock, files, head, lambda report: runtime.from_thread(partial(settle, report)), runtime.worker
        )
        self._worker: Worker[list[Submission]] = runtime.worker(f"driftq-wal-{head.shard}", self._writer.handle)

    @property
    def synced_to(self) -> int:
        """As the thread has it."""
        return self._writer.synced_to

    def put(self, batch: list[Submission]) -> None:
        """One put, however many submissions."""
        self._worker.put(batch)

    def close(self) -> Report:
        """End the thread. The loop hears what is left through its callbacks."""
        self._worker.close()
        return self._writer.close()


class Shard:
    """The loop's half."""

    def __init__(
        self, runtime: Runtime, clock: Clock, files: WalFiles, head: FileHead, lock: Lock | None = None
    ) -> None:
        self.counters = WalCounters()
        """As of the last report."""
        self.submit_full = self.queue_peak = 0
        self.synced_number = 0
        """Every submission up to this number is on stable storage."""
        self.stopped: DriftQError | None = None
        self._unapplied: ShardStoppedError | None = None
        self._deserted: ShardStoppedError | None = None
        """Is the writer gone?"""
        self.failing: DriftQError | None = None
        """What the newest write failed with, until one works again."""
        self.on_synced: Callable[[Shard], None] | None = None
        """Hears, on the loop, that `synced_number` has grown, when everything that settles with it has settled."""
        self._runtime = runtime
        self._queued: list[Submission] = []
        self._outstanding: deque[Submission] = deque()
        self._outstanding_bytes = 0
        self.depth = 0
        """Submissions that are queued or being written."""
        self._last_number = 0
        self._generation = 0
        scribe = None if lock is None else runtime.scribe()
        self._writing: _Writing = (
            _WriterThread(runtime, clock, files, head, self.settle)
            if scribe is None or lock is None
            else WalScribe(scribe, lock, files, head, self.settle, self._abandoned)
        )

    @property
    def read_only(self) -> bool:
        """Can the next file not be made?"""
        return isinstance(self.failing, ShardReadOnlyError)

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
        return self.stopped is None and self.depth < WAL_QUEUE_MAX and self._outstanding_bytes <= WAL_QUEUE_BYTES_MAX

    def check_room(self) -> None:
        """Refuse before anything is changed: a stopped shard, or a full queue."""
        if self.stopped is not None:
            raise self.stopped
        if not self.has_room:
            self.submit_full += 1
            raise ThrottledError(
                "the log cannot keep up; try again shortly", detail={"retry_after_ms": 50}, retry_after_ms=50
            )

    def stop(self, error: ShardStoppedError) -> None:
        """Something that is committed could not be applied: nothing that is queued behind it may be."""
        self.stopped = self._unapplied = error

    def submit(self, submission: Submission) -> int:
        """Queue frames; they go to the thread with the next `flush`. Returns the submission's number."""
        self._last_number += 1
        submission.number = self._last_number
        submission.generation = self._generation
        self._outstanding.append(submission)
        self._outstanding_bytes += submission.size
        self._queued.append(submission)
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

    def sync(self, done: Callable[[Submission, DriftQError | None], None] | None) -> None:
        """Ask for a sync of everything queued so far."""
        self.submit(Submission((), sync=True, done=done))

    def close(self) -> None:
        """Write and sync what is queued, end the writer. The loop hears what is left through its callbacks."""
        self.flush()
        last = self._writing.close()
        if last is not None:
            self.synced_number = max(self.synced_number, last.synced)
            error = None if last.failure is None else last.failure.error()
            if isinstance(error, ShardStoppedError):
                self.stopped = error

    def settle(self, report: Report) -> None:
        """From the writer: how far it has come, and what went wrong."""
        further = report.synced > self.synced_number
        self.synced_number = max(self.synced_number, report.synced)
        self.counters = report.counters
        error = None if report.failure is None else report.failure.error()
        if isinstance(error, ShardStoppedError):
            self.stopped = error
        outstanding = self._outstanding
        if self.failing is not None and any(s.frames for s in outstanding if s.number <= report.written):
            self.failing = None
        while outstanding and outstanding[0].number <= report.written:
            first = outstanding[0]
            first.sync_ns = report.sync_ns
            if first.placed:
                first.end = report.ends[first.number]
            self._settle_first(self._unapplied)
        if error is not None:
            self.failing = error
            if report.generation == self._generation:
                self._fail_generation(error)
        if further and self.on_synced is not None:
            self.on_synced(self)

    def _abandoned(self) -> None:
        """The writer is gone, and nobody can say what of the rest is on disk."""
        self._deserted = ShardStoppedError("the log's writer is gone; restart the server to recover")
        self.stopped = self.failing = self._deserted
        self._fail_generation(self._deserted)

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
        if submission.done is not None:
            try:
                submission.done(submission, error)
            except Exception as bug:  # noqa: BLE001 - the loop hears of it, and whoever comes next is answered
                self._runtime.soon(partial(_raise, bug))


def _raise(error: Exception) -> None:
    raise error
