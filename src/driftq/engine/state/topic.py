"""One topic's state, and what removes its records: retention, deletes, damage. `engine/state/record_log` is its log.

Invariants after every method, in addition to those of the log
- `1 <= evict_floor <= earliest <= head + 1`; only cap and TTL, by removing live records, move `evict_floor`;
- `earliest`, `cap_lost`, `ttl_lost`, `head` and `last_ts` never decrease.

Retention never fails. If it needs the bytes of a block that is unavailable, it keeps that block, and so the topic holds
up to one block more than its caps and TTL allow. No reader sees those records: they cannot be read.

Nothing here logs, waits or reads a clock. `engine/write/state_changes` decides when a change happens, live or replayed.
"""

import errno
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto

from driftq.engine.state.block_cache import Blocks
from driftq.engine.state.holes import HoleList
from driftq.engine.state.idempotency_keys import IdempotencyKeys
from driftq.engine.state.record_log import Log, LogPart
from driftq.engine.state.segment import Segment
from driftq.engine.timeline import Timeline
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability, TopicConfig
from driftq.storage.blocks.block import RowSource
from driftq.storage.blocks.delete_flags import DELETED, DELETED_BYTE
from driftq.storage.segments.hot_store import BlockDamagedError


class RemovalCause(Enum):
    """Why live records are removed: by a cap, by TTL, or by a delete."""

    BY_CAP = auto()
    BY_TIME = auto()
    BY_WISH = auto()


Guard = Callable[["Topic", RemovalCause], None]
FloorMoved = Callable[["Topic"], None]


class Topic(Log):
    """A named append-only log of records."""

    recovered = False
    """Whether an earlier run of the server created the topic."""
    keyed: "Callable[[Topic], None] | None" = None
    """Called when the topic has got an idempotency key (`engine/key_expiry`)."""
    late = False
    """Whether records of it are still to be loaded (`engine/recovery/deferred_load`); callers must not see it yet."""
    unread: LogPart | None = None
    """The block that retention could not read; it tries again when the block has been fetched (`engine.upkeep`)."""

    def __init__(self, topic_id: int, name: str, config: TopicConfig, blocks: Blocks, timeline: Timeline) -> None:
        super().__init__(topic_id, blocks)
        self.timeline = timeline
        self.name = name
        self.configure(config)
        self.created_ts = 0
        self.consumed_at: int | None = None
        """The engine time of the last read, in this run; its recency (`engine/load/priority`)."""
        self.cap_lost = 0
        self.ttl_lost = 0
        self.holes = HoleList()
        self.keys = IdempotencyKeys()
        self.reserved = 0
        """`disk`: a synced frame guarantees that seqs up to here are never given out twice."""
        # Of this run only, not part of the state:
        self.deleted = 0
        """Records that deletes and damage removed in this run; features compare it to notice removals."""
        self.visible = False
        """Whether its creation is committed and its deletion is not."""
        self.gone = False
        """Whether its deletion is committed."""
        self.guard: Guard | None = None
        """Called before live records are removed: the last chance to copy them."""
        self.fed = False
        """Whether it receives router copies, in order with its own records, that replay makes again from other logs."""
        self.mixed_to = 0
        """Up to this seq some records are in the log and others, of an `ephemeral` time, are not
        (`engine/write/floor_log`)."""
        self.floor_moved: FloorMoved | None = None
        """Called for every move of `evict_floor` while the topic is mixed."""

    def configure(self, config: TopicConfig) -> None:
        """Replace the config of the topic."""
        self.config = config
        self.durability: Durability = config.resolved_durability
        """The durability class of writes to come."""

    @property
    def evict_floor(self) -> int:
        """Return the seq after the highest one that cap or TTL removed while it was live."""
        return 1 + max(self.cap_lost, self.ttl_lost)

    @property
    def keeps_head(self) -> bool:
        """Whether no crash has moved the head back: a seq that a reader saw was never given to another record."""
        return not self.recovered or self.durability in (Durability.DISK, Durability.FSYNC)

    def is_resident(self) -> bool:
        """Whether records to come are never on disk, because the topic is `ephemeral`."""
        return self.durability is Durability.EPHEMERAL

    def skip_to(self, head: int, reason: Reason | None, *, at_most: bool = False) -> None:
        """Advance the head to `head`. Skipped seqs become a hole with `reason`; with None they are skipped silently.

        `at_most`: it is not known that any of them ever had a record that was acked.
        """
        if head <= self.head:
            return
        self.close_open()
        if reason is not None:
            self.holes.add(self.head + 1, head, reason, at_most=at_most)
        if self.count == 0:
            self.earliest = head + 1
        self.head = head
        self.changed = True

    def source(self, part: LogPart) -> RowSource | None:
        """Return the rows of a part, even if that takes long; None when they are damaged, which makes them a hole.

        Raises OSError when they are unavailable; nothing has changed then.
        """
        if self.is_open(part):
            return self.open
        try:
            return self._blocks.load(self.id, part.segment, part.number)
        except BlockDamagedError:
            self.lose(part.first_seq, part.end_seq - 1, Reason.CORRUPTION)
            return None

    def look_through(self, segment: Segment) -> None:
        """Find the damaged blocks of a segment, and make holes of them."""
        for part in list(self.parts(segment.first_seq)):
            if part.segment is segment:
                with suppress(OSError):  # a later call may succeed
                    self.source(part)

    def expire_at(self, stamp: int) -> None:
        """Call `expire` for the moment of a stamp; used to apply frames."""
        if self.config.ttl_ms:
            self.expire(self.timeline.moment(stamp))

    def forget_keys(self, stamp: int) -> None:
        """Remove the idempotency keys that were out of their window when a stamp was given."""
        self.keys.expire(self.kept_from(self.timeline.moment(stamp), self.config.idempotency_window_ms))
        if self.keyed is not None:
            self.keyed(self)

    def kept_from(self, now: int, age_ms: int) -> int:
        """Return the lowest stamp of records that are at most `age_ms` old at the moment `now`."""
        return self.timeline.stamp(now - age_ms)

    def expire(self, now: int) -> None:
        """Remove records at the front that are older than the TTL, and raise the floor.

        Whole blocks are removed by their index entries, without a read. A block with older and newer records must be
        read for its times: while it is unavailable all its records stay, unread, and the next call tries again.

        `now` is a moment of engine time, and so is the time at which each record was stored (`engine.timeline`).
        """
        ttl = self.config.ttl_ms
        if not ttl or not self.count:
            return
        oldest_kept = self.timeline.stamp(now - ttl)
        if self.oldest_ts >= oldest_kept:
            return
        self._warn(RemovalCause.BY_TIME)
        while self.count:
            part = next(self.parts(self.earliest))
            if part.first_ts >= oldest_kept:
                break
            if part.last_ts < oldest_kept:
                self._lose_to_ttl(self._clear_front(part))
                continue
            try:
                source = self._front_rows(part)
            except OSError:
                return
            if source is None:
                continue
            row = self.earliest - part.first_seq
            times = source.times(row, part.count)
            if isinstance(times, int):
                self.oldest_ts = times
                return
            old = bisect_left(times, oldest_kept)
            if old:
                self._lose_to_ttl(self._pass(part, source, row + old))
            self.oldest_ts = times[old]
            return
        self.oldest_ts = oldest_kept

    def evict(self) -> None:
        """Remove the fewest oldest live records that bring the topic within both caps, and raise the floor.

        Whole blocks are removed by their index entries, without a read. The block where the cut is must be read for its
        sizes: while it is unavailable all its records stay, unread, and the next call removes the rest.
        """
        records = self.count - self.config.cap_records if self.config.cap_records else 0
        payload = self.payload - self.config.cap_bytes if self.config.cap_bytes else 0
        if records > 0 or payload > 0:
            self._warn(RemovalCause.BY_CAP)
        while records > 0 or payload > 0:
            part = next(self.parts(self.earliest))
            live, size = self.live_in(part)
            if live <= records or size <= payload:
                self._lose_to_cap(self._clear_front(part))
                records -= live
                payload -= size
                continue
            try:
                source = self._front_rows(part)
            except OSError:
                return
            if source is None:
                records -= live
                payload -= size
                continue
            weights = source.weights(0, part.count)
            dead = self.dead_of(part)
            row = self.earliest - part.first_seq
            while records > 0 or payload > 0:
                if dead is None or dead.flags[row] != DELETED:
                    records -= 1
                    payload -= weights[row + 1] - weights[row]
                row += 1
            self._lose_to_cap(self._pass(part, source, row))
            return

    def _front_rows(self, part: LogPart) -> RowSource | None:
        """Return what `source` does. Raises OSError, and at once while `unread` waits to be fetched."""
        waits = self.unread
        known = waits is not None and waits.segment is part.segment and waits.number == part.number
        if known and self._blocks.in_memory(part.segment, part.number) is None:
            raise OSError(errno.EAGAIN, "retention waits until the block is fetched")
        try:
            source = self.source(part)
        except OSError:
            self.unread = part
            raise
        self.unread = None
        return source

    def _lose_to_cap(self, seq: int) -> None:
        self.cap_lost = max(self.cap_lost, seq)
        self._settle_floor()

    def _lose_to_ttl(self, seq: int) -> None:
        self.ttl_lost = max(self.ttl_lost, seq)
        self._settle_floor()

    def _settle_floor(self) -> None:
        self.holes.forget_before(self.evict_floor)
        if self.mixed_to and self.floor_moved is not None:
            self.floor_moved(self)

    def drop_below(self, seq: int) -> int:
        """Delete all records below a seq. Return how many of them were live before. Raise OSError, as `source`."""
        before = self.count
        if self.earliest < seq and before:
            self._warn(RemovalCause.BY_WISH)
        while self.earliest < seq and self.count:
            part = next(self.parts(self.earliest))
            if part.first_seq >= seq:
                break
            if part.end_seq <= seq:
                self._clear_front(part)
                continue
            source = self.source(part)
            if source is not None:
                self._pass(part, source, seq - part.first_seq)
        return before - self.count

    def age_out(self, seq: int) -> None:
        """Remove everything below a seq as if its TTL was over. The feature that owns the topic decides which seq."""
        if self.drop_below(seq):
            self._lose_to_ttl(min(seq, self.head + 1) - 1)

    def kill(self, part: LogPart, rows: Sequence[int]) -> int:
        """Delete some rows of a part. Return how many of them were live before."""
        before = self.count
        self._warn(RemovalCause.BY_WISH)
        self._mark(part, rows)
        self._settle()
        return before - self.count

    def lose(self, first: int, last: int, reason: Reason) -> None:
        """Turn damaged records into a hole; their live rows are gone."""
        for part in list(self.parts(first)):
            if part.first_seq > last:
                break
            if first <= part.first_seq and part.end_seq <= last + 1 and not self.is_open(part):
                records, payload = part.segment.clear(part.number)
                self.deleted += records
                self._account(-records, -payload)
                self._drop_if_empty(part.segment)
            else:
                start, end = max(first, part.first_seq), min(last + 1, part.end_seq)
                self._mark(part, range(start - part.first_seq, end - part.first_seq))
        self.holes.add(max(first, self.earliest), last, reason)
        self._settle()

    def is_damaged(self, first: int, end: int) -> bool:
        """Whether [first, end) overlaps a hole of damage that retention has not passed."""
        first = max(first, self.evict_floor)
        return first < end and any(
            hole.first < end and hole.last >= first and hole.reason is Reason.CORRUPTION for hole in self.holes.all
        )

    def _warn(self, going: RemovalCause) -> None:
        if self.guard is not None:
            self.guard(self, going)

    def _mark(self, part: LogPart, rows: Sequence[int]) -> None:
        """Mark rows as gone for good; their flags are set on disk later."""
        source = self.source(part)
        if source is None:
            return
        dead = self._dead(part)
        if isinstance(rows, range) and rows and not dead.any_in(rows):
            weights = source.weights(rows[0], rows[-1] + 1)
            fresh: Sequence[int] = range(part.first_seq + rows[0], part.first_seq + rows[-1] + 1)
            records, payload = dead.add_run(rows, weights[-1] - weights[0])
        else:
            weights = source.weights(0, part.count)
            fresh = [part.first_seq + row for row in rows if dead.flags[row] != DELETED]
            records, payload = dead.add(rows, [weights[row + 1] - weights[row] for row in rows])
        self.deleted += records
        self._account(-records, -payload)
        if not self.is_open(part):
            segment = part.segment
            segment.live -= records
            if not segment.resident:
                segment.flips.extend(fresh)
            self._drop_if_empty(segment)

    def _clear_front(self, part: LogPart) -> int:
        """Remove every row of the front part. Returns the seq of the last one that was live."""
        dead = self.dead_of(part)
        last = part.end_seq - 1
        if dead is not None:
            last = part.first_seq + len(dead.flags.rstrip(DELETED_BYTE)) - 1
        if self.is_open(part):
            records, payload = self.live_in(part)
            gone = self._dead(part)
            gone.flags[:] = DELETED_BYTE * part.count
            gone.count = part.count
            gone.payload += payload
        else:
            records, payload = part.segment.clear(part.number)
        self.earliest = part.end_seq
        self._account(-records, -payload)
        self._settle()
        return last

    def _pass(self, part: LogPart, source: RowSource, row: int) -> int:
        """Remove the live rows of the front part below `row`. Returns the seq of the last one that was live."""
        weights = source.weights(0, part.count)
        first = self.earliest - part.first_seq
        rows = range(first, row)
        dead = self._dead(part)
        last = first + len(dead.flags[first:row].rstrip(DELETED_BYTE)) - 1
        records, payload = dead.add(rows, [weights[r + 1] - weights[r] for r in rows])
        if not self.is_open(part):
            part.segment.live -= records
        self.earliest = part.first_seq + row
        self._account(-records, -payload)
        self._settle()
        return part.first_seq + last

    def _drop_passed(self) -> None:
        super()._drop_passed()
        self.holes.forget_before(self.evict_floor)
