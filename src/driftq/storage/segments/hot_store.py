"""The files of hot segments: write blocks, seal, read a block, set delete flags, remove. Most calls block.

A segment is a pair of files: `.data`, with frames back to back, is durable before `.idx` is. One file without the other
is not a segment. `.tags` can always be made again from `.data`. Sealed data never changes, except for its delete flags
(http-v0 §19.6).
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.delete_flags import DELETED_BYTE
from driftq.storage.blocks.frame import Frame, Kind, read_frame
from driftq.storage.layout import Layout
from driftq.storage.no_space import is_no_space
from driftq.storage.segments.block_index import BlockIndex, decode_index, encode_index
from driftq.storage.segments.tag_index import TagIndex, tag_rows
from driftq.system.disk import File, Site, read_file, write_fully

_OPEN_FILES_MAX = 256


class BlockDamagedError(Exception):
    """A file exists and one of its frames is damaged: the only proof that records are lost.

    An `OSError` is never such a proof, whatever its errno: a missing file may be a missing mount, and EIO a path that
    fails over. The bytes that an `OSError` hides may be readable a moment later.
    """


class Seal(NamedTuple):
    """The index and tags that turn the data of a segment into a sealed segment."""

    topic_id: int
    first_seq: int
    index: BlockIndex  # type: ignore[assignment]  # hides tuple.index, which is not used
    tags: bytes


class SegmentStore:
    """All hot segments of a data directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._open: dict[tuple[int, int], File] = {}
        self._durable_dirs: set[int] = set()
        """Topics whose directory is known to be durable. Used only by the writing thread."""
        self._unsynced: set[tuple[int, int]] = set()
        """Segments whose data a sync failed to make durable. Read by any thread, like `_syncing`."""
        self._syncing: set[tuple[int, int]] = set()
        """Segments whose data is being synced."""

    def write(self, topic_id: int, first_seq: int, frames: Sequence[tuple[int, bytes]]) -> None:
        """Write frames, given with their offsets and back to back, to the file of the active segment."""
        file = self._open_for_writing(topic_id, first_seq, fresh=frames[0][0] == 0)
        try:
            write_fully(file, [frame for _, frame in frames], frames[0][0])
        except OSError as error:
            if is_no_space(error):
                with suppress(OSError):
                    file.truncate(frames[0][0])  # part of the frames is useless, and takes the last free space
            raise
        finally:
            file.close()

    def _open_for_writing(self, topic_id: int, first_seq: int, *, fresh: bool) -> File:
        path = self._layout.segment_path(topic_id, first_seq, "data")
        if not fresh:
            return self._disk.open(path)
        self._disk.mkdir(self._layout.topic_dir(topic_id, cold=False))
        if topic_id not in self._durable_dirs:
            # Also for an existing directory: the process that made it may have died or failed before the sync.
            self._disk.sync_dir(self._layout.topics_dir(cold=False), Site.SEGMENT_TOPIC_DIR)
            self._durable_dirs.add(topic_id)
        return self._disk.create(path)

    def sync_data(self, topic_id: int, sizes: Sequence[tuple[int, int]]) -> None:
        """Make the first bytes of segments durable, and their directory entries. `sizes` has (first seq, bytes) pairs.

        Raises OSError, or BlockDamagedError if an earlier sync failed and the frames cannot be read any more.
        """
        for first_seq, size in sizes:
            self._sync_data(topic_id, first_seq, size, check=True)
        self._disk.sync_dir(self._layout.topic_dir(topic_id, cold=False), Site.SEGMENT_DIR)

    def _sync_data(self, topic_id: int, first_seq: int, size: int, *, check: bool) -> None:
        """Sync the data of a segment. After a failed sync, write it again first: the kernel considers it clean."""
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
        """Sync a file of a segment, so that a failure is visible to other threads at every moment.

        The segment is marked as syncing before the call, and as unsynced before that mark is removed.
        """
        self._syncing.add(key)
        try:
            file.sync(site)
        except OSError:
            self._unsynced.add(key)
            raise
        finally:
            self._syncing.discard(key)

    def doubt(self, topic_id: int, first_seq: int) -> None:
        """Note that another process may have failed to sync the data of this segment."""
        self._unsynced.add((topic_id, first_seq))

    def is_doubtful(self, topic_id: int, first_seq: int) -> bool:
        """Whether a sync of the data has failed. The data may then be lost from memory without being on the device."""
        return (topic_id, first_seq) in self._unsynced

    def may_be_doubtful(self, topic_id: int, first_seq: int) -> bool:
        """Whether a sync of the data has failed, or one that is in progress may fail."""
        key = (topic_id, first_seq)
        return key in self._syncing or key in self._unsynced  # in this order: a failure is noted before the sync ends

    def seal(self, seals: Sequence[Seal]) -> None:
        """Make the data durable, then `.idx`: from here on, each pair is a segment.

        If a segment `is_doubtful`, the caller has just read the blocks that matter, so they are not checked here again.
        """
        for seal in seals:
            self._sync_data(seal.topic_id, seal.first_seq, sum(seal.index.place(len(seal.index) - 1)), check=False)
        for seal in seals:
            # `.tags` is removed and made as a new file, because no sync protects it: after a crash that took some
            # records, the tags of an earlier seal could reappear in an overwritten file.
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
        """Write `.idx` and `.tags` of a sealed segment again if they are missing or damaged.

        Raises OSError and BlockDamagedError. `.data` is never changed, but either of the two files may be missing then.
        """
        if self.read_index(topic_id, first_seq) is None:
            self._replace(topic_id, first_seq, "idx", encode_index(index))
        content = self.read_tags(topic_id, first_seq)
        if content is None or TagIndex.decode(content) is None:
            blocks = (self.read_block(topic_id, first_seq, index, number) for number in range(len(index)))
            self._replace(topic_id, first_seq, "tags", TagIndex.build(tag_rows(blocks, first_seq)).encode())

    def cut(self, topic_id: int, first_seq: int, size: int) -> None:
        """Remove what the previous run left of an unsealed segment after its first `size` bytes.

        Its records come again from the log, perhaps in other blocks. The next seal replaces an old `.idx`.
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
                write_fully(file, [DELETED_BYTE], place)
            # If the sync fails, the next attempt writes the flags again, but not the blocks at the end of an active
            # segment. So the failure is noted for the segment.
            self._sync(file, (topic_id, first_seq), Site.SEGMENT_FLAG)
        finally:
            file.close()

    def drop(self, topic_id: int, first_seq: int) -> None:
        """Remove a segment, its index first: a crash in between leaves a file that is not a segment."""
        self._unsynced.discard((topic_id, first_seq))
        for suffix in ("idx", "tags", "data"):
            self._disk.unlink(self._layout.segment_path(topic_id, first_seq, suffix))

    def read_block(self, topic_id: int, first_seq: int, index: BlockIndex, block: int) -> Block:
        """Return one block, verified. May wait for the device. Raises OSError or BlockDamagedError."""
        offset, length = index.place(block)
        file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
        try:
            content = file.pread(length, offset)
        finally:
            file.close()
        return verified(content, index.first_seq(block), index.count(block))

    def read_block_nowait(self, topic_id: int, first_seq: int, index: BlockIndex, block: int) -> Block | None:
        """Return one block from memory, on the loop, or None if the read would have to wait."""
        offset, length = index.place(block)
        content = self._reader(topic_id, first_seq).pread_nowait(length, offset)
        return None if content is None else verified(content, index.first_seq(block), index.count(block))

    def _reader(self, topic_id: int, first_seq: int) -> File:
        """Return a cached file handle. Only the loop reads through it and closes it."""
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
        """Close the cached handle of a segment that is being removed. Runs on the loop."""
        file = self._open.pop((topic_id, first_seq), None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all cached file handles."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read_index(self, topic_id: int, first_seq: int) -> BlockIndex | None:
        """Return the index of a sealed pair, or None if a file is missing or the index is damaged."""
        paths = [self._layout.segment_path(topic_id, first_seq, suffix) for suffix in ("data", "idx")]
        if not all(map(self._disk.exists, paths)):
            return None
        return decode_index(read_file(self._disk, paths[1]))

    def scan_index(self, topic_id: int, first_seq: int, end_seq: int) -> BlockIndex | None:
        """Return an index made from the data, or None if a frame below `end_seq` is damaged or the file is missing.

        Raises OSError if the file cannot be read.
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
        """Whether there is a data file of at least this size. Raises OSError if that cannot be determined."""
        try:
            file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "data"))
        except FileNotFoundError:
            return False
        try:
            return file.size() >= size
        finally:
            file.close()

    def read_tags(self, topic_id: int, first_seq: int) -> bytes | None:
        """Return the content of `.tags`, or None if it cannot be read."""
        try:
            return read_file(self._disk, self._layout.segment_path(topic_id, first_seq, "tags"))
        except OSError:
            return None

    def read_flags(self, topic_id: int, first_seq: int, index: BlockIndex) -> list[bytes]:
        """Return the delete flags of every block as they are in the file, with one short read per block."""
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
    """Raise BlockDamagedError unless `content` has `size` bytes of valid frames, back to back."""
    place = 0
    while place < size:
        header = read_frame(content, place, len(content))
        if not isinstance(header, Frame) or not isinstance(Block.read(content, header), Block):
            raise BlockDamagedError(f"after a failed sync there is no valid frame at byte {place}")
        place = header.end


def verified(content: bytes, first_seq: int, count: int) -> Block:
    """Return the block of a frame that is valid and is the one that its index describes. Raises BlockDamagedError."""
    header = read_frame(content, 0, len(content))
    if not isinstance(header, Frame):
        why = getattr(header, "why", "it has another version")
        raise BlockDamagedError(f"the block of seqs {first_seq}..{first_seq + count - 1} is damaged: {why}")
    if header.kind != Kind.APPEND or header.seq != first_seq or header.count != count:
        raise BlockDamagedError(
            f"the block of seqs {first_seq}..{first_seq + count - 1} is not the one that the index lists"
        )
    block = Block.read(content, header)
    if not isinstance(block, Block):
        raise BlockDamagedError(f"the block of seqs {first_seq}..{first_seq + count - 1} is damaged: {block.why}")
    return block
