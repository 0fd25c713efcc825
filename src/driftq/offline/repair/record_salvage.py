"""Finds the records of wanted seqs in everything that is still readable in a damaged directory.

Sources, in order of trust: hot and cold segments, which know what was deleted; blocks that checkpoints copied; the
log, including the parts before its checkpoint and after damage. Every block is checked by its own checksums, so
damage around it does not matter. If several sources hold a seq, the first one counts.

Invariant: a row that any readable source marks as deleted is not restored.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import DecodeError

from driftq.engine.state.control_frames import COMMIT, CommitBody, DeleteFrame, TopicFrame, decode_body
from driftq.errors import NewerFormatError
from driftq.offline.repair.checkpoint_frames import checkpoint_frames, frames_by_magic
from driftq.offline.repair.seq_ranges import Range, within, without
from driftq.offline.wal_check import read_heads, sound_frames
from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.blocks.frame import Frame, Kind, control_body
from driftq.storage.blocks.frame_columns import WRITER
from driftq.storage.blocks.rows import Rows, Texts
from driftq.storage.layout import Layout
from driftq.storage.segments.cold_file import ColdDamagedError, ColdFile
from driftq.system.disk import Disk, read_file


class LogNotes(NamedTuple):
    """What the control frames of the log contain about each topic, by topic id."""

    deletes: dict[int, list[DeleteFrame]]
    commits: dict[int, list[Range]]
    created: dict[int, TopicFrame]
    dropped: set[int]
    first_seqs: dict[int, int]
    """Lowest seq of all Append frames, by topic id."""
    last_seqs: dict[int, int]


def read_notes(layouts: Sequence[Layout]) -> LogNotes:
    """Read the whole logs once and collect the notes."""
    notes = LogNotes({}, {}, {}, set(), {}, {})
    files = [(layout, number, name) for layout in layouts for number, name in layout.wal_files()]
    heads = {layout.data: read_heads(layout)[0] for layout in layouts}
    for layout, number, name in files:
        content = read_file(layout.disk, layout.wal_path(name, number))
        for frame in sound_frames(content, number, name, heads[layout.data]):
            if frame.kind == Kind.APPEND:
                first = notes.first_seqs.setdefault(frame.topic_id, frame.seq)
                notes.first_seqs[frame.topic_id] = min(first, frame.seq)
                last = frame.seq + frame.count - 1
                if not frame.bits & WRITER:
                    notes.last_seqs[frame.topic_id] = max(last, notes.last_seqs.get(frame.topic_id, 0))
            else:
                _note(notes, frame, control_body(content, frame))
    return notes


def _note(notes: LogNotes, frame: Frame, body: bytes) -> None:
    try:
        if frame.kind == Kind.DELETE:
            notes.deletes.setdefault(frame.topic_id, []).append(decode_body(DeleteFrame, body))
        elif frame.kind == COMMIT:
            commit = decode_body(CommitBody, body)
            notes.commits.setdefault(frame.topic_id, []).append((commit.first, commit.last))
            notes.last_seqs[frame.topic_id] = max(commit.last, notes.last_seqs.get(frame.topic_id, 0))
        elif frame.kind == Kind.TOPIC:
            notes.created[frame.topic_id] = decode_body(TopicFrame, body)
        elif frame.kind == Kind.TOPIC_DELETE:
            notes.dropped.add(frame.topic_id)
    except DecodeError:
        return  # written by a newer version, which the start reports


class Salvage:
    """The wanted seqs of one topic, and the blocks found for them."""

    def __init__(self, topic_id: int, wanted: list[Range], notes: LogNotes, flips: set[int]) -> None:
        self._topic_id = topic_id
        self._notes = notes
        self._flips = flips
        self.wanted = wanted
        """Seqs that are not found yet."""
        self.found: list[Block] = []
        """Blocks with live and deleted rows; all their seqs were wanted."""

    def from_segments(self, layout: Layout) -> None:
        """Search the segments of a directory, hot ones first."""
        for first_seq, suffixes in sorted(layout.segment_files(self._topic_id, cold=False).items()):
            if self.wanted and "data" in suffixes:
                self.take(hot_blocks(layout, self._topic_id, first_seq))
        for first_seq, suffixes in sorted(layout.segment_files(self._topic_id, cold=True).items()):
            if self.wanted and "parquet" in suffixes:
                self.take(cold_blocks(layout, self._topic_id, first_seq))

    def from_checkpoints(self, layout: Layout) -> None:
        """Search the blocks that checkpoints copied, even damaged checkpoints: the blocks have their own checksums."""
        for number in reversed(layout.snapshots()):
            if self.wanted:
                content = read_file(layout.disk, layout.snapshot_path(number))
                for held, frame in checkpoint_frames(content):
                    self.take(self._blocks(held, iter((frame,)), logged=False))

    def from_log(self, layout: Layout) -> None:
        """Search the frames of the whole log."""
        heads, _ = read_heads(layout)
        for number, name in layout.wal_files():
            if self.wanted:
                content = read_file(layout.disk, layout.wal_path(name, number))
                self.take(self._blocks(content, sound_frames(content, number, name, heads), logged=True))

    def _blocks(self, content: bytes, frames: Iterator[Frame], *, logged: bool) -> Iterator[Block]:
        for frame in frames:
            if frame.kind != Kind.APPEND or frame.topic_id != self._topic_id:
                continue
            if not within(self.wanted, frame.seq, frame.seq + frame.count - 1):
                continue
            if frame.bits & WRITER and not self._committed(frame):
                continue
            block = Block.read(content, frame)
            if isinstance(block, Block):
                yield block.without_flags() if logged else block

    def _committed(self, frame: Frame) -> bool:
        commits = self._notes.commits.get(self._topic_id, [])
        return any(first <= frame.seq and frame.seq + frame.count - 1 <= last for first, last in commits)

    def take(self, blocks: Iterator[Block]) -> None:
        """Keep those rows of the blocks that are wanted and not found yet."""
        for block in blocks:
            for first, last in within(self.wanted, block.first_seq, block.last_seq):
                self.found.append(self._marked(piece(block, self._topic_id, first, last)))
                self.wanted = without(self.wanted, first, last)

    def _marked(self, block: Block) -> Block:
        """Return the block with all known deletes set in its flags."""
        flags = bytearray(block.flags)
        tags = block.tags(0, block.count)
        for row in range(block.count):
            tag = None if tags is None else tags[row]
            if block.first_seq + row in self._flips or self._deleted(block.first_seq + row, tag):
                flags[row] = DELETED
        return Block.of(block.frame[: len(block.frame) - block.count] + bytes(flags))

    def _deleted(self, seq: int, tag: bytes | None) -> bool:
        return any(_selects(delete, seq, tag) for delete in self._notes.deletes.get(self._topic_id, ()))


def _selects(delete: DeleteFrame, seq: int, tag: bytes | None) -> bool:
    if seq >= delete.bound or (delete.before is not None and seq >= delete.before):
        return False
    if delete.seqs is not None:
        return seq in delete.seqs
    if delete.tag is not None:
        return tag == delete.tag
    if delete.prefix is not None:
        return tag is not None and tag.startswith(delete.prefix)
    return delete.before is not None


def hot_blocks(layout: Layout, topic_id: int, first_seq: int) -> Iterator[Block]:
    """Yield every valid block of a `.data` file, even between damaged bytes."""
    content = _read(layout.disk, layout.segment_path(topic_id, first_seq, "data"))
    for frame in frames_by_magic(content):
        if frame.kind == Kind.APPEND and frame.topic_id == topic_id:
            block = Block.read(content, frame)
            if isinstance(block, Block):
                yield block


def cold_blocks(layout: Layout, topic_id: int, first_seq: int) -> Iterator[Block]:
    """Yield every valid row group of a `.parquet` file, even if its `.del` file is damaged or under another name."""
    path = layout.segment_path(topic_id, first_seq, "parquet")
    flags = _read(layout.disk, layout.segment_path(topic_id, first_seq, "del"))
    try:
        opened = ColdFile.open_alone(layout.disk, path, flags, _all_flags(layout))
    except (ColdDamagedError, NewerFormatError, OSError):
        return
    if opened.topic_id != topic_id:
        return
    for number in range(len(opened.groups)):
        try:
            yield opened.read_group(number)
        except (ColdDamagedError, OSError):
            continue


def _all_flags(layout: Layout) -> Iterator[bytes]:
    """Yield the contents of all `.del` files of a directory."""
    for topic_id in layout.topic_ids(cold=True):
        for first_seq, suffixes in sorted(layout.segment_files(topic_id, cold=True).items()):
            if "del" in suffixes:
                yield _read(layout.disk, layout.segment_path(topic_id, first_seq, "del"))


def _read(disk: Disk, path: str) -> bytes:
    """Return the file's bytes; empty if the disk cannot read it."""
    try:
        return read_file(disk, path)
    except OSError:
        return b""


def piece(block: Block, topic_id: int, first: int, last: int) -> Block:
    """Return some rows of a block as a new block, without the idempotency key or writer of the original write."""
    start, end = first - block.first_seq, last + 1 - block.first_seq
    times = block.times(start, end)
    tags, metas = block.tags(start, end), block.metas(start, end)
    nodes = block.nodes(start, end)
    rows = Rows(
        Texts.of(block.data(start, end)),
        tag=None if tags is None else Texts.of(tags),
        node=None if nodes is None else Texts.of(nodes),
        meta=None if metas is None else Texts.of(metas),
        batch_node=block.batch_node,
    )
    frame = encode_block(
        rows,
        topic_id=topic_id,
        first_seq=first,
        ts=times if isinstance(times, int) else times[0],
        times=None if isinstance(times, int) else array("q", times),
        flags=block.flags[start:end],
    )
    return Block.of(frame)
