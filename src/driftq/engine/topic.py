"""One topic's state and the transitions of its log: rows come in at the head, go at the front or anywhere.

Invariants, after every method
- `1 <= evict_floor <= earliest <= head + 1`, and `earliest` is the first live record, or `head + 1` when there is none;
- `count` and `payload` are exact over live records; every row below `earliest` is gone;
- blocks stand in order of their seqs and do not overlap; between two of them there may be a hole, deleted segments, or
  records that an `ephemeral` class lost with a restart;
- `earliest`, `cap_lost`, `ttl_lost`, `head` and `last_ts` never decrease.

Nothing here logs, waits or asks the time. `engine.apply` decides when a transition happens, live and in replay alike.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from driftq.engine.blocks import Blocks, Usage
from driftq.engine.dedupe import Keys
from driftq.engine.holes import Holes
from driftq.engine.segment import Dead, Segment
from driftq.model.limits import BLOCK_BYTES_MAX, BLOCK_RECORDS_MAX, OWN_BLOCK_RECORDS, RESERVE_MIN
from driftq.model.tombstone import Reason
from driftq.model.topic import Durability, TopicConfig
from driftq.storage.block import Block, RowSource
from driftq.storage.frame import DELETED
from driftq.storage.open_block import OpenBlock
from driftq.storage.rows import Rows
from driftq.storage.segment_store import BlockDamagedError

_GONE = bytes([DELETED])


class Part(NamedTuple):
    """A closed block, or the open one, as a place in the log."""

    segment: Segment
    number: int
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks a place for
    first_ts: int
    last_ts: int

    @property
    def end_seq(self) -> int:
        """One more than the seq of its last row."""
        return self.first_seq + self.count


class Topic:
    """A named append-only log of records."""

    def __init__(  # noqa: PLR0915 - one statement per field
        self, topic_id: int, name: str, config: TopicConfig, blocks: Blocks
    ) -> None:
        self.id = topic_id
        self.name = name
        self.config = config
        self._blocks = blocks
        self.created_ts = 0
        self.op = 0
        """The newest control frame that is applied."""
        self.head = 0
        self.last_ts = 0
        self.earliest = 1
        self.cap_lost = 0
        self.ttl_lost = 0
        self.count = 0
        self.payload = 0
        self.holes = Holes()
        self.keys = Keys()
        self.segments: list[Segment] = []
        self.dropped: list[Segment] = []
        """Segments nothing of which is left; whoever keeps the files takes them from here."""
        self.open: OpenBlock | None = None
        self.open_dead: Dead | None = None
        self.reserved = 0
        """`disk`: seqs up to here are promised never to be given twice, in a synced frame."""
        self.changed = True
        """Has anything changed that the last capture does not show?"""
        # Under way, not part of the state:
        self.next_seq = 1
        self.next_op = 1
        self.visible = False
        """Is its creation committed, and its deletion not?"""
        self.held = 0
        """Control operations under way that writes must not overtake."""
        self.waiting = 0
        """Submissions whose effect is not applied yet; what comes behind them waits its turn."""
        self.inflight_records = 0
        self.inflight_payload = 0
        self.reserve_asked = 0
        self.reserve_window = RESERVE_MIN
        self.acked_since_reserve = 0
        self.unsynced: deque[tuple[int, int]] = deque()
        self.synced_seq = 0
        self.lost_from: int | None = None
        """First seq whose frame a failed write lost after its ack."""
        self.oldest_ts = 0
        """No live record is older than this: what lets a TTL check end at once."""

    @property
    def durability(self) -> Durability:
        """The class of the writes to come."""
        return self.config.resolved_durability

    @property
    def usage(self) -> Usage:
        """Live records and bytes of the whole server, this topic's among them."""
        return self._blocks.usage

    @property
    def evict_floor(self) -> int:
        """One more than the highest seq that cap or TTL took while it was live."""
        return 1 + max(self.cap_lost, self.ttl_lost)

    # Coming in

    def add(self, rows: Rows | Block, ts: int) -> None:
        """Records at the head: rows for the open block, or a block of their own."""
        first = self.head + 1
        resident = self.durability is Durability.EPHEMERAL
        if isinstance(rows, Block):
            assert rows.first_seq == first
            self.close_open()
            self._active(first, ts, resident=resident).add(rows, last_ts=rows.last_ts, payload=rows.payload_bytes)
        else:
            opened = self.open
            if opened is None:
                self._active(first, ts, resident=resident)
                opened = self.open = OpenBlock(first)
            opened.extend(rows, ts)
            if self.open_dead is not None:
                self.open_dead.grow(rows.count)
            if opened.count >= BLOCK_RECORDS_MAX or opened.payload_bytes >= BLOCK_BYTES_MAX:
                self.close_open()
        if self.count == 0:
            self.earliest = first
            self.oldest_ts = ts
        self.head = first + rows.count - 1
        self.last_ts = ts
        self._account(rows.count, rows.payload_bytes)

    def add_one(self, data: bytes, tag: bytes | None, ts: int) -> None:
        """One record at the head, with no more than these: what `add` does, for less."""
        head = self.head + 1
        opened = self.open
        if opened is None:
            self._active(head, ts, resident=self.durability is Durability.EPHEMERAL)
            opened = self.open = OpenBlock(head)
        opened.append(data, tag, ts)
        if self.open_dead is not None:
            self.open_dead.grow(1)
        if self.count == 0:
            self.earliest = head
            self.oldest_ts = ts
        self.head = head
        self.last_ts = ts
        self._account(1, len(data))
        if opened.count >= BLOCK_RECORDS_MAX or opened.payload_bytes >= BLOCK_BYTES_MAX:
            self.close_open()

    def close_open(self) -> None:
        """The open block becomes a block of the active segment."""
        opened = self.open
        if opened is None:
            return
        dead, self.open, self.open_dead = self.open_dead, None, None
        segment = self.segments[-1]
        block = Block.of(opened.encode(self.id, bytes(dead.flags) if dead is not None else b""))
        number = segment.add(block, last_ts=opened.last_ts, payload=opened.payload_bytes)
        if dead is not None:
            segment.dead[number] = dead
            segment.live -= dead.count

    def seal_active(self) -> None:
        """What comes next goes to a new segment."""
        self.close_open()
        if self.segments and not self.segments[-1].sealing:
            self.segments[-1].sealing = True
            self._drop_if_empty(self.segments[-1])
            self._drop_passed()

    def skip_to(self, head: int, reason: Reason | None) -> None:
        """The seqs up to `head` have no record: a hole, or silence where nobody was promised anything."""
        if head <= self.head:
            return
        self.close_open()
        if reason is not None:
            self.holes.add(self.head + 1, head, reason)
        if self.count == 0:
            self.earliest = head + 1
        self.head = head
        self.changed = True

    def _active(self, first_seq: int, ts: int, *, resident: bool) -> Segment:
        if self.segments:
            last = self.segments[-1]
            if not last.sealing and last.resident == resident:
                return last
            last.sealing = True
        segment = Segment(first_seq, resident=resident, begun_ms=ts)
        self.segments.append(segment)
        return segment

    # Coming back from a checkpoint

    def add_segment(self, segment: Segment) -> None:
        """A segment that is on disk, all its rows live."""
        self.segments.append(segment)
        self.head = segment.end_seq - 1
        payload = sum(segment.index.payload(number) for number in range(len(segment.index)))
        self._account(segment.live, payload)

    def forget_rows(self, segment: Segment, records: int, payload: int) -> None:
        """Rows of a segment that turned out to be gone."""
        segment.live -= records
        self._account(-records, -payload)

    def add_restored(self, block: Block, flags: bytes) -> None:
        """A block that was copied, behind what is here, with the flags of its gone rows."""
        opened = self.open
        if opened is not None and opened.first_seq + opened.count != block.first_seq:
            self.close_open()
        segment = self._active(block.first_seq, block.ts, resident=False)
        if block.count >= OWN_BLOCK_RECORDS:
            self.close_open()
            segment.add(block, last_ts=block.last_ts, payload=block.payload_bytes)
            self.head = block.last_seq
            self._account(block.count, block.payload_bytes)
            number = len(segment.index) - 1
            dead = Dead(bytearray(flags), _payload_of(block, flags))
            if dead.count:
                segment.dead[number] = dead
                self.forget_rows(segment, dead.count, dead.payload)
            return
        opened = self.open = self.open or OpenBlock(block.first_seq)
        times = block.times(0, block.count)
        opened.extend(block.rows(), block.ts, None if isinstance(times, int) else array("q", times))
        self.head = block.last_seq
        self._account(block.count, block.payload_bytes)
        dead = self.open_dead or Dead(bytearray(opened.count - block.count))
        gone = [row for row, flag in enumerate(flags, opened.count - block.count) if flag == DELETED]
        dead.grow(block.count)
        if gone or self.open_dead is not None:
            self.open_dead = dead
            weights = opened.weights(0, opened.count)
            records, payload = dead.add(gone, [weights[row + 1] - weights[row] for row in gone])
            self._account(-records, -payload)

    def close_where_gap(self, head: int) -> None:
        """The open block may grow only if it ends at the head."""
        if self.open is not None and self.open.first_seq + self.open.count - 1 != head:
            self.close_open()

    def settle_restored(self, earliest: int) -> None:
        """Everything is back: find the first live record."""
        self.earliest = earliest
        self.next_seq = self.head + 1
        self.next_op = self.op + 1
        self._settle()
        if self.durability is Durability.EPHEMERAL:
            self.seal_active()

    # Places

    def parts(self, seq: int) -> Iterator[Part]:
        """Every block from the one that holds a seq, or the first behind it, to the open one."""
        segments = self.segments
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle].end_seq <= seq:
                low = middle + 1
            else:
                high = middle
        for segment in segments[low:]:
            index = segment.index
            for number in range(index.at_or_after(seq), len(index)):
                yield Part(
                    segment,
                    number,
                    index.first_seq(number),
                    index.count(number),
                    index.first_ts(number),
                    index.last_ts(number),
                )
        opened = self.open
        if opened is not None and seq < opened.first_seq + opened.count:
            segment = segments[-1]
            yield Part(segment, len(segment.index), opened.first_seq, opened.count, opened.ts, opened.last_ts)

    def dead_of(self, part: Part) -> Dead | None:
        """The gone rows of a part, if it has lost any."""
        if self.is_open(part):
            return self.open_dead
        return part.segment.dead.get(part.number)

    def is_open(self, part: Part) -> bool:
        """Is it the open block?"""
        return self.open is not None and part.first_seq == self.open.first_seq

    def live_in(self, part: Part) -> tuple[int, int]:
        """Live rows of a part and their payload bytes."""
        opened = self.open
        if opened is not None and part.first_seq == opened.first_seq:
            dead = self.open_dead
            if dead is None:
                return opened.count, opened.payload_bytes
            return opened.count - dead.count, opened.payload_bytes - dead.payload
        return part.segment.live_in(part.number)

    def source_nowait(self, part: Part) -> RowSource | None:
        """The rows of a part, or None when reading them would wait. Raises BlockDamagedError."""
        if self.is_open(part):
            return self.open
        return self._blocks.nowait(self.id, part.segment, part.number)

    def source(self, part: Part) -> RowSource | None:
        """The rows of a part, however long it takes; None when they are damaged, which is a hole from here on."""
        if self.is_open(part):
            return self.open
        try:
            return self._blocks.load(self.id, part.segment, part.number)
        except (BlockDamagedError, OSError):
            self.lose(part.first_seq, part.end_seq - 1, Reason.CORRUPTION)
            return None

    def block_of(self, segment: Segment, number: int) -> Block:
        """A closed block, however long it takes. Raises BlockDamagedError or OSError."""
        return self._blocks.load(self.id, segment, number)

    # Going

    def expire(self, now: int) -> None:
        """TTL: what is older than it may be leaves at the front, and the floor says so."""
        ttl = self.config.ttl_ms
        oldest_kept = now - ttl
        if not ttl or self.oldest_ts >= oldest_kept or not self.count:
            return
        while self.count:
            part = next(self.parts(self.earliest))
            if part.first_ts >= oldest_kept:
                break
            if part.last_ts < oldest_kept:
                self._lose_to_ttl(self._clear_front(part))
                continue
            source = self.source(part)
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
        """Caps: the fewest oldest live records leave that bring the topic within both, and the floor says so."""
        records = self.count - self.config.cap_records if self.config.cap_records else 0
        payload = self.payload - self.config.cap_bytes if self.config.cap_bytes else 0
        while records > 0 or payload > 0:
            part = next(self.parts(self.earliest))
            live, size = self.live_in(part)
            if live <= records or size <= payload:
                self._lose_to_cap(self._clear_front(part))
                records -= live
                payload -= size
                continue
            source = self.source(part)
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

    def _lose_to_cap(self, seq: int) -> None:
        self.cap_lost = max(self.cap_lost, seq)
        self.holes.forget_before(self.evict_floor)

    def _lose_to_ttl(self, seq: int) -> None:
        self.ttl_lost = max(self.ttl_lost, seq)
        self.holes.forget_before(self.evict_floor)

    def drop_below(self, seq: int) -> int:
        """A delete of everything below a seq. Returns how many records were live."""
        before = self.count
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

    def kill(self, part: Part, rows: Sequence[int]) -> int:
        """A delete of some rows of a part. Returns how many were live."""
        before = self.count
        self._mark(part, rows)
        self._settle()
        return before - self.count

    def lose(self, first: int, last: int, reason: Reason) -> None:
        """Records that turned out to be damaged: a hole, and their live rows are gone."""
        for part in list(self.parts(first)):
            if part.first_seq > last:
                break
            if first <= part.first_seq and part.end_seq <= last + 1 and not self.is_open(part):
                records, payload = part.segment.clear(part.number)
                self._account(-records, -payload)
                self._drop_if_empty(part.segment)
            else:
                start, end = max(first, part.first_seq), min(last + 1, part.end_seq)
                self._mark(part, range(start - part.first_seq, end - part.first_seq))
        self.holes.add(max(first, self.earliest), last, reason)
        self._settle()

    def _mark(self, part: Part, rows: Sequence[int]) -> None:
        """Rows are gone for good: their flags will say so on disk."""
        source = self.source(part)
        if source is None:
            return
        weights = source.weights(0, part.count)
        sizes = [weights[row + 1] - weights[row] for row in rows]
        dead = self._dead(part)
        fresh = [part.first_seq + row for row in rows if dead.flags[row] != DELETED]
        records, payload = dead.add(rows, sizes)
        self._account(-records, -payload)
        if not self.is_open(part):
            segment = part.segment
            segment.live -= records
            if not segment.resident:
                segment.flips.extend(fresh)
            self._drop_if_empty(segment)

    def _dead(self, part: Part) -> Dead:
        """The gone rows of a part, made when there were none."""
        if not self.is_open(part):
            return part.segment.dead_of(part.number)
        if self.open_dead is None:
            self.open_dead = Dead(bytearray(part.count))
        return self.open_dead

    def _clear_front(self, part: Part) -> int:
        """Every row of the front part goes. Returns the seq of the last one that was live."""
        dead = self.dead_of(part)
        last = part.end_seq - 1
        if dead is not None:
            last = part.first_seq + len(dead.flags.rstrip(_GONE)) - 1
        if self.is_open(part):
            records, payload = self.live_in(part)
            gone = self._dead(part)
            gone.flags[:] = _GONE * part.count
            gone.count = part.count
            gone.payload += payload
        else:
            records, payload = part.segment.clear(part.number)
        self.earliest = part.end_seq
        self._account(-records, -payload)
        self._settle()
        return last

    def _pass(self, part: Part, source: RowSource, row: int) -> int:
        """The live rows of the front part below `row` go. Returns the seq of the last one that was live."""
        weights = source.weights(0, part.count)
        first = self.earliest - part.first_seq
        rows = range(first, row)
        dead = self._dead(part)
        last = first + len(dead.flags[first:row].rstrip(_GONE)) - 1
        records, payload = dead.add(rows, [weights[r + 1] - weights[r] for r in rows])
        if not self.is_open(part):
            part.segment.live -= records
        self.earliest = part.first_seq + row
        self._account(-records, -payload)
        self._settle()
        return part.first_seq + last

    def _account(self, records: int, payload: int) -> None:
        self.count += records
        self.payload += payload
        usage = self._blocks.usage
        usage.records += records
        usage.payload += payload
        self.changed = True

    def _settle(self) -> None:
        """Move `earliest` to the first live record and let go of what lies before it."""
        if not self.count:
            self.earliest = self.head + 1
        else:
            for part in self.parts(self.earliest):
                if not self.live_in(part)[0]:
                    continue
                row = max(0, self.earliest - part.first_seq)
                dead = self.dead_of(part)
                if dead is not None:
                    row = dead.first_live(row)
                self.earliest = part.first_seq + row
                self.oldest_ts = max(self.oldest_ts, part.first_ts)
                break
        self._drop_passed()

    def _drop_passed(self) -> None:
        segments = self.segments
        done = 0
        while done < len(segments) and segments[done].sealing and segments[done].end_seq <= self.earliest:
            done += 1
        if done:
            self.dropped += segments[:done]
            del segments[:done]
        self.holes.forget_before(self.evict_floor)

    def _drop_if_empty(self, segment: Segment) -> None:
        """A delete may have emptied a segment inside the log."""
        if segment.sealing and not segment.live and segment in self.segments:
            self.segments.remove(segment)
            self.dropped.append(segment)


def _payload_of(block: Block, flags: bytes) -> int:
    """Payload bytes of the flagged rows."""
    weights = block.weights(0, block.count)
    return sum(weights[row + 1] - weights[row] for row, flag in enumerate(flags) if flag == DELETED)
