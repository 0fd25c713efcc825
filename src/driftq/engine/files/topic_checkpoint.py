"""A topic as stored in a checkpoint: the state that replay would rebuild; records in durable segments are not copied.

The checkpoint references, without copying, every segment up to the first that is not fully durable, and that segment's
durable blocks. For an unsealed segment it also contains the index, because there is no `.idx` file yet. All later rows
are copied as block frames (`tail`) with their current flags. The open block is copied without the payloads of gone
rows, so that deletes make a checkpoint smaller.

When a topic is restored, a row of a referenced block is gone if its flag is set, if its delete had no flag on disk yet
(`flips`), if it is below `earliest`, or if its whole block was gone (`dead`). Flags on disk that the checkpoint does
not know of are trusted only in a frame whose checksum matches.

A referenced segment whose files are damaged becomes a hole. If files are missing or cannot be read, the start is
refused, unless the rest of the log no longer needs the segment.
"""

from array import array
from errno import ENOENT

from msgspec import Struct, msgpack

from driftq.engine.files.missing_segments import MissingSegment
from driftq.engine.state.control_frames import check_stored_config
from driftq.engine.state.segment import ACTIVE, Dead, Segment
from driftq.engine.state.topic import Topic
from driftq.errors import UnrecoverableError
from driftq.model.tombstone import Hole, Reason
from driftq.model.topic_config import TopicConfig
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.delete_flags import DELETED, DELETED_BYTE, VALID_FLAGS
from driftq.storage.blocks.frame import Frame, read_frame
from driftq.storage.blocks.open_block import OpenBlock
from driftq.storage.segments.block_index import BlockIndex
from driftq.storage.segments.cold_store import ColdStore
from driftq.storage.segments.hot_store import BlockDamagedError, SegmentStore


class SegmentState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A referenced segment. `cells` is the index of an unsealed one."""

    first_seq: int
    end_seq: int
    begun_ms: int
    dead: list[tuple[int, int, int, int]]
    """For each block with gone rows: its first seq, its number of rows, how many are gone, and their payload bytes."""
    flips: list[int]
    """Deleted seqs whose flag is not on disk yet."""
    cells: bytes | None = None
    cold: bool = False
    """Whether it has moved to the cold tier; then a hot copy that still exists has older flags."""


class TopicCheckpoint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of one topic in a checkpoint."""

    topic_id: int
    name: str
    config: TopicConfig
    created_ts: int
    op: int
    head: int
    last_ts: int
    earliest: int
    cap_lost: int
    ttl_lost: int
    reserved: int
    holes: list[Hole]
    keys: list[tuple[bytes, int, int, int]]
    segments: list[SegmentState]
    tail: list[bytes]


_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(TopicCheckpoint)


def capture_topic(topic: Topic, *, clean: bool) -> bytes:
    """Encode the topic as it is now. `clean`: at a graceful stop nothing is in flight, so no seqs need to be reserved.

    Raises OSError when a block that must be copied is unavailable.
    """
    states: list[SegmentState] = []
    tail: list[bytes] = []
    whole = True
    for segment in list(topic.segments):
        if segment.resident:
            continue
        if whole and segment.durable_blocks:
            states.append(_capture_segment(segment))
            segment.named = True
        segment.noted = len(segment.flips)
        copied = segment.durable_blocks if whole else 0
        whole = whole and segment.state is not ACTIVE and segment.durable_blocks == len(segment.index)
        for number in range(copied, len(segment.index)):
            tail += _frame_with_flags(topic, segment, number)
    if topic.open is not None and not topic.segments[-1].resident:
        tail += _open_frame(topic, topic.open)
    return _encoder.encode(
        TopicCheckpoint(
            topic.id,
            topic.name,
            topic.config,
            topic.created_ts,
            topic.op,
            topic.head,
            topic.last_ts,
            topic.earliest,
            topic.cap_lost,
            topic.ttl_lost,
            min(topic.reserved, topic.head) if clean else topic.reserved,
            topic.holes.all,
            list(topic.keys.items()),
            states,
            tail,
        )
    )


def _capture_segment(segment: Segment) -> SegmentState:
    blocks = segment.durable_blocks
    index = segment.index
    return SegmentState(
        segment.first_seq,
        index.end_seq(blocks - 1),
        segment.begun_ms,
        [
            (index.first_seq(number), len(dead.flags), dead.count, dead.payload)
            for number, dead in segment.dead.items()
            if number < blocks
        ],
        [seq for seq in segment.flips if seq < index.end_seq(blocks - 1)],
        None if segment.sealed else index.head(blocks),
        segment.cold,
    )


def _open_frame(topic: Topic, opened: OpenBlock) -> list[bytes]:
    """Return the frame of the open block without the payloads of gone rows; empty if it has no live rows."""
    dead = topic.open_dead
    if dead is None:
        return [opened.encode(topic.id)]
    if dead.count == opened.count:
        return []
    return [opened.encode(topic.id, bytes(dead.flags), empties=True)]


def _frame_with_flags(topic: Topic, segment: Segment, number: int) -> list[bytes]:
    """Return the frame of a block with its current flags; empty if it has no live rows, or is damaged (then a hole)."""
    if not segment.live_in(number)[0]:
        return []
    try:
        block = topic.block_of(segment, number)
    except BlockDamagedError:
        topic.lose(segment.index.first_seq(number), segment.index.end_seq(number) - 1, Reason.CORRUPTION)
        return []
    dead = segment.dead.get(number)
    if dead is None:
        return [block.frame]
    return [block.frame[: len(block.frame) - block.count] + dead.flags]


class Restorer:
    """Restores topics from their states in a checkpoint."""

    def __init__(self, store: SegmentStore, cold: ColdStore | None, *, missing_is_lost: bool) -> None:
        self._store = store
        self._cold = cold
        self._missing_is_lost = missing_is_lost
        self.lost: list[tuple[Topic, int, int, int]] = []
        """Segments that are damaged or accepted as lost: topic, first seq of the segment, first and last seq that was
        live.

        They become holes, unless the rest of the log removes their records.
        """
        self.missing: list[MissingSegment] = []
        """Segments whose files cannot be read now.

        The rest of the log may show that they are not needed: their topic was deleted, and its files with it.
        """
        self.unreadable: set[tuple[int, int]] = set()
        """Segments whose files are missing, unavailable or damaged. The files are kept for later inspection."""

    def restore(self, state: TopicCheckpoint, topic: Topic) -> None:
        """Fill a new topic from its state."""
        topic.created_ts, topic.op = state.created_ts, state.op
        topic.cap_lost, topic.ttl_lost = state.cap_lost, state.ttl_lost
        topic.reserved = topic.in_flight.reserve_asked = state.reserved
        topic.holes.all = list(state.holes)
        for key, ts, first, count in state.keys:
            topic.keys.remember(key, ts, first, count)
        for segment_state in state.segments:
            self._restore_segment(topic, segment_state, state.earliest)
        for frame in state.tail:
            header = read_frame(frame, 0, len(frame))
            assert isinstance(header, Frame), "a valid checkpoint contains valid frames"
            block = Block.read(frame, header)
            assert isinstance(block, Block)
            topic.head = block.first_seq - 1
            topic.add_restored(block, bytes(block.flags).translate(VALID_FLAGS))
        topic.close_where_gap(state.head)
        topic.head, topic.last_ts = state.head, state.last_ts
        topic.settle_restored(state.earliest)

    def _restore_segment(self, topic: Topic, state: SegmentState, earliest: int) -> None:
        try:
            self._restore_readable(topic, state, earliest)
        except OSError as error:
            if self._missing_is_lost and isinstance(error, FileNotFoundError):
                self._give_up(topic, state, earliest)
                return
            self.missing.append(MissingSegment(topic, state.first_seq, state.end_seq - 1, error))
            self.unreadable.add((topic.id, state.first_seq))
            topic.head = state.end_seq - 1

    def _give_up(self, topic: Topic, state: SegmentState, earliest: int) -> None:
        self.unreadable.add((topic.id, state.first_seq))
        self.lost.append((topic, state.first_seq, max(state.first_seq, earliest), state.end_seq - 1))
        topic.head = state.end_seq - 1

    def _restore_readable(self, topic: Topic, state: SegmentState, earliest: int) -> None:
        """Restore a segment. Raises OSError when it is unavailable."""
        segment = self._open(topic, state)
        if segment is None:
            self._give_up(topic, state, earliest)
            return
        flags = self._flags(topic, segment)
        # By seq and not by number: the segment may have moved to the cold tier since, where it has different blocks.
        known = {(first, rows): (gone, payload) for first, rows, gone, payload in state.dead}
        flips = set(state.flips)
        segment.flips.extend(state.flips)
        segment.noted = segment.flippable = len(state.flips)
        topic.add_segment(segment)
        for number in range(len(segment.index)):
            found = bytearray(flags[number].translate(VALID_FLAGS))
            first = segment.index.first_seq(number)
            for seq in [seq for seq in flips if first <= seq < segment.index.end_seq(number)]:
                found[seq - first] = DELETED
            if earliest > first:
                passed = min(earliest - first, len(found))
                found[:passed] = DELETED_BYTE * passed
            self._mark(topic, segment, number, found, known.get((first, len(found))))

    def _mark(
        self, topic: Topic, segment: Segment, number: int, flags: bytearray, known: tuple[int, int] | None
    ) -> None:
        gone = flags.count(DELETED)
        rows = len(flags)
        if known is not None and known[0] == rows:
            flags[:] = DELETED_BYTE * rows
            dead = Dead(flags, segment.index.payload(number))
        elif not gone:
            return
        elif gone == rows:
            dead = Dead(flags, segment.index.payload(number))
        elif known is not None and known[0] == gone:
            dead = Dead(flags, known[1])
        else:
            weights = self._weights(topic, segment, number)
            if weights is None:
                return
            lost = sum(weights[row + 1] - weights[row] for row in range(rows) if flags[row] == DELETED)
            dead = Dead(flags, lost)
        segment.dead[number] = dead
        topic.forget_rows(segment, dead.count, dead.payload)

    def _weights(self, topic: Topic, segment: Segment, number: int) -> "list[int] | None":
        """Return running payload totals of a block with unknown flags; None when it is damaged."""
        try:
            if segment.cold:
                assert self._cold is not None
                block = self._cold.read_block(topic.id, segment.first_seq, segment.index, number)
            else:
                block = self._store.read_block(topic.id, segment.first_seq, segment.index, number)
        except BlockDamagedError:
            return None
        return list(block.weights(0, block.count))

    def _open(self, topic: Topic, state: SegmentState) -> Segment | None:
        """Return the segment on disk, hot before cold, or None when it is damaged. Raises OSError."""
        segment = Segment(state.first_seq, begun_ms=state.begun_ms)
        segment.named = True
        cold = False
        if state.cells is not None:
            index: BlockIndex | None = BlockIndex(array("Q", state.cells))
        else:
            index = None
            if not state.cold:
                index = self._store.read_index(topic.id, state.first_seq)
                if index is None:
                    index = self._store.scan_index(topic.id, state.first_seq, state.end_seq)
            if index is None:
                self._check_cold(topic, state)
            if index is None:
                index = self._cold_index(topic, state)
                cold = index is not None
        if index is None or not len(index) or index.end_seq(len(index) - 1) != state.end_seq:
            return None
        if state.cells is None:
            segment.restore(cold=cold)
        segment.index = index
        blocks = len(index)
        offset, length = index.place(blocks - 1)
        segment.data_bytes = offset + length
        segment.written_blocks = segment.durable_blocks = blocks
        segment.live = sum(index.count(number) for number in range(blocks))
        if not segment.cold and not self._store.holds(topic.id, state.first_seq, segment.data_bytes):
            if not self._store.holds(topic.id, state.first_seq, 0):
                raise FileNotFoundError(ENOENT, "the segment file is missing")
            return None
        return segment

    def _cold_index(self, topic: Topic, state: SegmentState) -> BlockIndex | None:
        """Return the index of a segment without an intact hot copy; None when its files are damaged.

        Raises OSError if no file of it exists, or if that cannot be determined.
        """
        damaged = not state.cold and self._store.holds(topic.id, state.first_seq, 0)
        if self._cold is None:
            if damaged:
                return None
            raise FileNotFoundError(ENOENT, "the segment file is missing")
        try:
            return self._cold.read_index(topic.id, state.first_seq)
        except FileNotFoundError:
            if damaged:
                return None
            raise

    def _check_cold(self, topic: Topic, state: SegmentState) -> None:
        """Refuse the start if the segment is in a cold tier that is not mounted or not set, because it is not lost.

        A segment may have moved to the cold tier after its state was captured.
        """
        if self._cold is None:
            if state.cold:
                raise UnrecoverableError(
                    f"segments of topic {topic.name!r} are in the cold tier, and no cold directory is set;"
                    " set the one that this server used before"
                )
        elif not self._cold.is_there() and (state.cold or not self._store.holds(topic.id, state.first_seq, 0)):
            raise UnrecoverableError(
                f"segments of topic {topic.name!r} are in the cold tier, and {self._cold.path} is empty or not there;"
                " mount or set the cold directory that this server used before"
            )

    def _flags(self, topic: Topic, segment: Segment) -> list[bytes]:
        if segment.cold:
            assert self._cold is not None
            return self._cold.read_flags(topic.id, segment.first_seq, segment.index)
        return self._store.read_flags(topic.id, segment.first_seq, segment.index)


def decode_topic(content: bytes) -> TopicCheckpoint:
    """Decode a topic of a checkpoint. Raises DecodeError for one of a newer version."""
    check_stored_config(content)
    return _decoder.decode(content)
