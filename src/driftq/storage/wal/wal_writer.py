"""The writing half of a shard's group commit: it knows the file. It lives on a thread, or in a process of its own.

    queued → written → synced         what `storage/wal/group_commit` tells the callers; reports say how far it has come
        └────────┴─ failed

    roomy ⇄ full                      whether there is room for records; `WriteReport.full` says why there is none

Invariants
- A parcel is in one file as a whole, or not at all; parcels are written in their order.
- `synced` grows behind a sync alone, and never beyond what had been written when the sync began.
- A failed write leaves zeros where its bytes were, before anything else is written. What was queued before the loop
  heard of the failure (its `generation` tells) is passed over: its seqs build on what is not there.
- A failed sync stops the shard, and so does a failed write that cannot be undone; only a restart ends that.
- The log of a run ends with a frame of kind DRAINED only if every parcel that was handed over in the run is before it
  and synced. A run in which a write or a sync failed has none, nor has one whose writer died.
- Reports are cumulative: of two, the later one says all that the earlier did, but for a failure.

A full disk (decision 20). Parcels that make room, or that must work without it, may use the reserve at the end of each
file (`Parcel.uses_reserve`): deletes, topic deletes and updates, acks, marks of checkpoints. Others may only where the
next file is made already, for then its reserve takes over.
- So there is always either a file that is made and unused, or the reserve of the current one, less what went into it.
- The writer is full from when a parcel that may not use the reserve does not fit and no next file can be made, until
  the next file is made. It tries once a second, and whenever it is asked to (a parcel without frames and without sync).
- Told to shrink, because a checkpoint has no room, it gives back the next file and what the current one has behind its
  reserve, and is full.
- A parcel that uses the reserve and does not fit gets a small file, which is all reserve. Where that cannot be made,
  the reserve file becomes it (`storage/wal/wal_file`). Only where that is used up too, it fails.
- The mark of a checkpoint never fails for lack of room: it is left out, and its place is told. On a full disk it goes
  to a small file of its own where one can be made, so that the checkpoint makes all larger ones superfluous.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENOSPC

from msgspec import structs

from driftq.errors import DiskFullError, DriftQError, InternalError, ShardReadOnlyError, ShardStoppedError
from driftq.storage.blocks.frame import Kind, encode_control
from driftq.storage.no_space import is_no_space, write_error
from driftq.storage.wal.frame_salt import salted
from driftq.storage.wal.memory_spans import SpanNotes
from driftq.storage.wal.wal_file import WalFile, WalFiles
from driftq.storage.wal.wal_head import HEAD_BYTES, PLACE_BITS, SALT_BYTES, FileHead, encode_head
from driftq.storage.wal.writer_messages import Failure, Parcel, WalCounters, WriteReport
from driftq.system.clock import Clock
from driftq.system.disk import Site, write_fully, write_zeros
from driftq.system.entropy import Entropy
from driftq.system.runtime import Handle, SerialWorker

# long: the states of one file, which make sense only side by side

SYNC_DELAY_MS = 10
"""What no caller waits for is synced so long after the sync before it."""
SYNC_GATHER_MS = 1
"""Behind a rest of that length, so long after it was written: what else is about to come shares the sync."""
ROOM_RETRY_MS = 1000
"""While there is no room for the next file, it is tried again after so long."""
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


def _refusal(error: OSError) -> InternalError:
    """Return the error that callers get while the next log file cannot be made."""
    what = "the next log file cannot be made"
    if is_no_space(error):
        return write_error(what, error)
    return ShardReadOnlyError(f"{what}: {error.strerror}; writes work again when it can")


class WalWriter:
    """The file, and what of it is safe."""

    def __init__(
        self,
        clock: Clock,
        files: WalFiles,
        head: FileHead,
        tell: Callable[[WriteReport], None],
        make_worker: Callable[[str, Handle[int]], SerialWorker[int]],
        entropy: Entropy,
    ) -> None:
        self.counters = WalCounters()
        self.synced_to = 0
        """A place up to which everything is on stable storage. Read from anywhere."""
        self._clock = clock
        self._files = files
        self._tell = tell
        self._head = head
        self._entropy = entropy
        self._salt = 0
        """That of the current file."""
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
        self._full: InternalError | None = None
        self._spans = SpanNotes()
        """Of the current file."""
        self._retry_ns = 0
        """When to try again to make the next file, while the writer is full."""
        self._preparer: SerialWorker[int] = make_worker(f"driftq-wal-prepare-{head.shard}", self._prepare)
        self._asked_for = self._number
        self._preparer.put(self._number)

    def handle(self, jobs: Sequence[Sequence[Parcel]]) -> float | None:
        """Write a batch, sync it if it must be, and say when to come back for the timer sync."""
        # What was queued before the loop heard of a failure has been failed there already.
        batch = [parcel for job in jobs for parcel in job if parcel.generation > self._failed_generation]
        before = (self._written, self._synced)
        full_before = self._full
        error: DriftQError | None = None
        generation = batch[-1].generation if batch else self._failed_generation
        try:
            if batch:
                self._write(batch)
            if any(parcel.sync for parcel in batch):
                self._sync(Site.WAL_COMMIT)
            elif self._sync_is_due():
                self._sync(Site.WAL_TIMER)
            self._name_spans()
            if any(parcel.shrinks for parcel in batch):
                self._shrink()
            else:
                self._look_for_room(asked=any(not parcel.frames and not parcel.sync for parcel in batch))
        except DriftQError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - whatever it is, nobody may be told that his write is safe
            error = self._stopped = ShardStoppedError(f"the writer of the log failed: {bug!r}")
            self._due_ns = None
        if error is not None:
            self._failed_generation = generation
            self._tell(self._report(self._settled_by(batch, before[0]), generation, Failure.of(error)))
        elif (self._written, self._synced) != before or self._full is not full_before:
            prompt = self._synced != before[1] or self._full is not full_before
            prompt = prompt or any(parcel.prompt for parcel in batch)
            self._tell(self._report(self._written, generation, None, prompt=prompt))
        retry_ns = None if self._full is None or self._stopped is not None else self._retry_ns
        due = [ns for ns in (self._due_ns, retry_ns) if ns is not None]
        return max(min(due) - self._clock.monotonic_ns(), 0) / _NS_PER_S if due else None

    def close(self, *, drained: bool = False) -> WriteReport:
        """A last sync, then the file goes. Called when nothing more will come.

        `drained`: the server died, and all that it handed over is written. The log then ends with a frame that says so.
        """
        failure = None
        try:
            if self._stopped is None and self._due_ns is not None:
                self._sync(Site.WAL_DRAIN if drained else Site.WAL_TIMER)
            if drained:
                self._name_spans(at_end=True)
                self._write_drained()
        except DriftQError as error:
            failure = Failure.of(error)
        self._preparer.close()
        self._files.close()
        if self._current is not None:
            if self._stopped is None:
                with suppress(OSError):  # what is left of it is zeros, and only takes space
                    self._current.file.truncate(self._current.end)
            self._current.file.close()
        self._files.keep_reserve()
        return self._report(self._synced, self._failed_generation, failure)

    def _write_drained(self) -> None:
        """Say at the end of the log that nothing is missing in it, unless something is.

        All before it is synced by now. The frame itself is not: the start that believes it makes it durable.
        """
        if self._stopped is not None or self._failed_generation >= 0:
            return
        frame = encode_control(Kind.DRAINED, b"", topic_id=0, op=0, ts=0, synced_to=self.synced_to)
        current = self._current
        if current is None and self._head.shards == 1:
            return  # nothing was ever written in this run
        if current is None or current.end + len(frame) > current.size:
            self._rotate(len(frame))
            current = self._current
        assert current is not None
        with suppress(OSError):
            current.end = write_fully(current.file, salted([frame], self._salt), current.end)

    def _report(self, written: int, generation: int, failure: Failure | None, *, prompt: bool = True) -> WriteReport:
        ends, self._ends = self._ends, {}
        return WriteReport(
            written,
            self._synced,
            self.synced_to,
            self._took_ns,
            self.counters,
            prompt,
            failure,
            generation,
            ends,
            None if self._full is None else Failure.of(self._full),
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
            simple = current is not None and current.end + size + parcel.size <= current.open_to and not parcel.is_mark
            if not simple and not self._fits(parcel, size):
                self._put(chunk)
                chunk, size = [], 0
                if not self._make_room(parcel):
                    self._place(parcel)
                    continue
            chunk.append(parcel)
            size += parcel.size
        self._put(chunk)

    def _fits(self, parcel: Parcel, size: int) -> bool:
        """Whether a parcel may go into the current file, behind `size` bytes of others."""
        current = self._current
        if not parcel.frames:
            return True
        if current is None or (parcel.is_mark and self._full is not None and self._frees(current)):
            return False
        limit = current.size if parcel.uses_reserve or self._files.is_ready(self._number) else current.open_to
        return current.end + size + parcel.size <= limit

    def _frees(self, current: WalFile) -> bool:
        """Whether it is worth beginning a small file only so that the current one can be removed."""
        return not current.is_small or current.end > current.size // 2

    def _make_room(self, parcel: Parcel) -> bool:
        """Begin the next file for a parcel; a small one as the last resort. Returns whether it can be written now.

        Raises DiskFullError or ShardReadOnlyError.
        """
        refusal = self._full
        if not (parcel.is_mark and refusal is not None):
            try:
                self._rotate(parcel.size)
            except (DiskFullError, ShardReadOnlyError) as failure:
                refusal = failure
                self._is_full(failure)
            else:
                self._full = None
                return True
        assert refusal is not None
        if not parcel.uses_reserve:
            raise refusal
        try:
            self._rotate(parcel.size, small=True, at_any_price=not parcel.is_mark)
        except (DiskFullError, ShardReadOnlyError):
            if not parcel.is_mark:
                raise refusal from None
            current = self._current
            return current is not None and current.end + parcel.size <= current.size
        return True

    def _is_full(self, refusal: InternalError) -> None:
        if self._full is None or self._full.message != refusal.message:
            self._full = refusal
        self._retry_ns = self._clock.monotonic_ns() + ROOM_RETRY_MS * _NS_PER_MS

    def _look_for_room(self, *, asked: bool) -> None:
        """Try again to make the next file, where it is time to or somebody asks. At the very start: is there any room?

        Where there is none for the first file of a run, begin a small one at once, before others take what is left.
        """
        if self._stopped is not None or not (asked or self._full is not None):
            return
        if asked or self._clock.monotonic_ns() >= self._retry_ns:
            error = None if self._full is None and self._current is not None else self._files.prepare(self._number)
            if error is None:
                self._full = None
                return
            self._is_full(_refusal(error))
            if self._current is None:
                with suppress(DiskFullError, ShardReadOnlyError):
                    self._rotate(0, small=True)

    def _shrink(self) -> None:
        """Give back all space that is not used, but for the reserve. The writer is full from then on."""
        self._files.shrink(self._current, self._number)
        self._asked_for = self._number
        self._is_full(_refusal(OSError(ENOSPC, os.strerror(ENOSPC))))

    def _place(self, parcel: Parcel) -> None:
        """Tell where a mark would be that has no room: behind everything there is."""
        current = self._current
        self._written = parcel.number
        place = self._number << PLACE_BITS if current is None else current.number << PLACE_BITS | current.end
        self._ends[parcel.number] = place

    def _put(self, chunk: list[Parcel]) -> None:
        """One write of some parcels at the end of the current file."""
        if not chunk:
            return
        frames = [frame for parcel in chunk for frame in parcel.frames]
        if not frames:
            self._written = chunk[-1].number
            return
        current = self._current
        assert current is not None
        buffers = salted(frames, self._salt)
        start = current.end
        if buffers:
            try:
                current.end = write_fully(current.file, buffers, start)
            except OSError as error:
                self._undo(current, start, start + sum(map(len, buffers)))
                raise write_error("the log could not be written", error) from error
            self._note_dirty()
        end = start
        for parcel in chunk:
            place, end = end, end + parcel.size
            if parcel.late is not None:
                self._spans.late(place, end, *parcel.late)
            elif parcel.size:
                self._spans.other()
            if parcel.is_mark:
                self._ends[parcel.number] = current.number << PLACE_BITS | end
        self._written = chunk[-1].number
        counters = self.counters
        counters.frames += sum(parcel.frame_count for parcel in chunk)
        counters.batches += 1
        counters.bytes += current.end - start
        if current.end > (HEAD_BYTES + current.size) // 2 and self._asked_for != self._number:
            self._asked_for = self._number
            self._preparer.put(self._number)

    def _name_spans(self, *, at_end: bool = False) -> None:
        """Write down which stretches of the file a start may pass over, if there are enough new ones. Never fails.

        Only right after a sync: all before the frame is synced then, and so is what it names.
        """
        current = self._current
        if current is None or self._due_ns is not None or self._stopped is not None or self._full is not None:
            return
        body = self._spans.body(current.end, at_end=at_end)
        if body is None:
            return
        frame = encode_control(Kind.SPANS, body, topic_id=0, op=0, ts=0, synced_to=self.synced_to)
        start, end = current.end, current.end + len(frame)
        if end > current.open_to:
            return
        try:
            current.end = write_fully(current.file, salted([frame], self._salt), start)
        except OSError:
            self._undo(current, start, end)
        else:
            self._spans.named(start, end)

    def _undo(self, current: WalFile, start: int, end: int) -> None:
        """Make the bytes of a failed write zeros again, or cut them off: no later sync may persist them."""
        self._note_dirty()
        try:
            write_zeros(current.file, start, min(end, current.size))
        except OSError:
            try:
                current.file.truncate(start)
                current.size = start
                current.open_to = min(current.open_to, start)
            except OSError as error:
                self._stop(f"a failed write could not be undone: {error.strerror}", error)

    def _rotate(self, size: int, *, small: bool = False, at_any_price: bool = False) -> None:
        """Finish the current file and begin the next, large enough for `size` more bytes."""
        current = self._current
        salt = self._entropy.token(SALT_BYTES)
        head = structs.replace(self._head, salt=salt)
        if current is not None:
            self._sync(Site.WAL_ROTATE)
            head = structs.replace(head, previous=current.number, previous_end=current.end)
        try:
            if small:
                following = self._files.take_small(self._number, size, at_any_price=at_any_price)
            else:
                following = self._files.take(self._number, size)
        except OSError as error:
            raise _refusal(error) from error
        try:
            following.end = write_fully(following.file, [encode_head(head, self._number)], 0)
        except OSError as error:
            following.file.close()
            raise write_error("the log could not be written", error) from error
        if current is not None:
            current.file.close()
            self.counters.rotations += 1
        self._current = following
        self._salt = int.from_bytes(salt, "little")
        self._spans = SpanNotes()
        self._number += 1
        # Without its head nothing in the file could be read, so the head is durable before anything follows it.
        self.counters.note_sync(self._sync_file(following, Site.WAL_HEAD))
        self.synced_to = following.number << PLACE_BITS | following.end

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
        self._took_ns = self._sync_file(current, site)
        self._synced_ns = self._clock.monotonic_ns()
        self._due_ns = None
        self._synced = self._written
        self.synced_to = current.number << PLACE_BITS | current.end
        self.counters.note_sync(self._took_ns)

    def _sync_file(self, current: WalFile, site: Site) -> int:
        """Sync a file and return how long it took, in nanoseconds."""
        began = self._clock.monotonic_ns()
        try:
            current.file.sync(site)
        except OSError as error:
            self._stop(f"a sync of the log failed: {error.strerror}", error)
        return self._clock.monotonic_ns() - began

    def _stop(self, message: str, cause: OSError) -> None:
        self._stopped = ShardStoppedError(message)
        self._due_ns = None
        raise self._stopped from cause
