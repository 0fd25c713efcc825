"""The half of a shard's group commit that owns the file. It runs on a thread or in a process of its own.

    queued → written → synced         reports to `storage/wal/group_commit` have the numbers reached
        └────────┴─ failed

    roomy ⇄ full                      whether there is room for records; `WriteReport.full` has the reason if not

Invariants
- A parcel is in one file as a whole, or not at all. Parcels are written in their order.
- `synced` grows only after a sync, and never above what had been written when the sync began.
- A failed write leaves zeros in place of its bytes, before anything else is written. Parcels that were queued before
  the loop received the failure (see their `generation`) are skipped: their seqs build on the failed ones.
- A failed sync stops the shard, and so does a failed write that cannot be undone. Only a restart ends that.
- The log of a run ends with a frame of kind DRAINED only if every parcel that was handed over in the run is before it
  and synced. A run in which a write or a sync failed has no such frame, nor has a run whose writer died.
- Reports are cumulative: a later report contains everything of an earlier one, except for a failure.

A full disk (decision 20). Parcels that make room, or that must work without it, may use the reserve at the end of each
file (`Parcel.uses_reserve`): deletes, topic deletes and updates, acks, marks of checkpoints. Other parcels may use it
only if the next file is already made, because then the reserve of that file replaces it.
- So there is always a file that is made and unused, or the reserve of the current file, less what was written to it.
- The writer becomes full when a parcel that may not use the reserve does not fit and no next file can be made. It is
  full until the next file is made. It tries once a second, and when asked to (by a parcel without frames and sync).
- When asked to shrink, because a checkpoint has no room, it gives back the next file and what the current file has
  after its reserve, and becomes full.
- A parcel that uses the reserve and does not fit gets a small file, which is all reserve. If that cannot be made, the
  reserve file is used instead (`storage/wal/wal_file`). The parcel fails only if that is used up too.
- The mark of a checkpoint never fails for lack of room: it is left out, and its place is reported. On a full disk it
  goes to a small file of its own if one can be made, so that the checkpoint makes all larger files removable. It does
  not if the last checkpoint lacked space (`Parcel.in_place`): the small file would take what the next one needs.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ENOSPC

from msgspec import structs

from driftq.errors import DiskFullError, DriftQError, InternalError, ShardReadOnlyError, ShardStoppedError
from driftq.model.units import NS_PER_MS, NS_PER_S
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
"""Writes that no caller waits for are synced this many ms after the previous sync."""
SYNC_GATHER_MS = 1
"""Writes that no caller waits for are synced at least this many ms after the first, so that others join the sync."""
ROOM_RETRY_MS = 1000
"""While there is no room for the next file, the writer tries again after this many ms."""


def _refusal(error: OSError) -> InternalError:
    """Return the error that callers get while the next log file cannot be made."""
    what = "the next log file cannot be made"
    if is_no_space(error):
        return write_error(what, error)
    return ShardReadOnlyError(f"{what}: {error.strerror}; writes work again when it can be made")


class WalWriter:
    """Writes the WAL files of one shard, and knows how much of them is synced."""

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
        """Synced end of the log. Other threads may read it."""
        self._clock = clock
        self._files = files
        self._tell = tell
        self._head = head
        self._entropy = entropy
        self._salt = 0
        """Salt of the current file."""
        self._number = head.run
        self._current: WalFile | None = None
        self._due_ns: int | None = None
        """When to sync the unsynced bytes, in monotonic nanoseconds; None if all bytes are synced."""
        self._synced_ns = clock.monotonic_ns() - SYNC_DELAY_MS * NS_PER_MS
        self._took_ns = 0
        self._written = 0
        self._synced = 0
        self._ends: dict[int, int] = {}
        self._failed_generation = -1
        self._stopped: ShardStoppedError | None = None
        self._full: InternalError | None = None
        self._spans = SpanNotes()
        """Spans of the current file."""
        self._retry_ns = 0
        """When to try again to make the next file, while the writer is full; in monotonic nanoseconds."""
        self._preparer: SerialWorker[int] = make_worker(f"driftq-wal-prepare-{head.shard}", self._prepare)
        self._asked_for = self._number
        self._preparer.put(self._number)

    def handle(self, jobs: Sequence[Sequence[Parcel]]) -> float | None:
        """Write the parcels to the WAL, sync if that is due, and report the result or the error to the loop.

        Return the seconds until the next sync or the next try on a full disk, or None.
        """
        # The loop has already failed what was queued before it received a failure.
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
        except Exception as bug:  # noqa: BLE001 - after any error, no write may be reported as safe
            error = self._stopped = ShardStoppedError(f"the log writer failed: {bug!r}")
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
        return max(min(due) - self._clock.monotonic_ns(), 0) / NS_PER_S if due else None

    def close(self, *, drained: bool = False) -> WriteReport:
        """Make a last sync and close the file. Called when no more parcels will come.

        `drained`: the server died, and everything that it handed over is written. The log then ends with a DRAINED
        frame.
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
                with suppress(OSError):  # the rest is zeros and only takes space
                    self._current.file.truncate(self._current.end)
            self._current.file.close()
        self._files.keep_reserve()
        return self._report(self._synced, self._failed_generation, failure)

    def _write_drained(self) -> None:
        """Mark the end of the log as complete with a DRAINED frame, unless a write of this run failed.

        Everything before the frame is synced by now. The frame itself is not: the start that finds it makes it durable.
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
        """Return the number up to which parcels have all they asked for, after an error in this batch.

        Parcels of earlier batches have, even if no report was sent because no caller waited.
        """
        settled = max(self._synced, written_before)
        for parcel in batch:
            if parcel.number > self._written or (parcel.sync and parcel.number > self._synced):
                break
            settled = parcel.number
        return settled

    def _write(self, batch: Sequence[Parcel]) -> None:
        """Write all parcels, and begin the next file when one is full."""
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
        """Whether a parcel may go into the current file, after `size` bytes of others."""
        current = self._current
        if not parcel.frames:
            return True
        if current is None or (self._has_own_file(parcel) and self._frees(current)):
            return False
        limit = current.size if parcel.uses_reserve or self._files.is_ready(self._number) else current.open_to
        return current.end + size + parcel.size <= limit

    def _has_own_file(self, parcel: Parcel) -> bool:
        """Whether a parcel is a mark that begins a small file on a full disk, so that earlier files can be removed."""
        return parcel.is_mark and self._full is not None and not parcel.in_place

    def _frees(self, current: WalFile) -> bool:
        """Whether a small file is worth starting only to make the current one removable."""
        return not current.is_small or current.end > current.size // 2

    def _make_room(self, parcel: Parcel) -> bool:
        """Begin the next file for a parcel, or a small one as the last resort. Returns whether it can be written.

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
        if parcel.in_place:
            return self._has_left(parcel)
        try:
            self._rotate(parcel.size, small=True, at_any_price=not parcel.is_mark)
        except (DiskFullError, ShardReadOnlyError):
            if not parcel.is_mark:
                raise refusal from None
            return self._has_left(parcel)
        return True

    def _has_left(self, parcel: Parcel) -> bool:
        """Whether the current file has room for a parcel, with its reserve."""
        current = self._current
        return current is not None and current.end + parcel.size <= current.size

    def _is_full(self, refusal: InternalError) -> None:
        if self._full is None or self._full.message != refusal.message:
            self._full = refusal
        self._retry_ns = self._clock.monotonic_ns() + ROOM_RETRY_MS * NS_PER_MS

    def _look_for_room(self, *, asked: bool) -> None:
        """Try again to make the next file, if it is time or the server asks. Before the first write, check for room.

        If there is no room for the first file of a run, begin a small one at once, before others take the remaining
        space.
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
        """Give back all unused space except for the reserve. The writer is full from then on."""
        self._files.shrink(self._current, self._number)
        self._asked_for = self._number
        self._is_full(_refusal(OSError(ENOSPC, os.strerror(ENOSPC))))

    def _place(self, parcel: Parcel) -> None:
        """Report the place of a mark that has no room: the end of the log."""
        current = self._current
        self._written = parcel.number
        place = self._number << PLACE_BITS if current is None else current.number << PLACE_BITS | current.end
        self._ends[parcel.number] = place

    def _put(self, chunk: list[Parcel]) -> None:
        """Write parcels to the end of the current file, in one write."""
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
        """Write a SPANS frame, if there are enough new spans. Never fails.

        Does so only right after a sync, so that everything before the frame, and all spans in it, are synced.
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
        """Overwrite the bytes of a failed write with zeros, or cut them off: no later sync may make them durable."""
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
        """Finish the current file and begin the next one, with room for `size` bytes."""
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
        # Nothing in a file can be read without its head, so the head is durable before anything follows it.
        self.counters.note_sync(self._sync_file(following, Site.WAL_HEAD))
        self.synced_to = following.number << PLACE_BITS | following.end

    def _note_dirty(self) -> None:
        """Set the time of the next timer sync, unless it is set: the current file has unsynced bytes."""
        if self._due_ns is None:
            now = self._clock.monotonic_ns()
            self._due_ns = max(now + SYNC_GATHER_MS * NS_PER_MS, self._synced_ns + SYNC_DELAY_MS * NS_PER_MS)

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
