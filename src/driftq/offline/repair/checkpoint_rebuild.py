"""Rewrites a checkpoint to match what can be read: segments without damaged blocks, holes filled with salvaged records.

Works on a directory whose server has just stopped gracefully, so that the newest checkpoint is complete. For every
topic that has lost anything:

    segments that are damaged or get salvaged rows → a new hot segment with the valid blocks and the salvaged ones
    salvaged rows between segments → a new segment     salvaged rows in the range of copied rows → the copied rows
    salvaged seqs → removed from the holes             other lost seqs → a hole with reason `corruption`

Invariant: the new segments and `.idx` files are durable before the checkpoint that names them is installed.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from driftq.engine.files.topic_checkpoint import SegmentState, TopicCheckpoint
from driftq.engine.state.holes import HoleList
from driftq.model.tombstone import Hole, Reason
from driftq.offline.repair.originals import Originals
from driftq.offline.repair.record_salvage import LogNotes, Salvage, cold_blocks, hot_blocks
from driftq.offline.repair.seq_ranges import Range, joined, without
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.delete_flags import DELETED, VALID_FLAGS
from driftq.storage.layout import Layout
from driftq.storage.segments.block_index import BlockIndex
from driftq.storage.segments.hot_store import Seal, SegmentStore
from driftq.storage.segments.tag_index import TagIndex, tag_rows

_REFILLED = frozenset((Reason.CORRUPTION, Reason.CRASH))
_SEGMENT_RECORDS = 10_000


class RebuildResult(Struct):
    """Result of the rebuild of one topic."""

    topic: str
    salvaged: int
    """Number of records that a start alone would not have shown."""
    lost: list[Range]
    """Seqs that are lost, shown to readers as corruption."""


class Rebuild:
    """Rebuilds one topic of a checkpoint."""

    def __init__(
        self,
        layout: Layout,
        originals: Originals,
        state: TopicCheckpoint,
        broken: set[int],
        before: TopicCheckpoint | None,
    ) -> None:
        self._layout = layout
        self._originals = originals
        self._state = state
        self._broken = broken
        self._before = before
        self._store = SegmentStore(layout)
        self.outcome = RebuildResult(state.name, 0, [])

    @property
    def _floor(self) -> int:
        """Return the first seq that was visible before the damage; nothing below it is restored."""
        passed = 1 + max(self._state.cap_lost, self._state.ttl_lost)
        return max(passed, self._before.earliest if self._before is not None else 1)

    def run(self, notes: LogNotes, *, beyond: int) -> TopicCheckpoint:
        """Return the new state. Rows above the head, up to `beyond`, may be salvaged too."""
        state, sound = self._state, {}
        lost: list[Range] = []
        for segment in state.segments:
            if segment.first_seq in self._broken:
                sound[segment.first_seq] = blocks = self._sound(segment)
                gone = [(segment.first_seq, segment.end_seq - 1)]
                for block in blocks:
                    gone = without(gone, block.first_seq, block.last_seq)
                lost += self._not_dead(segment, gone)
        holes = [(hole.first, hole.last) for hole in state.holes if hole.reason in _REFILLED]
        ahead = [(state.head + 1, beyond)] if beyond > state.head else []
        wanted = [(max(first, self._floor), last) for first, last in joined([*holes, *lost, *ahead])]
        salvage = Salvage(state.topic_id, [r for r in wanted if r[0] <= r[1]], notes, self._flips())
        for source in (*self._originals.sources, self._layout, self._layout.lost()):
            salvage.from_segments(source)
        for source in self._originals.sources:
            salvage.from_checkpoints(source)
        for source in self._originals.sources:
            salvage.from_log(source)
        found = sorted(salvage.found, key=lambda block: block.first_seq)
        self.outcome.salvaged = sum(block.count - block.flags.count(DELETED) for block in found)
        return self._assembled(found, lost, sound)

    def _flips(self) -> set[int]:
        """Return the seqs of deletes that checkpoints know and the flags on disk do not show yet."""
        states = [self._state] if self._before is None else [self._state, self._before]
        return {seq for state in states for segment in state.segments for seq in segment.flips}

    def _sound(self, segment: SegmentState) -> list[Block]:
        reader = cold_blocks if segment.cold else hot_blocks
        blocks = reader(self._layout, self._state.topic_id, segment.first_seq)
        rows = (segment.first_seq, segment.end_seq - 1)
        found: list[Block] = []
        for block in blocks:
            # After its end, an active file may hold blocks that an earlier run of the server left.
            behind = found[-1].last_seq if found else rows[0] - 1
            if behind < block.first_seq and block.last_seq <= rows[1]:
                found.append(block)
        return found

    def _not_dead(self, segment: SegmentState, gone: list[Range]) -> list[Range]:
        """Return the ranges of `gone` without the blocks whose records are all deleted."""
        for first, rows, dead, _ in segment.dead:
            if dead == rows:
                gone = without(gone, first, first + rows - 1)
        return gone

    # Assembling the new state

    def _assembled(self, found: list[Block], lost: list[Range], sound: dict[int, list[Block]]) -> TopicCheckpoint:
        state = self._state
        tail_from = min((int.from_bytes(frame[24:32], "little") for frame in state.tail), default=state.head + 1)
        segments: list[SegmentState] = []
        left = found
        for segment in state.segments:
            here = [block for block in left if segment.first_seq <= block.first_seq < segment.end_seq]
            before = [block for block in left if block.first_seq < segment.first_seq]
            left = [block for block in left if block not in here and block not in before]
            segments += self._written(before, segment.begun_ms)
            if segment.first_seq in sound or here:
                kept = sound[segment.first_seq] if segment.first_seq in sound else self._sound(segment)
                flipped = [self._flipped(block, segment) for block in kept]
                segments += self._written([*flipped, *here], segment.begun_ms, segment)
            else:
                segments.append(segment)
        segments += self._written([block for block in left if block.last_seq < tail_from], 0)
        behind = [block.frame for block in left if block.last_seq >= tail_from]
        tail = sorted([*state.tail, *behind], key=lambda frame: int.from_bytes(frame[24:32], "little"))
        head = max([state.head, *(block.last_seq for block in found)])
        return structs.replace(
            state,
            segments=segments,
            tail=tail,
            head=head,
            last_ts=max([state.last_ts, *(block.last_ts for block in found)]),
            earliest=max(min([state.earliest, *(block.first_seq for block in found)]), self._floor),
            holes=self._holes(found, lost, head),
        )

    def _holes(self, found: Iterable[Block], lost: Sequence[Range], head: int) -> list[Hole]:
        holes = HoleList(list(self._state.holes))
        for first, last in [*lost, (self._state.head + 1, head)]:
            holes.add(max(first, self._floor), last, Reason.CORRUPTION)
        for block in found:
            kept: list[Hole] = []
            for hole in holes.all:
                left = without([(hole.first, hole.last)], block.first_seq, block.last_seq)
                kept += [Hole(first, last, hole.reason, hole.at_most) for first, last in left]
            holes.all = kept
        known = [] if self._before is None else [(hole.first, hole.last) for hole in self._before.holes]
        told = [(hole.first, hole.last) for hole in holes.all if hole.reason is Reason.CORRUPTION]
        for first, last in known:
            told = without(told, first, last)
        self.outcome.lost = told
        return holes.all

    def _flipped(self, block: Block, segment: SegmentState) -> Block:
        """Return the block with the pending deletes of its segment set in its flags."""
        rows = [seq - block.first_seq for seq in segment.flips if block.first_seq <= seq <= block.last_seq]
        if not rows:
            return block
        flags = bytearray(block.flags)
        for row in rows:
            flags[row] = DELETED
        return Block.of(block.frame[: len(block.frame) - block.count] + bytes(flags))

    def _written(self, blocks: list[Block], begun_ms: int, old: SegmentState | None = None) -> list[SegmentState]:
        """Write blocks as sealed hot segments and return their states."""
        made: list[SegmentState] = []
        blocks = [_with_plain_flags(block) for block in sorted(blocks, key=lambda block: block.first_seq)]
        while blocks:
            taken, rows = 0, 0
            while taken < len(blocks) and (old is not None or not taken or rows < _SEGMENT_RECORDS):
                rows += blocks[taken].count
                taken += 1
            made.append(self._write(blocks[:taken], begun_ms or blocks[0].ts, old))
            blocks = blocks[taken:]
        if old is not None:
            self._originals.keep_segment(self._state.topic_id, old.first_seq)
        return made

    def _write(self, blocks: list[Block], begun_ms: int, old: SegmentState | None) -> SegmentState:
        topic_id, first_seq = self._state.topic_id, blocks[0].first_seq
        self._originals.keep_segment(topic_id, first_seq)
        index, frames, place = BlockIndex(), [], 0
        for block in blocks:
            length = len(block.frame)
            index.add(
                first_seq=block.first_seq,
                count=block.count,
                offset=place,
                length=length,
                first_ts=block.ts,
                last_ts=block.last_ts,
                payload=block.payload_bytes,
            )
            frames.append((place, block.frame))
            place += length
        self._store.write(topic_id, first_seq, frames)
        tags = TagIndex.build(tag_rows(blocks, first_seq)).encode()
        self._store.seal([Seal(topic_id, first_seq, index, tags)])
        kept = {(block.first_seq, block.count) for block in blocks}
        dead = [] if old is None else [entry for entry in old.dead if entry[:2] in kept and entry[1] == entry[2]]
        return SegmentState(first_seq, blocks[-1].last_seq + 1, begun_ms, dead, [])


def _with_plain_flags(block: Block) -> Block:
    """Return the block with every flag either set or clear."""
    flags = bytes(block.flags).translate(VALID_FLAGS)
    return block if flags == block.flags else Block.of(block.frame[: len(block.frame) - block.count] + flags)
