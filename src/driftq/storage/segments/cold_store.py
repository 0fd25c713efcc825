"""The files of cold segments, a Parquet file and its `.del` each. Like hot segments, they have blocks: the row groups.

In the index of a cold segment, the offset of a block is the number of its row group. Crash order of `write`: both files
are synced, then their directory. The caller removes the hot copy only after that, and while both copies exist the hot
one is used.

A wrong checksum is proof of damage only in a directory that carries the mark of this server (`storage.server_id`). In
any other directory, and after every failed call, the segment is unavailable: `OSError`.
"""

import errno
import threading
from collections.abc import Iterable, Sequence

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.delete_flags import DELETED_BYTE
from driftq.storage.layout import Layout
from driftq.storage.segments.block_index import BlockIndex
from driftq.storage.segments.cold_file import DEL_HEADER_BYTES, ColdDamagedError, ColdFile, encode_del, encode_parquet
from driftq.storage.segments.hot_store import BlockDamagedError
from driftq.storage.segments.tag_codes import TagCodes
from driftq.storage.server_id import carries_mark, mark_cold_tier
from driftq.system.disk import Site, read_file, write_fully

_OPENED_MAX = 64


class ColdStore:
    """All cold segments of a cold directory. Safe to call from any thread."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._opened: dict[tuple[int, int], ColdFile] = {}
        self._durable_dirs: set[int] = set()
        """Topics whose directory is known to be durable. Used only by the writing thread."""
        self._lock = threading.Lock()
        self._used = False
        """Whether the directory was read from or written to in this run."""

    @property
    def path(self) -> str:
        """Return the path of the cold directory."""
        assert self._layout.cold is not None
        return self._layout.cold

    def is_there(self) -> bool:
        """Whether a server has used this directory. False for an empty one, and for a mount point without its mount."""
        return self._layout.has_cold()

    def write(self, topic_id: int, first_seq: int, blocks: Sequence[Block], flags: bytes) -> BlockIndex:
        """Make a durable cold copy, and overwrite that of an earlier attempt. Returns its index."""
        self._claim_tier()
        parquet = encode_parquet(blocks, topic_id=topic_id)
        self._disk.mkdir(self._layout.topic_dir(topic_id, cold=True))
        if topic_id not in self._durable_dirs:
            # Also for an existing directory: the process that made it may have died or failed before the sync.
            self._disk.sync_dir(self._layout.topics_dir(cold=True), Site.COLD_TOPIC_DIR)
            self._durable_dirs.add(topic_id)
        contents = (("parquet", parquet, Site.COLD_PARQUET), ("del", encode_del(flags, parquet), Site.COLD_DEL))
        for suffix, content, site in contents:
            file = self._disk.create(self._layout.segment_path(topic_id, first_seq, suffix))
            try:
                write_fully(file, [content], 0)
                file.sync(site)
            finally:
                file.close()
        self._disk.sync_dir(self._layout.topic_dir(topic_id, cold=True), Site.COLD_DIR)
        self._forget(topic_id, first_seq)
        index = self.read_index(topic_id, first_seq)
        if index is None:
            raise OSError("a cold segment does not have the bytes that were written to it")
        return index

    def read_index(self, topic_id: int, first_seq: int) -> BlockIndex | None:
        """Return the index of a cold pair, or None if it is damaged. Raises OSError if it is unavailable."""
        try:
            opened = self._open(topic_id, first_seq)
        except BlockDamagedError:
            return None
        index = BlockIndex()
        for number, group in enumerate(opened.groups):
            index.add(
                first_seq=group.first_seq,
                count=group.count,
                offset=number,
                length=0,
                first_ts=group.first_ts,
                last_ts=group.last_ts,
                payload=group.payload_bytes,
            )
        return index

    def read_block(self, topic_id: int, first_seq: int, index: BlockIndex, block: int) -> Block:
        """Return the rows of one row group. Raises OSError or BlockDamagedError."""
        number, _ = index.place(block)
        try:
            return self._open(topic_id, first_seq).read_group(number)
        except ColdDamagedError as error:
            raise self._damaged(str(error)) from error

    def read_tags(self, topic_id: int, first_seq: int) -> list[TagCodes | None]:
        """Return the tags of each row group that has them in the footer. Raises OSError or BlockDamagedError."""
        return self._open(topic_id, first_seq).tag_codes()

    def read_flags(self, topic_id: int, first_seq: int, index: BlockIndex) -> list[bytes]:
        """Return the delete flags of every row group."""
        flags = self._open(topic_id, first_seq).flags()
        found = []
        start = 0
        for block in range(len(index)):
            end = start + index.count(block)
            found.append(flags[start:end])
            start = end
        return found

    def flip(self, topic_id: int, first_seq: int, rows: Iterable[int]) -> None:
        """Set delete flags, one byte each, and make them durable."""
        file = self._disk.open(self._layout.segment_path(topic_id, first_seq, "del"))
        try:
            for row in rows:
                write_fully(file, [DELETED_BYTE], DEL_HEADER_BYTES + row)
            file.sync(Site.COLD_FLAG)
        finally:
            file.close()
            self._forget(topic_id, first_seq)  # it was opened with the old flags

    def drop(self, topic_id: int, first_seq: int) -> None:
        """Remove a cold segment, its flags first: a crash in between leaves a file that is not a segment."""
        self._forget(topic_id, first_seq)
        for suffix in ("del", "parquet"):
            self._disk.unlink(self._layout.segment_path(topic_id, first_seq, suffix))

    def _open(self, topic_id: int, first_seq: int) -> ColdFile:
        key = (topic_id, first_seq)
        with self._lock:
            opened = self._opened.get(key)
        if opened is not None:
            return opened
        path = self._layout.segment_path(topic_id, first_seq, "parquet")
        flags = read_file(self._disk, self._layout.segment_path(topic_id, first_seq, "del"))
        try:
            opened = ColdFile.open(self._disk, path, flags)
        except ColdDamagedError as error:
            raise self._damaged(str(error)) from error
        if opened is None:
            raise self._damaged(f"{path} and its .del file do not belong together")
        self._used = True
        with self._lock:
            if len(self._opened) >= _OPENED_MAX:
                del self._opened[next(iter(self._opened))]
            self._opened[key] = opened
        return opened

    def _damaged(self, why: str) -> BlockDamagedError:
        """Return the error for damage. Raises OSError if this is not the cold directory of this server."""
        self._check_mark()
        return BlockDamagedError(why)

    def _claim_tier(self) -> None:
        """Mark a tier that has no segment yet. Raises OSError if a tier in use lost its mark: it is another file
        system."""
        if not self._used and not self._layout.topic_ids(cold=True):
            mark_cold_tier(self._layout)
        self._check_mark()
        self._used = True

    def _check_mark(self) -> None:
        if not carries_mark(self._layout):
            raise OSError(errno.ENODEV, f"{self.path} does not have the mark of this server, topics/.driftq.id")

    def _forget(self, topic_id: int, first_seq: int) -> None:
        with self._lock:
            self._opened.pop((topic_id, first_seq), None)
