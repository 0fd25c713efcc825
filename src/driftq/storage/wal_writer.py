"""The writing half of a shard's group commit: it knows the file. It lives on a thread, or in a process of its own.

    queued → written → synced         what `storage.commit` tells the callers; reports say how far it has come
        └────────┴─ failed

Invariants
- A parcel is in one file as a whole, or not at all; parcels are written in their order.
- `synced` grows behind a sync alone, and never beyond what had been written when the sync began.
- A failed write leaves zeros where its bytes were, before anything else is written. What was queued before the loop
  heard of the failure (its `generation` tells) is passed over: its seqs build on what is not there.
- A failed sync stops the shard, and so does a failed write that cannot be undone; only a restart ends that.
- Reports are cumulative: of two, the later one says all that the earlier did, but for a failure.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct, field

from driftq.errors import DriftQError, InternalError, ShardReadOnlyError, ShardStoppedError
from driftq.seam.clock import Clock
from driftq.seam.disk import Site, write_fully, write_zeros
from driftq.seam.runtime import Handle, Worker
from driftq.storage.bodies import FileHead, encode_file_head
from driftq.storage.frame import Kind, encode_control
from driftq.storage.wal_file import WalFile, WalFiles

SYNC_DELAY_MS = 10
"""What no caller waits for is synced so long after the sync before it."""
SYNC_GATHER_MS = 1
"""Behind a rest of that length, so long after it was written: what else is about to come shares the sync."""
SYNC_BOUNDS_US = (50, 100, 250, 500, 1000, 5000, 10_000, 50_000, 100_000)
"""Between which durations syncs are counted."""
PLACE_BITS = 32
"""A place in the log is one number: that of the file, and the offset in it in so many bits."""
_NS_PER_US = 1000
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class Parcel(Protocol):
    """Frames that reach the file together."""

    @property
    def frames(self) -> Sequence[bytes]:
        """The frames, or what stands in for several of them."""
        ...

    @property
    def frame_count(self) -> int:
        """How many frames they are."""
        ...

    @property
    def size(self) -> int:
        """Their bytes."""
        ...

    @property
    def number(self) -> int:
        """In the order of parcels."""
        ...

    @property
    def generation(self) -> int:
        """How many failures the loop had heard of when it was queued."""
        ...

    @property
    def sync(self) -> bool:
        """Does somebody wait for a sync that covers it?"""
        ...

    @property
    def prompt(self) -> bool:
        """Does somebody wait to hear that it is written?"""
        ...

    @property
    def placed(self) -> bool:
        """Does somebody want to know where it ends? Somebody waits for its sync then, too."""
        ...


class WalCounters(Struct, array_like=True):
    """What the metrics show of one shard's file."""

    frames: int = 0
    batches: int = 0
    bytes: int = 0
    rotations: int = 0
    syncs: int = 0
    sync_ns: int = 0
    sync_counts: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BOUNDS_US) + 1))
    """How many syncs took up to each bound, and more than the last."""

    def note_sync(self, took_ns: int) -> None:
        """A sync has ended."""
        self.syncs += 1
        self.sync_ns += took_ns
        self.sync_counts[bisect_left(SYNC_BOUNDS_US, took_ns / _NS_PER_US)] += 1


class Failure(Struct, frozen=True, array_like=True):
    """An error that can be sent."""

    kind: str
    message: str

    @staticmethod
    def of(error: DriftQError) -> "Failure":
        """What is to be told of it."""
        return Failure(type(error).__name__, error.message)

    def error(self) -> DriftQError:
        """The error again."""
        return _ERRORS.get(self.kind, InternalError)(self.message)


_ERRORS: dict[str, type[InternalError]] = {
    error.__name__: error for error in (InternalError, ShardReadOnlyError, ShardStoppedError)
}


class Report(Struct, frozen=True, array_like=True):
    """How far the writer has come, and what went wrong."""

    written: int
    """Parcels up to this number have all they asked for."""
    synced: int
    """Parcels up to this number are on stable storage."""
    synced_to: int
    """The same as a place in the log: what a frame that is built now may say."""
    sync_ns: int
    """How long the newest sync took."""
    counters: WalCounters
    prompt: bool = True
    """Does somebody wait for this one?"""
    failure: Failure | None = None
    generation: int = 0
    """Of the newest parcel that a failure has met."""
    ends: dict[int, int] = {}
    """Where parcels end whose place was asked for, by their number."""


class WalWriter:
    """The file, and what of it is safe."""

    def __init__(
        self,
        clock: Clock,
        files: WalFiles,
        head: FileHead,
        tell: Callable[[Report], None],
        make_worker: Callable[[str, Handle[int]], Worker[int]],
    ) -> None:
        self.counters = WalCounters()
        self.synced_to = 0
        """A place up to which everything is on stable storage. Read from anywhere."""
        self._clock = clock
        self._files = files
        self._tell = tell
        self._head = head
        self._number = head.run
        self._current: WalFile | None = None
        self._due_ns: int | None = None
        """When the bytes that no sync has covered are to have theirs; None without such bytes."""
        self._synced_ns = clock.monotonic_ns() - SYNC_DELAY_MS * _NS_PER_MS
        self._took_ns = 0
        self._written = 0
        self._synced = 0
        self._ends: dict[int, int] = {}
        self._failed_generation = -1
        self._stopped: ShardStoppedError | None = None
        self._preparer: Worker[int] = make_worker(f"driftq-wal-prepare-{head.shard}", self._prepare)
        self._asked_for = self._number
        self._preparer.put(self._number)

    def handle(self, jobs: Sequence[Sequence[Parcel]]) -> float | None:
        """Write a batch, sync it if it must be, and say when to come back for the timer sync."""
        # What was queued before the loop heard of a failure has been failed there already.
        batch = [parcel for job in jobs for parcel in job if parcel.generation > self._failed_generation]
        before = (self._written, self._synced)
        error: DriftQError | None = None
        generation = batch[-1].generation if batch else self._failed_generation
        try:
            if batch:
                self._write(batch)
            if any(parcel.sync for parcel in batch):
                self._sync(Site.WAL_COMMIT)
            elif self._sync_is_due():
                self._sync(Site.WAL_TIMER)
        except DriftQError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - whatever it is, nobody may be told that his write is safe
            error = self._stopped = ShardStoppedError(f"the log's writer broke: {bug!r}; restart the server")
            self._due_ns = None
        if error is not None:
            self._failed_generation = generation
            self._tell(self._report(self._settled_by(batch, before[0]), generation, Failure.of(error)))
        elif (self._written, self._synced) != before:
            prompt = self._synced != before[1] or any(parcel.prompt for parcel in batch)
            self._tell(self._report(self._written, generation, None, prompt=prompt))
        return None if self._due_ns is None else max(self._due_ns - self._clock.monotonic_ns(), 0) / _NS_PER_S

    def close(self) -> Report:
        """A last sync, then the file goes. Called when nothing more will come."""
        failure = None
        try:
            if self._stopped is None and self._due_ns is not None:
                self._sync(Site.WAL_TIMER)
        except DriftQError as error:
            failure = Failure.of(error)
        self._preparer.close()
        self._files.close()
        if self._current is not None:
            self._current.file.close()
        return self._report(self._synced, self._failed_generation, failure)

    def _report(self, written: int, generation: int, failure: Failure | None, *, prompt: bool = True) -> Report:
        ends, self._ends = self._ends, {}
        return Report(
            written, self._synced, self.synced_to, self._took_ns, self.counters, prompt, failure, generation, ends
        )

    def _prepare(self, numbers: list[int]) -> None:
        for number in numbers:
            self._files.prepare(number)

    def _settled_by(self, batch: Sequence[Parcel], written_before: int) -> int:
        """With an error under way: up to which number parcels have all they asked for.

        Those of batches before have: it may be that nobody was told, for nobody waited.
        """
        settled = max(self._synced, written_before)
        for parcel in batch:
            if parcel.number > self._written or (parcel.sync and parcel.number > self._synced):
                break
            settled = parcel.number
        return settled

    def _write(self, batch: Sequence[Parcel]) -> None:
        """Write everything, from file to file where one is full."""
        if self._stopped is not None:
            raise self._stopped
        chunk: list[Parcel] = []
        size = 0
        for parcel in batch:
            current = self._current
            if current is None or current.end + size + parcel.size > current.size:
                self._put(chunk)
                chunk, size = [], 0
                self._rotate(parcel.size)
            chunk.append(parcel)
            size += parcel.size
        self._put(chunk)

    def _put(self, chunk: list[Parcel]) -> None:
        """One write of some parcels at the end of the current file."""
        if not chunk:
            return
        current = self._current
        assert current is not None
        buffers = [frame for parcel in chunk for frame in parcel.frames]
        start = current.end
        if buffers:
            try:
                current.end = write_fully(current.file, buffers, start)
            except OSError as error:
                self._undo(current, start, start + sum(map(len, buffers)))
                raise InternalError(f"the log could not be written: {error.strerror}") from error
            self._note_dirty()
        end = start
        for parcel in chunk:
            end += parcel.size
            if parcel.placed:
                self._ends[parcel.number] = current.number << PLACE_BITS | end
        self._written = chunk[-1].number
        counters = self.counters
        counters.frames += sum(parcel.frame_count for parcel in chunk)
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
            self._sync(Site.WAL_ROTATE)
            head = FileHead(self._head.run, self._head.shard, self._head.shards, current.number, current.end)
        else:
            head = self._head
        frame = encode_control(
            Kind.FILE_HEAD, encode_file_head(head), topic_id=0, op=0, ts=0, synced_to=self._number << PLACE_BITS
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
            self.counters.rotations += 1
        self._current = following
        # Its head counts: the file behind this one will say that everything up to here was synced.
        self._note_dirty()
        self._number += 1
        self.synced_to = following.number << PLACE_BITS

    def _note_dirty(self) -> None:
        """The current file has something that no sync has covered."""
        if self._due_ns is None:
            now = self._clock.monotonic_ns()
            self._due_ns = max(now + SYNC_GATHER_MS * _NS_PER_MS, self._synced_ns + SYNC_DELAY_MS * _NS_PER_MS)

    def _sync_is_due(self) -> bool:
        return self._due_ns is not None and self._clock.monotonic_ns() >= self._due_ns

    def _sync(self, site: Site) -> None:
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
        self._took_ns = self._synced_ns - began
        self._due_ns = None
        self._synced = self._written
        self.synced_to = current.number << PLACE_BITS | current.end
        self.counters.note_sync(self._took_ns)

    def _stop(self, message: str, cause: OSError) -> None:
        self._stopped = ShardStoppedError(message)
        self._due_ns = None
        raise self._stopped from cause
