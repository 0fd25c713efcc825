"""The log of a topic: its segments and blocks in order of their seqs, and which of their rows are live.

Records are added at the head, as rows for the open block or as whole blocks. Invariants, after every method
- `earliest` is the first live record, or `head + 1` when there is none; every row below it is gone;
- `count` and `payload` are exact over live records;
- blocks are in order of their seqs and do not overlap; between two of them there may be a hole, deleted segments, or
  `ephemeral` records that a restart lost.

`engine/state/topic` decides which rows are removed.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from driftq.engine.state.block_cache import Blocks, Usage
from driftq.engine.state.in_flight import TopicInFlight
from driftq.engine.state.segment import ACTIVE, Dead, Segment
from driftq.model.limits import BLOCK_BYTES_MAX, BLOCK_RECORDS_MAX, OWN_BLOCK_RECORDS
from driftq.storage.blocks.block import Block, RowSource
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.blocks.open_block import OpenBlock
from driftq.storage.blocks.rows import Rows


class LogPart(NamedTuple):
    """The position of a closed block, or of the open one, in the log."""

    segment: Segment
    number: int
    first_seq: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no caller needs
    first_ts: int
    last_ts: int

    @property
    def end_seq(self) -> int:
        """Return the seq after its last row."""
        return self.first_seq + self.count


class Log(ABC):
    """The records of one topic, without the rules that remove them."""

    def __init__(self, topic_id: int, blocks: Blocks) -> None:
        self.id = topic_id
        self._blocks = blocks
        self.head = 0
        self.last_ts = 0
        self.earliest = 1
        self.count = 0
        self.payload = 0
        self.segments: list[Segment] = []
        self.dropped: list[Segment] = []
        """Segments without live records. `engine/files/segment_files` takes them from here and removes their files."""
        self.open: OpenBlock | None = None
        self.open_dead: Dead | None = None
        self.oldest_ts = 0
        """A lower bound for the stamps of live records: lets a TTL check end early."""
        self.changed = True
        """Whether anything has changed since the last capture for a checkpoint."""
        self.op = 0
        """The number of the newest control frame that is applied."""
        self.in_flight = TopicInFlight()

    @abstractmethod
    def is_resident(self) -> bool:
        """Whether records to come are kept in memory only."""

    @property
    def usage(self) -> Usage:
        """Return live records and bytes of the whole server, including this topic."""
        return self._blocks.usage

    # Adding records

    def add(self, rows: Rows | Block, ts: int, times: "array[int] | None" = None) -> None:
        """Add records at the head: rows for the open block, or a block of their own. `ts` is the stamp of the last
        record; `times` is given for rows with different stamps.
        """
        first = self.head + 1
        resident = self.is_resident()
        if isinstance(rows, Block):
            assert rows.first_seq == first
            self.close_open()
            segment = self._active(first, ts, resident=resident)
            self._blocks.add(segment, rows, last_ts=rows.last_ts, payload=rows.payload_bytes)
        else:
            opened = self.open
            if opened is None:
                self._active(first, times[0] if times else ts, resident=resident)
                opened = self.open = OpenBlock(first)
            opened.extend(rows, ts, times)
            if self.open_dead is not None:
                self.open_dead.grow(rows.count)
            if opened.count >= BLOCK_RECORDS_MAX or opened.payload_bytes >= BLOCK_BYTES_MAX:
                self.close_open()
        if self.count == 0:
            self.earliest = first
            self.oldest_ts = times[0] if times else ts
        self.head = first + rows.count - 1
        self.last_ts = ts
        self._account(rows.count, rows.payload_bytes)

    def add_one(self, data: bytes, tag: bytes | None, ts: int) -> None:
        """Add one record that has only data and a tag: the same effect as `add`, but faster."""
        head = self.head + 1
        opened = self.open
        if opened is None:
            self._active(head, ts, resident=self.is_resident())
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
        """Close the open block and append it to the active segment."""
        opened = self.open
        if opened is None:
            return
        dead, self.open, self.open_dead = self.open_dead, None, None
        segment = self.segments[-1]
        block = Block.of(opened.encode(self.id, bytes(dead.flags) if dead is not None else b""))
        number = self._blocks.add(segment, block, last_ts=opened.last_ts, payload=opened.payload_bytes)
        if dead is not None:
            segment.dead[number] = dead
            segment.live -= dead.count

    def seal_active(self) -> None:
        """Close the active segment: the next record goes to a new one."""
        self.close_open()
        if self.segments and self.segments[-1].state is ACTIVE:
            self.segments[-1].close()
            self._drop_if_empty(self.segments[-1])
            self._drop_passed()

    def renew_active(self) -> None:
        """Move the live blocks of the active segment to a new one, and drop it: then its file can be removed.

        Does nothing if its first block has live rows, or if a live block is not in memory.
        """
        old, opened = self.segments[-1], self.open
        if opened is not None and self.open_dead is not None and self.open_dead.count == opened.count:
            self.open = self.open_dead = opened = None
        live = [number for number in range(len(old.index)) if old.live_in(number)[0]]
        blocks = [block for number in live if (block := self._blocks.in_memory(old, number)) is not None]
        if len(blocks) < len(live) or 0 in live:
            return
        old.close()
        self.dropped.append(self.segments.pop())
        self.changed = True
        first = blocks[0] if blocks else opened
        if first is None:
            return
        new = Segment(first.first_seq, resident=old.resident, begun_ms=first.ts)
        self.segments.append(new)
        for number, block in zip(live, blocks, strict=True):
            dead = old.dead.get(number)
            if dead is not None:
                block = Block.of(block.frame[: len(block.frame) - block.count] + dead.flags)
            last_ts, payload = old.index.last_ts(number), old.index.payload(number)
            added = self._blocks.add(new, block, last_ts=last_ts, payload=payload)
            if dead is not None:
                new.dead[added] = dead
                new.live -= dead.count

    def _active(self, first_seq: int, ts: int, *, resident: bool) -> Segment:
        if self.segments:
            last = self.segments[-1]
            if last.state is ACTIVE:
                if last.resident == resident:
                    return last
                last.close()
        segment = Segment(first_seq, resident=resident, begun_ms=ts)
        self.segments.append(segment)
        return segment

    # Restoring from a checkpoint

    def add_segment(self, segment: Segment) -> None:
        """Append a segment that is on disk and whose rows are all live."""
        if self.segments and self.segments[-1].state is ACTIVE:
            self.segments[-1].close()
        self.segments.append(segment)
        self.head = segment.end_seq - 1
        payload = sum(segment.index.payload(number) for number in range(len(segment.index)))
        self._account(segment.live, payload)

    def forget_rows(self, segment: Segment, records: int, payload: int) -> None:
        """Subtract rows of a segment that were found to be gone."""
        segment.live -= records
        self._account(-records, -payload)

    def add_restored(self, block: Block, flags: bytes) -> None:
        """Append a block that a checkpoint copied, with the flags of its gone rows."""
        opened = self.open
        if opened is not None and opened.first_seq + opened.count != block.first_seq:
            self.close_open()
        segment = self._active(block.first_seq, block.ts, resident=False)
        if block.count >= OWN_BLOCK_RECORDS:
            self.close_open()
            self._blocks.add(segment, block, last_ts=block.last_ts, payload=block.payload_bytes)
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
        """Close the open block if it does not end at `head`, because then it cannot grow."""
        if self.open is not None and self.open.first_seq + self.open.count - 1 != head:
            self.close_open()

    def settle_restored(self, earliest: int) -> None:
        """Finish a restore: find the first live record."""
        self.earliest = earliest
        self.in_flight.next_seq = self.head + 1
        self.in_flight.next_op = self.op + 1
        self._settle()
        if self.is_resident():
            self.seal_active()

    # Finding blocks

    def parts(self, seq: int) -> Iterator[LogPart]:
        """Yield every block from the one that contains a seq, or the first above it, to the open one."""
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
                yield LogPart(
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
            yield LogPart(segment, len(segment.index), opened.first_seq, opened.count, opened.ts, opened.last_ts)

    def dead_of(self, part: LogPart) -> Dead | None:
        """Return the gone rows of a part, or None if all its rows are live."""
        if self.is_open(part):
            return self.open_dead
        return part.segment.dead.get(part.number)

    def is_open(self, part: LogPart) -> bool:
        """Whether a part is the open block."""
        return self.open is not None and part.first_seq == self.open.first_seq

    def live_in(self, part: LogPart) -> tuple[int, int]:
        """Return the number of live rows of a part and their payload bytes."""
        opened = self.open
        if opened is not None and part.first_seq == opened.first_seq:
            dead = self.open_dead
            if dead is None:
                return opened.count, opened.payload_bytes
            return opened.count - dead.count, opened.payload_bytes - dead.payload
        return part.segment.live_in(part.number)

    def source_nowait(self, part: LogPart) -> RowSource | None:
        """Return the rows of a part, or None when reading them would wait. Raises BlockDamagedError or OSError."""
        if self.is_open(part):
            return self.open
        return self._blocks.nowait(self.id, part.segment, part.number)

    def block_of(self, segment: Segment, number: int) -> Block:
        """Return a closed block, even if the read takes long. Raises BlockDamagedError or OSError."""
        return self._blocks.load(self.id, segment, number)

    # Removing records

    def _dead(self, part: LogPart) -> Dead:
        """Return the gone rows of a part; creates the object if needed."""
        if not self.is_open(part):
            return part.segment.dead_of(part.number)
        if self.open_dead is None:
            self.open_dead = Dead(bytearray(part.count))
        return self.open_dead

    def _account(self, records: int, payload: int) -> None:
        self.count += records
        self.payload += payload
        usage = self._blocks.usage
        usage.records += records
        usage.payload += payload
        self.changed = True

    def _settle(self) -> None:
        """Move `earliest` to the first live record and drop the segments below it."""
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
        while done < len(segments) and segments[done].state is not ACTIVE and segments[done].end_seq <= self.earliest:
            done += 1
        if done:
            self.dropped += segments[:done]
            del segments[:done]

    def _drop_if_empty(self, segment: Segment) -> None:
        """Drop a segment if a delete has removed its last live row."""
        if segment.state is not ACTIVE and not segment.live and segment in self.segments:
            self.segments.remove(segment)
            self.dropped.append(segment)


def _payload_of(block: Block, flags: bytes) -> int:
    """Return the payload bytes of the flagged rows."""
    weights = block.weights(0, block.count)
    return sum(weights[row + 1] - weights[row] for row, flag in enumerate(flags) if flag == DELETED)
