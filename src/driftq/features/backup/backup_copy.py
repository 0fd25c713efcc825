"""The part of a backup that runs on a thread: copies pinned files into a directory with a manifest.

A `.data` file is stored in the pool with clear delete flags, and the flags in a file next to it. A delete therefore
does not cause a new copy of the segment. The name of a `.data` file in the pool comes from the checksums in its block
frames, so the copier need not read the whole file to find out whether the pool has it. The name of a `.parquet` file
comes from the checksum of its footer, which is in its `.del` file. Small files are named after their own checksum.
Every copied byte is included in a checksum, and every block is checked: a damaged block is copied as it is, and
reported. A `.data`, `.del` or `.parquet` file that is missing or cannot be read ends the backup with an error: a backup
without it would look complete. A segment without a valid `.idx` is left out, and reported as damaged.

Invariant: a file has its final name in the pool only when it is complete and synced.
"""

from array import array
from collections.abc import Callable, Iterator

from msgspec import Struct
from xxhash import xxh3_64, xxh3_64_hexdigest

from driftq import __version__
from driftq.engine.files.topic_checkpoint import SegmentState, TopicCheckpoint, decode_topic
from driftq.features.backup.backup_files import (
    FORMAT,
    SNAPSHOT,
    BackedTopic,
    BackupManifest,
    PoolFile,
    StoredFile,
    backup_dir,
    pool_path,
    put_file,
    read_manifests,
    write_manifest,
)
from driftq.storage.blocks.frame import HEAD_BYTES, Frame, read_frame
from driftq.storage.layout import Layout, make_directory, segment_file
from driftq.storage.segments.block_index import BlockIndex, decode_index
from driftq.storage.snapshot_file import Snapshot, encode_snapshot
from driftq.system.disk import Disk, File, Site, read_file, write_fully

_CHUNK = 1 << 20


class BackupFigures(Struct):
    """The progress of a backup. Only the thread writes it; any code may read it."""

    bytes: int = 0
    """The size of all files of the backup."""
    done_bytes: int = 0
    copied_bytes: int = 0
    """The size of the files that the pool did not have."""
    files: int = 0
    copied_files: int = 0


class CancelledError(Exception):
    """The backup was cancelled, because the server is about to stop."""


class Copying:
    """Copies the files of one captured state."""

    def __init__(
        self,
        layout: Layout,
        to: str,
        backup_id: str,
        server_id: str,
        taken_ts: int,
        snapshot: Snapshot,
        figures: BackupFigures,
        cancelled: Callable[[], bool],
    ) -> None:
        self._layout = layout
        self._disk: Disk = layout.disk
        self._to = to
        self._id = backup_id
        self._server_id = server_id
        self._taken_ts = taken_ts
        self._snapshot = snapshot
        self._figures = figures
        self._cancelled = cancelled
        self._known: dict[str, PoolFile] = {}
        self._damaged: list[str] = []

    def run(self) -> BackupManifest:
        """Copy all files and write the manifest. Raise OSError or CancelledError."""
        for directory in (f"{self._to}/pool", backup_dir(self._to, self._id)):
            make_directory(self._disk, directory)
        for manifest in read_manifests(self._disk, self._to):
            for stored in manifest.files:
                for known in filter(None, (stored.content, stored.flags)):
                    self._known[known.name] = known
        states = [decode_topic(content) for content in self._snapshot.topics]
        self._figures.bytes = sum(self._size(state, segment) for state in states for segment in state.segments)
        files = [stored for state in states for segment in state.segments for stored in self._segment(state, segment)]
        self._disk.sync_dir(f"{self._to}/pool", Site.LAYOUT_DIR)
        content = encode_snapshot(self._snapshot)
        put_file(self._disk, f"{backup_dir(self._to, self._id)}/{SNAPSHOT}", content)
        manifest = BackupManifest(
            FORMAT,
            self._id,
            self._server_id,
            __version__,
            self._taken_ts,
            [BackedTopic(state.name, state.topic_id, state.head, state.earliest) for state in states],
            PoolFile(SNAPSHOT, len(content), xxh3_64_hexdigest(content)),
            files,
            self._damaged,
        )
        write_manifest(self._disk, self._to, manifest)
        return manifest

    # One segment

    def _path(self, state: TopicCheckpoint, segment: SegmentState, suffix: str) -> str:
        return self._layout.segment_path(state.topic_id, segment.first_seq, suffix)

    def _size(self, state: TopicCheckpoint, segment: SegmentState) -> int:
        if segment.cells is not None:
            return _end(BlockIndex(array("Q", segment.cells)))
        suffix = "parquet" if segment.cold else "data"
        file = self._disk.open(self._path(state, segment, suffix))
        try:
            return file.size()
        finally:
            file.close()

    def _segment(self, state: TopicCheckpoint, segment: SegmentState) -> Iterator[StoredFile]:
        if segment.cold:
            yield from self._cold(state, segment)
            return
        if segment.cells is not None:
            index: BlockIndex | None = BlockIndex(array("Q", segment.cells))
        else:
            index = None
            for content in self._content_of(self._path(state, segment, "idx")):
                index = decode_index(content)
                if index is not None:
                    yield self._small(state, segment, "idx", content)
            for content in self._content_of(self._path(state, segment, "tags")):
                yield self._small(state, segment, "tags", content)
        if index is None:
            self._damaged.append(
                f"{segment_file(state.topic_id, segment.first_seq, 'data')}: left out, because it has no valid index"
            )
            return
        yield self._data(state, segment, index)

    def _content_of(self, path: str) -> Iterator[bytes]:
        try:
            yield read_file(self._disk, path)
        except FileNotFoundError:
            return

    def _small(self, state: TopicCheckpoint, segment: SegmentState, suffix: str, content: bytes) -> StoredFile:
        """Store a small file, which is named after the checksum of its content."""
        path = segment_file(state.topic_id, segment.first_seq, suffix)
        return StoredFile(path, self._put(suffix, content), suffix == "del")

    def _put(self, kind: str, content: bytes) -> PoolFile:
        checksum = xxh3_64_hexdigest(content)
        stored = PoolFile(f"{kind}-{checksum}-{len(content)}", len(content), checksum)
        self._figures.files += 1
        if not self._has(stored.name, stored.bytes):
            put_file(self._disk, pool_path(self._to, stored.name), content)
            self._known[stored.name] = stored
            self._figures.copied_files += 1
            self._figures.copied_bytes += len(content)
        return stored

    def _has(self, name: str, size: int) -> bool:
        """Whether an earlier backup has stored this file, and the file still has its size."""
        if name not in self._known:
            return False
        try:
            file = self._disk.open(pool_path(self._to, name))
        except FileNotFoundError:
            return False
        try:
            return file.size() == size
        finally:
            file.close()

    def _data(self, state: TopicCheckpoint, segment: SegmentState, index: BlockIndex) -> StoredFile:
        file = self._disk.open(self._path(state, segment, "data"))
        try:
            name = f"data-{_fingerprint(file, index)}-{_end(index)}"
            flags = b"".join(_flags(file, index))
            stored = self._pooled(name, _end(index), lambda: self._blocks(file, index, state))
        finally:
            file.close()
        kept = self._put("flags", flags) if flags.strip(b"\0") else None
        return StoredFile(segment_file(state.topic_id, segment.first_seq, "data"), stored, False, kept)

    def _blocks(self, file: File, index: BlockIndex, state: TopicCheckpoint) -> Iterator[bytes]:
        """Yield every block with clear delete flags, and report damaged blocks."""
        for number in range(len(index)):
            offset, length = index.place(number)
            content = file.pread(length, offset)
            if not isinstance(read_frame(content, 0, len(content)), Frame):
                last = index.end_seq(number) - 1
                self._damaged.append(f"topic {state.name}: seqs {index.first_seq(number)} to {last}")
            count = index.count(number)
            yield content[: length - count] + bytes(count)

    def _cold(self, state: TopicCheckpoint, segment: SegmentState) -> Iterator[StoredFile]:
        flags, path = self._path(state, segment, "del"), self._path(state, segment, "parquet")
        name = segment_file(state.topic_id, segment.first_seq, "parquet")
        content = read_file(self._disk, flags)
        yield self._small(state, segment, "del", content)
        file = self._disk.open(path)
        try:
            size = file.size()
            stored = self._pooled(f"parquet-{content[8:16].hex()}-{size}", size, lambda: _chunks(file, size))
        finally:
            file.close()
        yield StoredFile(name, stored, True)

    def _pooled(self, name: str, size: int, read: Callable[[], Iterator[bytes]]) -> PoolFile:
        """Store a large file in the pool, unless the pool has it."""
        self._figures.files += 1
        if self._has(name, size):
            self._figures.done_bytes += size
            return self._known[name]
        path = pool_path(self._to, name)
        digest, damaged = xxh3_64(), len(self._damaged)
        made = self._disk.create(f"{path}.part")
        try:
            place = 0
            for piece in read():
                if self._cancelled():
                    raise CancelledError
                digest.update(piece)
                place = write_fully(made, [piece], place)
                self._figures.done_bytes += len(piece)
                self._figures.copied_bytes += len(piece)
            made.sync(Site.BACKUP_FILE)
        finally:
            made.close()
        if len(self._damaged) > damaged:
            # A damaged file does not get its normal name, so the next backup copies it again or reports the damage
            # again.
            name = f"{name}-{digest.hexdigest()}"
        self._disk.rename(f"{path}.part", pool_path(self._to, name))
        self._figures.copied_files += 1
        stored = self._known[name] = PoolFile(name, place, digest.hexdigest())
        return stored


def _end(index: BlockIndex) -> int:
    return sum(index.place(len(index) - 1)) if len(index) else 0


def _chunks(file: File, size: int) -> Iterator[bytes]:
    for place in range(0, size, _CHUNK):
        yield file.pread(min(_CHUNK, size - place), place)


def _flags(file: File, index: BlockIndex) -> Iterator[bytes]:
    for number in range(len(index)):
        offset, length = index.place(number)
        count = index.count(number)
        yield file.pread(count, offset + length - count)


def _fingerprint(file: File, index: BlockIndex) -> str:
    """Return a hash of the checksums of all blocks: equal for equal blocks, whatever their delete flags."""
    digest = xxh3_64()
    for number in range(len(index)):
        offset, length = index.place(number)
        digest.update(file.pread(8, offset + HEAD_BYTES - 8))
        digest.update(file.pread(8, offset + length - index.count(number) - 8))
    return str(digest.hexdigest())
