"""Restores a backup into a data directory that a server can start with.

    the manifest checked → every file of the pool copied and checked on the way → the checkpoint, last

Invariant: the directory has a checkpoint only when all files that it names are complete and synced. An interrupted
restore leaves segments without a checkpoint, and a server refuses to start on them.

A restored directory has another history than the one it was copied from, so it gets a server id of its own.
"""

import posixpath
from array import array
from collections.abc import Callable

from msgspec import DecodeError, Struct
from xxhash import xxh3_64, xxh3_64_hexdigest

from driftq.engine.files.topic_checkpoint import TopicCheckpoint, decode_topic
from driftq.errors import NewerFormatError, NotFoundError, StartError
from driftq.features.backup.backup_files import (
    FORMAT,
    SNAPSHOT,
    BackupManifest,
    StoredFile,
    backup_dir,
    foreign_name,
    is_backup_id,
    pool_path,
    read_manifest,
    read_manifests,
)
from driftq.storage.layout import Layout, make_directory, segment_file
from driftq.storage.segments.block_index import BlockIndex, decode_index
from driftq.storage.server_id import settle_server_id
from driftq.storage.snapshot_file import Snapshot, decode_snapshot, install_snapshot
from driftq.system.disk import Disk, Site, read_file, write_fully
from driftq.system.entropy import Entropy

_CHUNK = 1 << 20


class Restored(Struct, frozen=True):
    """What was restored, and into which directory."""

    id: str
    taken_ts: int
    topics: int
    files: int
    bytes: int
    data_dir: str


class Restore:
    """The restore of one backup."""

    def __init__(self, disk: Disk, source: str, layout: Layout, entropy: Entropy, backup_id: str | None = None) -> None:
        self._disk = disk
        self._source = source
        self._layout = layout
        self._entropy = entropy
        self.manifest = self._find(backup_id)
        self.bytes = sum(stored.content.bytes for stored in self.manifest.files) + self.manifest.snapshot.bytes
        self._done = 0

    def _find(self, backup_id: str | None) -> BackupManifest:
        if backup_id is None:
            found = read_manifests(self._disk, self._source)
            if not found:
                raise NotFoundError(f"{self._source} contains no complete backup")
            return found[-1]
        manifest = read_manifest(self._disk, self._source, backup_id) if is_backup_id(backup_id) else None
        if manifest is None:
            raise NotFoundError(f"{self._source} contains no complete backup {backup_id!r}; omit --id for the newest")
        return manifest

    def run(self, tell: Callable[[int], None] = lambda _: None) -> Restored:
        """Restore all files. Raise StartError if the target is in use or the backup is damaged, and OSError.

        `tell` is called with the number of bytes copied so far.
        """
        manifest = self.manifest
        if manifest.format != FORMAT:
            raise NewerFormatError(
                f"the backup has format {manifest.format}; restore it with DriftQ {manifest.version}"
            )
        if (name := foreign_name(manifest)) is not None:
            raise StartError(
                f"the manifest of backup {manifest.id} names {name!r}, a path that no backup contains; "
                "do not use a backup directory that others can write"
            )
        self._check_target()
        snapshot = self._read_snapshot()
        make_directory(self._disk, self._layout.data)
        self._layout.prepare()
        if self._layout.cold is not None:
            self._layout.prepare_cold()
        indexes = self._indexes(snapshot)
        directories = set()
        for stored in manifest.files:
            target = self._target(stored)
            directory = posixpath.dirname(target)
            if directory not in directories:
                make_directory(self._disk, directory)
                directories.add(directory)
            self._copy(stored, target, indexes, tell)
        for directory in sorted(directories):
            self._disk.sync_dir(directory, Site.SEGMENT_DIR)
        settle_server_id(self._layout, self._entropy)
        install_snapshot(self._layout, 1, self._snapshot_bytes())
        return Restored(
            manifest.id, manifest.taken_ts, len(manifest.topics), len(manifest.files), self.bytes, self._layout.data
        )

    def _check_target(self) -> None:
        roots = [self._layout.data] + ([] if self._layout.cold is None else [self._layout.cold])
        for root in roots:
            if self._disk.names(root):
                raise StartError(f"{root} is not empty; restore into a new or empty directory")
        if self._layout.cold is None and any(stored.cold for stored in self.manifest.files):
            raise StartError("the backup has cold segments; set a directory for them with --cold-dir")

    def _snapshot_bytes(self) -> bytes:
        content = read_file(self._disk, f"{backup_dir(self._source, self.manifest.id)}/{SNAPSHOT}")
        if xxh3_64_hexdigest(content) != self.manifest.snapshot.checksum:
            raise self._damaged()
        return content

    def _read_snapshot(self) -> Snapshot:
        snapshot = decode_snapshot(self._snapshot_bytes())
        if snapshot is None:
            raise self._damaged()
        return snapshot

    def _topics(self, snapshot: Snapshot) -> list[TopicCheckpoint]:
        try:
            return list(map(decode_topic, snapshot.topics))
        except DecodeError as error:
            raise self._damaged() from error

    def _damaged(self) -> StartError:
        return StartError(f"the state of backup {self.manifest.id} is damaged; restore an older one with --id")

    def _target(self, stored: StoredFile) -> str:
        return f"{self._layout.cold if stored.cold else self._layout.data}/{stored.path}"

    def _indexes(self, snapshot: Snapshot) -> dict[str, BlockIndex]:
        """Return the block index of each `.data` file, by its path."""
        found: dict[str, BlockIndex] = {}
        for state in self._topics(snapshot):
            for segment in state.segments:
                if segment.cells is not None:
                    path = segment_file(state.topic_id, segment.first_seq, "data")
                    found[path] = BlockIndex(array("Q", segment.cells))
        for stored in self.manifest.files:
            if stored.path.endswith(".idx"):
                index = decode_index(read_file(self._disk, pool_path(self._source, stored.content.name)))
                if index is not None:
                    found[f"{stored.path.removesuffix('.idx')}.data"] = index
        return found

    def _copy(
        self, stored: StoredFile, target: str, indexes: dict[str, BlockIndex], tell: Callable[[int], None]
    ) -> None:
        digest = xxh3_64()
        source, made = self._disk.open(pool_path(self._source, stored.content.name)), self._disk.create(target)
        try:
            place = 0
            while piece := source.pread(_CHUNK, place):
                digest.update(piece)
                place = write_fully(made, [piece], place)
                self._done += len(piece)
                tell(self._done)
            if (place, digest.hexdigest()) != (stored.content.bytes, stored.content.checksum):
                raise StartError(f"{stored.content.name} of the backup is damaged; restore an older one with --id")
            if stored.flags is not None:
                index = indexes.get(stored.path)
                if index is None:
                    raise self._damaged()
                self._set_flags(stored, index, lambda flags, at: write_fully(made, [flags], at))
            made.sync(Site.BACKUP_FILE)
        finally:
            source.close()
            made.close()

    def _set_flags(self, stored: StoredFile, index: BlockIndex, write: Callable[[bytes, int], object]) -> None:
        assert stored.flags is not None
        flags = read_file(self._disk, pool_path(self._source, stored.flags.name))
        if xxh3_64_hexdigest(flags) != stored.flags.checksum:
            raise StartError(f"{stored.flags.name} of the backup is damaged; restore an older one with --id")
        row = 0
        for number in range(len(index)):
            offset, length = index.place(number)
            count = index.count(number)
            write(flags[row : row + count], offset + length - count)
            row += count
