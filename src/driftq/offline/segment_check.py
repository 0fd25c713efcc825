"""Verifies one segment, hot or cold: every byte of its files, and that the files agree with each other.

A hot segment is read block by block; only one block and the tags of all blocks are in memory. A cold segment is read by
row groups. No checksum covers delete flags, so their number is compared with the checkpoint's number of deleted rows.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from driftq.engine.files.topic_checkpoint import SegmentState
from driftq.errors import NewerFormatError
from driftq.offline.findings import Finding, Tell, Verdict
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.blocks.frame import HEAD_BYTES, Bad, Kind, NewerVersion, read_frame
from driftq.storage.layout import Layout
from driftq.storage.segments.block_index import BlockIndex, decode_index
from driftq.storage.segments.cold_file import DEL_HEADER_BYTES, ColdDamagedError, ColdFile
from driftq.storage.segments.tag_index import TagIndex, tag_rows
from driftq.system.disk import File, read_file

_LENGTH_BYTES = 8
_PARQUET_MAGIC = b"PAR1"
_KNOWN_FLAGS = bytes([0, DELETED])


class FlaggedRows(NamedTuple):
    """Consecutive rows and their flags as they are on disk."""

    first_seq: int
    flags: bytes


class FrameSpan(NamedTuple):
    """A frame of a `.data` file and its position."""

    offset: int
    length: int
    block: Block


def walk_data(file: File, topic_id: int, start: int, end: int) -> Iterator[FrameSpan | tuple[int, str]]:
    """Yield consecutive frames from `start`; at the first invalid one, yield its offset and the reason, and stop."""
    while start < end:
        head = file.pread(HEAD_BYTES, start)
        length = _LENGTH_BYTES + int.from_bytes(head[4:8], "little")
        found = read_block(file, topic_id, start, min(length, end - start))
        if isinstance(found, str):
            yield start, found
            return
        yield FrameSpan(start, length, found)
        start += length


def read_block(file: File, topic_id: int, offset: int, length: int) -> Block | str:
    """Return one block of a topic, or the reason why it is not valid."""
    content = file.pread(length, offset)
    header = read_frame(content, 0, len(content))
    if isinstance(header, NewerVersion):
        return f"its format version is {header.version}"
    if isinstance(header, Bad):
        return header.why
    if header.kind != Kind.APPEND or header.topic_id != topic_id:
        return "it is not a block of this topic"
    block = Block.read(content, header)
    return block.why if isinstance(block, Bad) else block


class _Tagged(NamedTuple):
    """The tags of a block, by row numbers of its segment."""

    first_seq: int
    last_seq: int
    tags: list[tuple[bytes, int]]


class HotCheck:
    """Verifies the files of one hot segment."""

    def __init__(
        self,
        layout: Layout,
        topic_id: int,
        first_seq: int,
        suffixes: set[str],
        state: SegmentState | None,
        earliest: int,
        tell: Tell,
    ) -> None:
        self._layout = layout
        self._topic_id = topic_id
        self._first_seq = first_seq
        self._suffixes = suffixes
        self._state = None if state is None or state.cold else state
        self._earliest = earliest
        self._tell = tell
        self._named = self._state is not None
        self._tagged: list[_Tagged] = []
        self._complete = True
        """Whether all blocks were valid so far."""
        self.path = self._path("data")
        self.rows: list[FlaggedRows] = []
        self.blocks = 0
        self.records = 0

    def _path(self, suffix: str) -> str:
        return self._layout.segment_path(self._topic_id, self._first_seq, suffix)

    def _finding(self, suffix: str, verdict: Verdict, what: str, **place: int) -> Finding:
        crash = bool(place.pop("crash", 0))
        return Finding(self._path(suffix), verdict, what, topic_id=self._topic_id, crash=crash, **place)

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong with the files."""
        if "data" not in self._suffixes:
            if self._named:
                yield self._finding("data", Verdict.MISSING, "the checkpoint refers to it", **self._all_seqs())
            for suffix in sorted(self._suffixes):
                yield self._finding(suffix, Verdict.STRAY, "it does not belong to any segment", crash=1)
            return
        index, active = None, self._state is not None and self._state.cells is not None
        if active:
            assert self._state is not None
            index = index_of_cells(self._state.cells or b"")
        elif "idx" in self._suffixes:
            index = decode_index(read_file(self._layout.disk, self._path("idx")))
            self._tell(0 if index is None else 16 + 8 * len(index.cells))
            if index is None:
                yield self._finding("idx", Verdict.DAMAGE, "the index is not valid")
        elif self._named:
            yield self._finding("idx", Verdict.MISSING, "the segment is sealed, but its index is missing")
        yield from self._check_data(index, active=active)
        if not active and ("idx" in self._suffixes or self._named):
            yield from self._check_tags()
        if self._state is not None and self.rows:
            yield from self._check_extent(self._state)

    def _all_seqs(self) -> dict[str, int]:
        if self._state is None:
            return {}
        return {"first_seq": self._state.first_seq, "last_seq": self._state.end_seq - 1}

    def _check_data(self, index: BlockIndex | None, *, active: bool) -> Iterator[Finding]:
        file = self._layout.disk.open(self._path("data"))
        try:
            size = file.size()
            end = 0
            if index is not None:
                for number in range(len(index)):
                    yield from self._check_block(file, index, number)
                end = sum(index.place(len(index) - 1)) if len(index) else 0
            if end < size and (index is None or active):
                yield from self._check_rest(file, end, size, unsure=active or not self._named)
            elif end < size:
                yield self._finding("data", Verdict.DAMAGE, f"{size - end} bytes follow the last block")
        finally:
            file.close()

    def _check_block(self, file: File, index: BlockIndex, number: int) -> Iterator[Finding]:
        offset, length = index.place(number)
        first, last = index.first_seq(number), index.end_seq(number) - 1
        block = read_block(file, self._topic_id, offset, length)
        self._tell(length)
        why = block if isinstance(block, str) else _contradiction(block, length, index, number)
        if why is not None:
            self._complete = False
            yield self._finding("data", Verdict.DAMAGE, why, offset=offset, first_seq=first, last_seq=last)
        if isinstance(block, Block):
            yield from self._take(block, offset)

    def _take(self, block: Block, offset: int) -> Iterator[Finding]:
        """Count a valid block and check its flags."""
        self.blocks += 1
        self.records += block.count
        self.rows.append(FlaggedRows(block.first_seq, block.flags))
        self._tagged.append(_Tagged(block.first_seq, block.last_seq, list(tag_rows([block], self._first_seq))))
        if block.flags.translate(None, _KNOWN_FLAGS):
            what = "a delete flag is neither set nor clear"
            place = offset + len(block.frame) - block.count
            yield self._finding(
                "data", Verdict.DAMAGE, what, offset=place, first_seq=block.first_seq, last_seq=block.last_seq
            )

    def _check_rest(self, file: File, start: int, end: int, *, unsure: bool) -> Iterator[Finding]:
        """Check blocks that no index lists. If `unsure`, the log has them too: an invalid end is torn, not damage."""
        for met in walk_data(file, self._topic_id, start, end):
            if isinstance(met, FrameSpan):
                self._tell(met.length)
                if unsure and self._named:
                    continue
                yield from self._take(met.block, met.offset)
            else:
                offset, why = met
                self._complete = False
                verdict = Verdict.TORN if unsure else Verdict.DAMAGE
                yield self._finding("data", verdict, why, offset=offset, crash=int(unsure))

    def _check_tags(self) -> Iterator[Finding]:
        if "tags" not in self._suffixes:
            yield self._finding("tags", Verdict.MISSING, "a sealed segment has a tag index; it can be rebuilt", crash=1)
            return
        content = read_file(self._layout.disk, self._path("tags"))
        self._tell(len(content))
        index = TagIndex.decode(content)
        if index is None or content[4:8] != bytes(4):
            what = "the tag index is not valid; it can be rebuilt"
            yield self._finding("tags", Verdict.DAMAGE, what, crash=1)
        elif self._complete and not self._is_of(index, content):
            what = "the tag index does not match the records; it can be rebuilt"
            yield self._finding("tags", Verdict.DAMAGE, what)

    def _is_of(self, index: TagIndex, content: bytes) -> bool:
        """Whether the tag index matches the blocks; it may omit blocks that had no live record when it was built."""
        rows = frozenset(index.prefix(b"").rows)
        there = [block for block in self._tagged if any(row in rows for _, row in block.tags)]
        if TagIndex.build(chain.from_iterable(block.tags for block in there)).encode() != content:
            return False
        if self._state is None:
            return True
        dead = {first for first, count, gone, _ in self._state.dead if gone == count}
        dead.update(block.first_seq for block in there)
        left = [block for block in self._tagged if block.tags and block.first_seq not in dead]
        return all(block.last_seq < self._earliest for block in left)

    def _check_extent(self, state: SegmentState) -> Iterator[Finding]:
        last = self.rows[-1]
        if last.first_seq + len(last.flags) != state.end_seq or self.rows[0].first_seq != state.first_seq:
            what = "its seqs differ from those in the checkpoint"
            yield self._finding("data", Verdict.DAMAGE, what, **self._all_seqs())


def index_of_cells(cells: bytes) -> BlockIndex:
    """Return the index of an active segment from its form in a checkpoint."""
    return BlockIndex(array("Q", cells))


def _contradiction(block: Block, length: int, index: BlockIndex, number: int) -> str | None:
    """Return how the block differs from its index entry; None if it does not."""
    said = (index.first_seq(number), index.count(number), index.first_ts(number), index.last_ts(number))
    if (block.first_seq, block.count, block.ts, block.last_ts) != said or len(block.frame) != length:
        return "the block does not match its index entry"
    return None if block.payload_bytes == index.payload(number) else "the payload size does not match the index"


class ColdCheck:
    """Verifies the files of one cold segment."""

    def __init__(
        self, layout: Layout, topic_id: int, first_seq: int, suffixes: set[str], *, named: bool, tell: Tell
    ) -> None:
        self._layout = layout
        self._topic_id = topic_id
        self._suffixes = suffixes
        self._named = named
        self._tell = tell
        self._parquet = self.path = layout.segment_path(topic_id, first_seq, "parquet")
        self._del = layout.segment_path(topic_id, first_seq, "del")
        self.rows: list[FlaggedRows] = []
        self.blocks = 0
        self.records = 0

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong with the files."""
        for suffix, path in (("parquet", self._parquet), ("del", self._del)):
            if suffix not in self._suffixes:
                verdict = Verdict.MISSING if self._named else Verdict.STRAY
                what = "a cold segment has two files, and this one is missing"
                yield Finding(path, verdict, what, topic_id=self._topic_id, crash=not self._named)
                return
        disk = self._layout.disk
        flags = read_file(disk, self._del)
        self._tell(len(flags))
        try:
            opened = ColdFile.open(disk, self._parquet, flags)
        except (ColdDamagedError, NewerFormatError) as error:
            yield self._damage(self._parquet, str(error))
            return
        if opened is None:
            yield self._damage(self._del, "it is not valid, or belongs to another Parquet file")
            return
        yield from self._check_frame(opened)
        if opened.flags().translate(None, _KNOWN_FLAGS):
            yield self._damage(self._del, "a delete flag is neither set nor clear", offset=DEL_HEADER_BYTES)
        row = 0
        for number, group in enumerate(opened.groups):
            self.rows.append(FlaggedRows(group.first_seq, opened.flags()[row : row + group.count]))
            row += group.count
            yield from self._check_group(opened, number)

    def _damage(self, path: str, what: str, offset: int | None = None) -> Finding:
        return Finding(path, Verdict.DAMAGE, what, offset, self._topic_id)

    def _check_frame(self, opened: ColdFile) -> Iterator[Finding]:
        """Check the bytes that no checksum covers: the magic at the start, and that no bytes are between row groups."""
        file = self._layout.disk.open(self._parquet)
        try:
            magic, size = file.pread(4, 0), file.size()
            tail = file.pread(8, size - 8)
        finally:
            file.close()
        self._tell(size - sum(group.end - group.start for group in opened.groups))
        if magic != _PARQUET_MAGIC:
            yield self._damage(self._parquet, "the file does not start like a Parquet file", offset=0)
        if opened.topic_id != self._topic_id:
            yield self._damage(self._parquet, f"it is a segment of topic {opened.topic_id}")
        ends = [4, *(group.end for group in opened.groups)]
        starts = [*(group.start for group in opened.groups), size - 8 - int.from_bytes(tail[:4], "little")]
        if ends != starts:
            yield self._damage(self._parquet, "there are bytes between its row groups")

    def _check_group(self, opened: ColdFile, number: int) -> Iterator[Finding]:
        group = opened.groups[number]
        self._tell(group.end - group.start)
        try:
            block = opened.read_group(number)
        except ColdDamagedError as error:
            last = group.first_seq + group.count - 1
            place = (group.start, self._topic_id, group.first_seq, last)
            yield Finding(self._parquet, Verdict.DAMAGE, str(error), *place)
            return
        self.blocks += 1
        self.records += block.count


def gone_rows(rows: Sequence[FlaggedRows], state: SegmentState, earliest: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield where flags and checkpoint disagree: first seq, last seq, rows gone by flags, rows gone by checkpoint.

    Compared block by block, or in total if the segment has moved to the cold tier since, because its blocks differ
    then. Retention removes whole blocks without flags; for these the checkpoint decides.
    """
    said = {(first, count): gone for first, count, gone, _ in state.dead}
    taken = {first + row for (first, count), gone in said.items() if gone == count for row in range(count)}
    taken.update(state.flips)
    found = {(first, len(flags)): _gone(first, flags, taken, earliest) for first, flags in rows}
    if said.keys() <= found.keys():
        for (first, count), gone in found.items():
            if gone != said.get((first, count), 0):
                yield first, first + count - 1, gone, said.get((first, count), 0)
    elif sum(found.values()) != sum(said.values()):
        yield state.first_seq, state.end_seq - 1, sum(found.values()), sum(said.values())


def _gone(first: int, flags: bytes, taken: set[int], earliest: int) -> int:
    end = first + len(flags)
    gone = {first + row for row, flag in enumerate(flags) if flag == DELETED} if DELETED in flags else set()
    gone.update(range(first, min(earliest, end)))
    if taken:
        gone.update(taken.intersection(range(first, end)))
    return len(gone)
