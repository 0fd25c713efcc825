"""The files of hot segments: write blocks, seal, read a block, flip a flag, drop. Blocking calls, for threads and
starts.

A segment is a pair: `.data`, frames back to back, durable before `.idx` is; a lone part is no segment. `.tags` is an
aid that can always be made again. Sealed data never changes but for its delete flags (http-v0 §19.6).
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import DELETED, Frame, Kind, read_frame
from driftq.storage.layout import Layout
from driftq.storage.no_space import is_no_space
from driftq.storage.segments.block_index import BlockIndex, decode_index, encode_index
from driftq.storage.segments.tag_index import TagIndex, tag_rows
from driftq.system.disk import File, Site, read_file, write_fully

_FLAG = bytes([DELETED])
_OPEN_FILES_MAX = 256


class BlockDamagedError(Exception):
    """A file is there and a frame in it does not check out: the only proof that records are lost.

    An `OSError` is never one, whatever its errno: a missing file may be a missing mount, and EIO a path that fails
    over. What an `OSError` hides may be readable a moment later.
    """


class Seal(NamedTuple):
    """What makes a pair of the data of a segment."""

    topic_id: int
    first_seq: int
    index: BlockIndex  # type: ignore[assignment]  # hides tuple.index, which nobody asks a seal for
    tags: bytes


class SegmentStore:
    """All hot segments below a data directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._open: dict[tuple[int, int], File] = {}
        self._durable_dirs: set[int] = set()
        """Topics whose directory this process knows to be durable. Only the thread that writes uses it."""
        self._unsynced: set[tuple[int, int]] = set()
        """Segments whose data a sync failed to make durable. Looked at from anywhere, like the next."""
        self._syncing: set[tuple[int, int]] = set()
        """Those whose data is being synced."""

    def write(self, topic_id: int, first_seq: int, frames: Sequence[tuple[int, bytes]]) -> None:
        """Put frames, given with their offsets, one behind the other, into the active segment's file."""
        file = self._open_for_writing(topic_id, first_seq, fresh=frames[0][0] == 0)
        try:
            write_fully(file, [frame for _, frame in frames], frames[0][0])
        except OSError as error:
            if is_no_space(error):
                with suppress(OSError):
                    file.truncate(frames[0][0])  # a part of them is of no use, and takes the last space there is
            raise
        finally:
            file.close()

    def _open_for_writing(self, topic_id: int, first_seq: int, *, fresh: bool) -> File:
        path = self._layout.segment_path(topic_id, first_seq, "data")
        if not fresh:
            return self._disk.open(path)
        self._disk.mkdir(self._layout.topic_dir(topic_id, cold=False))
        if topic_id not in self._durable_dirs:
            # Not only when it is new: who made it may have died, or failed, before the sync.
            self._disk.sync_dir(self._layout.topics_dir(cold=False), Site.SEGMENT_TOPIC_DIR)
            self._durable_dirs.add(topic_id)
        return self._disk.create(path)

    def sync_data(self, topic_id: int, sizes: Sequence[tuple[int, int]]) -> None:
        """Make the frames in the first bytes of some segments durable, so many of each, and the files' own entries.

        Raises OSError, or BlockDamagedError where an earlier sync failed and the frames are not to be had any more.
        """
        for first_seq, size in sizes:
            self._sync_data(topic_id, first_seq, size, check=True)
        self._disk.sync_dir(self._layout.topic_dir(topic_id, cold=False), Site.SEGMENT_DIR)

    def _sync_data(self, topic_id: int, first_seq: int, size: int, *, check: bool) -> None:
        """A sync that makes up for one that failed: what that left counts as clean, and no sync would write it."""
        key = (topic_id, first_seq)
        file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
        try:
            if key in self._unsynced:
                content = file.pread(size, 0)
                if check:
                    _check_frames(content, size)
                write_fully(file, [content], 0)
            self._sync(file, key, Site.SEGMENT_DATA)
            self._unsynced.discard(key)
        finally:
            file.close()

    def _sync(self, file: File, key: tuple[int, int], site: Site) -> None:
        """There is no moment at which a sync has failed and nobody could know of it."""
        self._syncing.add(key)
        try:
            file.sync(site)
        except OSError:
            self._unsynced.add(key)
            raise
        finally:
            self._syncing.discard(key)

    def doubt(self, topic_id: int, first_seq: int) -> None:
        """Another process may have met a failed sync of its data."""
        self._unsynced.add((topic_id, first_seq))

    def is_doubtful(self, topic_id: int, first_seq: int) -> bool:
        """Has a sync of its data failed? What was written may then have left memory without reaching the device."""
        return (topic_id, first_seq) in self._unsynced

    def may_be_doubtful(self, topic_id: int, first_seq: int) -> bool:
        """Has one, or may one that is under way?"""
        key = (topic_id, first_seq)
        return key in self._syncing or key in self._unsynced  # in this order: a failure is noted before it is over

    def seal(self, seals: Sequence[Seal]) -> None:
        """Durable data, then a durable `.idx`: each pair is a segment from here on.

        Of one that `is_doubtful` the caller has just read the blocks that matter; they are not checked here again.
        """
        for seal in seals:
            self._sync_data(seal.topic_id, seal.first_seq, sum(seal.index.place(len(seal.index) - 1)), check=False)
        for seal in seals:
            # A file of its own, because no sync protects it: tags of an earlier seal, before a crash took some of those
            # records, could come back in the place of these.
            self._disk.unlink(self._layout.segment_path(seal.topic_id, seal.first_seq, "tags"))
            self._put(seal.topic_id, seal.first_seq, "tags", seal.tags).close()
            self._put(seal.topic_id, seal.first_seq, "idx", encode_index(seal.index)).close()
        for seal in seals:
            made = self._disk.open(self._layout.segment_path(seal.topic_id, seal.first_seq, "idx"))
            try:
                made.sync(Site.SEGMENT_IDX)
            finally:
                made.close()
        for topic_id in sorted({seal.topic_id for seal in seals}):
            self._disk.sync_dir(self._layout.topic_dir(topic_id, cold=False), Site.SEGMENT_DIR)

    def _put(self, topic_id: int, first_seq: int, suffix: str, content: bytes) -> File:
        file = self._disk.create(self._layout.segment_path(topic_id, first_seq, suffix))
        try:
            write_fully(file, [content], 0)
        except OSError:
            file.close()
            raise
        return file

    def mend(self, topic_id: int, first_seq: int, index: BlockIndex) -> None:
        """Write `.idx` and `.tags` of a sealed segment again, where they are missing or do not check out.

        Raises OSError and BlockDamagedError; then the files are as they were.
        """
        if self.read_index(topic_id, first_seq) is None:
            self._replace(topic_id, first_seq, "idx", encode_index(index))
        content = self.read_tags(topic_id, first_seq)
        if content is None or TagIndex.decode(content) is None:
            blocks = (self.read_block(topic_id, first_seq, index, number) for number in range(len(index)))
            self._replace(topic_id, first_seq, "tags", TagIndex.build(tag_rows(blocks, first_seq)).encode())

    def cut(self, topic_id: int, first_seq: int, size: int) -> None:
        """Remove what the run before left of a segment that is not sealed, behind its first `size` bytes.

        Its records come again from the log, in other blocks perhaps. The next seal replaces an old `.idx`.
        """
        for suffix in ("tags",) if size else ("idx", "tags", "data"):
            self._disk.unlink(self._layout.segment_path(topic_id, first_seq, suffix))
        if not size:
            return
        file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
        try:
            if file.size() > size:
                file.truncate(size)
        finally:
            file.close()

    def _replace(self, topic_id: int, first_seq: int, suffix: str, content: bytes) -> None:
        self._disk.unlink(self._layout.segment_path(topic_id, first_seq, suffix))
        self._put(topic_id, first_seq, suffix, content).close()

    def flip(self, topic_id: int, first_seq: int, places: Iterable[int]) -> None:
        """Set delete flags, one byte each, and make them durable."""
        file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
        try:
            for place in places:
                write_fully(file, [_FLAG], place)
            # Where it fails the flags are written again by whoever tries again; blocks at the end of an active segment
            # would not be.
            self._sync(file, (topic_id, first_seq), Site.SEGMENT_FLAG)
        finally:
            file.close()

    def drop(self, topic_id: int, first_seq: int) -> None:
        """Remove a segment, its index first: what is left by a crash is a lone part."""
        self._unsynced.discard((topic_id, first_seq))
        for suffix in ("idx", "tags", "data"):
            self._disk.unlink(self._layout.segment_path(topic_id, first_seq, suffix))

    def read_block(self, topic_id: int, first_seq: int, index: BlockIndex, block: int) -> Block:
        """One block, verified. May wait for the device. Raises OSError or BlockDamagedError."""
        offset, length = index.place(block)
        file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
        try:
            content = file.pread(length, offset)
        finally:
            file.close()
        return verified(content, index.first_seq(block), index.count(block))

    def read_block_nowait(self, topic_id: int, first_seq: int, index: BlockIndex, block: int) -> Block | None:
        """The same from memory, on the loop: None when it would have to wait."""
        offset, length = index.place(block)
        content = self._reader(topic_id, first_seq).pread_nowait(length, offset)
        return None if content is None else verified(content, index.first_seq(block), index.count(block))

    def _reader(self, topic_id: int, first_seq: int) -> File:
        """A cached handle; only the loop reads through it, and only the loop closes it."""
        key = (topic_id, first_seq)
        file = self._open.pop(key, None)
        if file is None:
            file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
            if len(self._open) >= _OPEN_FILES_MAX:
                oldest = next(iter(self._open))
                self._open.pop(oldest).close()
        self._open[key] = file
        return file

    def forget(self, topic_id: int, first_seq: int) -> None:
        """Close the cached handle of a segment that goes away. On the loop."""
        file = self._open.pop((topic_id, first_seq), None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close every cached handle."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read_index(self, topic_id: int, first_seq: int) -> BlockIndex | None:
        """The index of a sealed pair, or None when it is no pair or its index is damaged."""
        paths = [self._layout.segment_path(topic_id, first_seq, suffix) for suffix in ("data", "idx")]
        if not all(map(self._disk.exists, paths)):
            return None
        return decode_index(read_file(self._disk, paths[1]))

    def scan_index(self, topic_id: int, first_seq: int, end_seq: int) -> BlockIndex | None:
        """Return the index made again from the data, or None when a frame below `end_seq` is not sound.

        None as well when there is no such file. Raises OSError when the file cannot be read.
        """
        try:
            content = read_file(self._disk, self._layout.segment_path(topic_id, first_seq, "data"))
        except FileNotFoundError:
            return None
        index = BlockIndex()
        place, seq = 0, first_seq
        while seq < end_seq:
            header = read_frame(content, place, len(content))
            if not isinstance(header, Frame) or header.kind != Kind.APPEND or header.seq < seq:
                return None
            block = Block.read(content, header)
            if not isinstance(block, Block):
                return None
            index.add(
                first_seq=block.first_seq,
                count=block.count,
                offset=place,
                length=header.end - place,
                first_ts=block.ts,
                last_ts=block.last_ts,
                payload=block.payload_bytes,
            )
            place, seq = header.end, block.last_seq + 1
        return index

    def holds(self, topic_id: int, first_seq: int, size: int) -> bool:
        """Is there a data file of at least this size? Raises OSError when nobody can tell."""
        try:
            file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
        except FileNotFoundError:
            return False
        try:
            return file.size() >= size
        finally:
            file.close()

    def read_tags(self, topic_id: int, first_seq: int) -> bytes | None:
        """The content of `.tags`, if it is there."""
        try:
            return read_file(self._disk, self._layout.segment_path(topic_id, first_seq, "tags"))
        except OSError:
            return None

    def read_flags(self, topic_id: int, first_seq: int, index: BlockIndex) -> list[bytes]:
        """The delete flags of every block as the file has them: one short read each."""
        file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
        try:
            found = []
            for block in range(len(index)):
                offset, length = index.place(block)
                count = index.count(block)
                found.append(file.pread(count, offset + length - count))
            return found
        finally:
            file.close()


def _check_frames(content: bytes, size: int) -> None:
    """Are these sound frames, back to back, and so many bytes of them?"""
    place = 0
    while place < size:
        header = read_frame(content, place, len(content))
        if not isinstance(header, Frame) or not isinstance(Block.read(content, header), Block):
            raise BlockDamagedError(f"behind a failed sync there is no sound frame at byte {place}")
        place = header.end


def verified(content: bytes, first_seq: int, count: int) -> Block:
    """The block of a frame that checks out and stands where its index says."""
    header = read_frame(content, 0, len(content))
    if not isinstance(header, Frame):
        why = getattr(header, "why", "it is of another version")
        raise BlockDamagedError(f"the block of seqs {first_seq}..{first_seq + count - 1} is damaged: {why}")
    if header.kind != Kind.APPEND or header.seq != first_seq or header.count != count:
        raise BlockDamagedError(f"the block of seqs {first_seq}..{first_seq + count - 1} holds something else")
    block = Block.read(content, header)
    if not isinstance(block, Block):
        raise BlockDamagedError(f"the block of seqs {first_seq}..{first_seq + count - 1} is damaged: {block.why}")
    return block
