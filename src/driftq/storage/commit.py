"""Group commit of one shard: one ordered writer thread, one write and at most one sync per batch (http-v0 §19.3).

Two halves. `Shard` lives on the loop: it counts, queues, and settles. `_Writer` lives on the thread: it knows the file.
They share nothing but messages and two numbers the thread publishes.

    submit → queued → written → synced → settled            the good way; `disk` is settled by its caller when queued
                 └────────┴─ failed → settled with an error

Invariants
- Submissions settle in the order in which they were queued, all their frames or none in the file.
- A submission that asked for a sync settles only after a sync that covers it.
- Whoever fails when he is told skips nobody behind him.
- A failed write fails it and everything queued behind it, for their seqs build on it; the bytes it may have left are
  zeros again before anything else is written. `generation` tells what was queued before the loop heard of it.
- A failed sync stops the shard: nobody can say what is on disk. Only a restart ends that.
- So does a committed change that could not be applied (`stop`): what is behind it is written, but settles with an
  error, for it builds on a state that is not there.
- A WAL file that cannot be made makes the shard read-only until it can; nothing was written, so nothing is undone.
- From a failure until a write works again the shard is `failing`: nobody may be told that it was enough to queue.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from driftq.errors import DriftQError, InternalError, ShardReadOnlyError, ShardStoppedError, ThrottledError
from driftq.model.limits import WAL_QUEUE_BYTES_MAX, WAL_QUEUE_MAX
from driftq.seam.clock import Clock
from driftq.seam.disk import Site, write_fully, write_zeros
from driftq.seam.runtime import Runtime, Worker
from driftq.storage.bodies import FileHead, encode_file_head
from driftq.storage.frame import Kind, encode_control
from driftq.storage.wal_file import WalFile, WalFiles

# long: the two halves of one hand-over, to be read together

SYNC_DELAY_MS = 10
"""What no caller waits for is synced so long after the sync before it."""
SYNC_GATHER_MS = 1
"""Behind a rest of that length, so long after it was written: what else is about to come shares the sync."""
SYNC_BOUNDS_US = (50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000)
"""Between which durations syncs are counted."""
_SHIFT = 32
_NS_PER_US = 1000
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class Submission:
    """Frames that reach the file together. `done` hears None or the error, on the loop."""

    __slots__ = ("done", "end", "frames", "generation", "number", "size", "sync", "sync_ns")

    def __init__(
        self, frames: Sequence[bytes], *, sync: bool, done: Callable[["Submission", DriftQError | None], None] | None
    ) -> None:
        self.frames = frames
        self.size = sum(map(len, frames))
        self.sync = sync
        self.done = done
        self.number = 0
        self.generation = 0
        self.end = 0
        """Where it ends, once written: file number << 32 | offset."""
        self.sync_ns = 0
        """How long its sync took."""


class WalCounters:
    """What the metrics show of one shard. Written by the thread that does the work, read by anybody."""

    __slots__ = (
        "batches",
        "bytes",
        "frames",
        "queue_peak",
        "rotations",
        "submit_full",
        "sync_counts",
        "sync_ns",
        "syncs",
    )

    def __init__(self) -> None:
        self.frames = self.batches = self.bytes = self.rotations = 0
        self.syncs = self.sync_ns = 0
        self.submit_full = self.queue_peak = 0
        self.sync_counts = [0] * (len(SYNC_BOUNDS_US) + 1)
        """How many syncs took up to each bound, and more than the last."""

    def note_sync(self, took_ns: int) -> None:
        """A sync has ended."""
        self.syncs += 1
        self.sync_ns += took_ns
        self.sync_counts[bisect_left(SYNC_BOUNDS_US, took_ns / _NS_PER_US)] += 1


class Shard:
    """The loop's half."""

    def __init__(self, runtime: Runtime, clock: Clock, files: WalFiles, *, run: int, shard: int, shards: int) -> None:
        self.counters = WalCounters()
        self.synced_number = 0
        """Every submission up to this number is on stable storage."""
        self.stopped: DriftQError | None = None
        self._unapplied: ShardStoppedError | None = None
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
        self._writer = _Writer(runtime, clock, files, self, FileHead(run, shard, shards, 0, 0))
        self._worker: Worker[list[Submission]] = runtime.worker(f"driftq-wal-{shard}", self._writer.handle)

    @property
    def read_only(self) -> bool:
        """Can the next file not be made?"""
        return isinstance(self.failing, ShardReadOnlyError)

    @property
    def synced_to(self) -> int:
        """What a frame that is built now may say: file number << 32 | synced offset."""
        return self._writer.synced_to

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
            self.counters.submit_full += 1
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
        self.counters.queue_peak = max(self.counters.queue_peak, self.depth)
        return submission.number

    def flush(self) -> None:
        """Hand over what this loop turn has queued: one put, however many submissions."""
        queued, self._queued = self._queued, []
        if queued:
            self._worker.put(queued)

    def sync(self, done: Callable[[Submission, DriftQError | None], None] | None) -> None:
        """Ask for a sync of everything queued so far."""
        self.submit(Submission((), sync=True, done=done))

    def close(self) -> None:
        """Write and sync what is queued, end the thread. The loop hears what is left through its callbacks."""
        self.flush()
        self._worker.close()
        self._writer.close()

    def settle(self, written: int, synced: int, error: DriftQError | None, generation: int) -> None:
        """From the thread: numbers up to which submissions are written and synced, and what went wrong."""
        further = synced > self.synced_number
        self.synced_number = max(self.synced_number, synced)
        if isinstance(error, ShardStoppedError):
            self.stopped = error
        outstanding = self._outstanding
        if self.failing is not None and any(s.frames for s in outstanding if s.number <= written):
            self.failing = None
        while outstanding and outstanding[0].number <= written:
            self._settle_first(self._unapplied)
        if error is not None:
            self.failing = error
            if generation == self._generation:
                self._fail_generation(error)
        if further and self.on_synced is not None:
            self.on_synced(self)

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


class _Writer:
    """The thread's half."""

    def __init__(self, runtime: Runtime, clock: Clock, files: WalFiles, shard: Shard, head: FileHead) -> None:
        self.synced_to = 0
        self._runtime = runtime
        self._clock = clock
        self._files = files
        self._shard = shard
        self._head = head
        self._number = head.run
        self._current: WalFile | None = None
        self._due_ns: int | None = None
        """When the bytes that no sync has covered are to have theirs; None without such bytes."""
        self._synced_ns = clock.monotonic_ns() - SYNC_DELAY_MS * _NS_PER_MS
        self._written = 0
        self._synced = 0
        self._failed_generation = -1
        self._stopped: ShardStoppedError | None = None
        self._preparer: Worker[int] = runtime.worker(f"driftq-wal-prepare-{head.shard}", self._prepare)
        self._asked_for = self._number
        self._preparer.put(self._number)

    def handle(self, jobs: list[list[Submission]]) -> float | None:
        """Write a batch, sync it if it must be, and say when to come back for the timer sync."""
        # What was queued before the loop heard of a failure has been failed there already.
        batch = [s for job in jobs for s in job if s.generation > self._failed_generation]
        before = (self._written, self._synced)
        error: DriftQError | None = None
        generation = batch[-1].generation if batch else self._failed_generation
        try:
            if batch:
                self._write(batch)
            if any(s.sync for s in batch):
                self._sync(Site.WAL_COMMIT, batch)
            elif self._sync_is_due():
                self._sync(Site.WAL_TIMER, batch)
        except DriftQError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - whatever it is, nobody may be told that his write is safe
            error = self._stopped = ShardStoppedError(f"the log's writer broke: {bug!r}; restart the server")
            self._due_ns = None
        if error is not None:
            self._failed_generation = generation
        if error is not None or (self._written, self._synced) != before:
            written = self._written if error is None else self._settled_by(batch)
            synced = self._synced
            self._runtime.from_thread(lambda: self._shard.settle(written, synced, error, generation))
        return None if self._due_ns is None else max(self._due_ns - self._clock.monotonic_ns(), 0) / _NS_PER_S

    def close(self) -> None:
        """A last sync, then the file goes. Called when the thread is gone."""
        try:
            if self._stopped is None and self._due_ns is not None:
                self._sync(Site.WAL_TIMER, ())
                self._shard.synced_number = self._synced
        except DriftQError as error:
            self._shard.stopped = error
        self._preparer.close()
        self._files.close()
        if self._current is not None:
            self._current.file.close()

    def _prepare(self, numbers: list[int]) -> None:
        for number in numbers:
            self._files.prepare(number)

    def _settled_by(self, batch: list[Submission]) -> int:
        """With an error under way: up to which number submissions have all they asked for."""
        settled = self._synced
        for submission in batch:
            if submission.number > self._written or (submission.sync and submission.number > self._synced):
                break
            settled = submission.number
        return settled

    def _write(self, batch: list[Submission]) -> None:
        """Write everything, from file to file where one is full."""
        if self._stopped is not None:
            raise self._stopped
        chunk: list[Submission] = []
        size = 0
        for submission in batch:
            current = self._current
            if current is None or current.end + size + submission.size > current.size:
                self._put(chunk)
                chunk, size = [], 0
                self._rotate(submission.size)
            chunk.append(submission)
            size += submission.size
        self._put(chunk)

    def _put(self, chunk: list[Submission]) -> None:
        """One write of some submissions at the end of the current file."""
        if not chunk:
            return
        current = self._current
        assert current is not None
        buffers = [frame for submission in chunk for frame in submission.frames]
        start = current.end
        if buffers:
            try:
                current.end = write_fully(current.file, buffers, start)
            except OSError as error:
                self._undo(current, start, start + sum(map(len, buffers)))
                raise InternalError(f"the log could not be written: {error.strerror}") from error
            self._note_dirty()
        end = start
        for submission in chunk:
            end += submission.size
            submission.end = current.number << _SHIFT | end
        self._written = chunk[-1].number
        counters = self._shard.counters
        counters.frames += len(buffers)
        counters.batches += 1
        counters.bytes += current.end - start
        if current.end > current.size // 2 and self._asked_for != self._number:
            self._asked_for = self._number
            self._preparer.put(self._number)

    def _undo(self, current: WalFile, start: int, end: int) -> None:
        """Make the bytes of a failed write zeros again, or cut them off: no later sync may persist them."""
        self._note_dirty()
        try:
            write_zeros(current.file, start, min(end, current.size))
        except OSError:
            try:
                current.file.truncate(start)
                current.size = start
            except OSError as error:
                self._stop(f"a failed write could not be undone: {error.strerror}", error)

    def _rotate(self, size: int) -> None:
        """Finish the current file and begin the next, large enough for `size` more bytes."""
        current = self._current
        if current is not None:
            self._sync(Site.WAL_ROTATE, ())
            head = FileHead(self._head.run, self._head.shard, self._head.shards, current.number, current.end)
        else:
            head = self._head
        frame = encode_control(
            Kind.FILE_HEAD, encode_file_head(head), topic_id=0, op=0, ts=0, synced_to=self._number << _SHIFT
        )
        try:
            following = self._files.take(self._number, len(frame) + size)
        except OSError as error:
            raise ShardReadOnlyError(
                f"the next log file cannot be made: {error.strerror}; writes work again when it can"
            ) from error
        try:
            following.end = write_fully(following.file, [frame], 0)
        except OSError as error:
            following.file.close()
            raise InternalError(f"the log could not be written: {error.strerror}") from error
        if current is not None:
            current.file.close()
            self._shard.counters.rotations += 1
        self._current = following
        # Its head counts: the file behind this one will say that everything up to here was synced.
        self._note_dirty()
        self._number += 1
        self.synced_to = following.number << _SHIFT

    def _note_dirty(self) -> None:
        """The current file has something that no sync has covered."""
        if self._due_ns is None:
            now = self._clock.monotonic_ns()
            self._due_ns = max(now + SYNC_GATHER_MS * _NS_PER_MS, self._synced_ns + SYNC_DELAY_MS * _NS_PER_MS)

    def _sync_is_due(self) -> bool:
        return self._due_ns is not None and self._clock.monotonic_ns() >= self._due_ns

    def _sync(self, site: Site, batch: Sequence[Submission]) -> None:
        current = self._current
        if current is None or self._due_ns is None:
            self._synced = self._written
            return
        began = self._clock.monotonic_ns()
        try:
            current.file.sync(site)
        except OSError as error:
            self._stop(f"a sync of the log failed: {error.strerror}; restart the server to recover", error)
        self._synced_ns = self._clock.monotonic_ns()
        took = self._synced_ns - began
        self._due_ns = None
        self._synced = self._written
        self.synced_to = current.number << _SHIFT | current.end
        self._shard.counters.note_sync(took)
        for submission in batch:
            submission.sync_ns = took

    def _stop(self, message: str, cause: OSError) -> None:
        self._stopped = ShardStoppedError(message)
        self._due_ns = None
        raise self._stopped from cause
