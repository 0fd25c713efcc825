"""The files of a backup directory (`docs/formats/backup.md`). Its backups share equal files.

<to>/backups/<id>/snapshot.bin     the state at one moment, as a checkpoint that needs no log
<to>/backups/<id>/manifest.json    the files of the backup; one line of JSON, one of XXH3-64 of that line. Written last
<to>/pool/<kind>-<hash>-<bytes>    files of segments, named after their content; never changed, shared by backups

Invariants: a backup is valid only if it has a manifest with the right checksum. A file in the pool that no manifest
names has no meaning. Paths consist of numbers and hashes; they never contain a name chosen by a user.
"""

import re

from msgspec import DecodeError, Struct, ValidationError, json
from xxhash import xxh3_64_hexdigest

from driftq.storage.layout import COLD_SUFFIXES, HOT_SUFFIXES, is_segment_file
from driftq.system.disk import Disk, Site, read_file, write_fully

FORMAT = 1
MANIFEST, SNAPSHOT = "manifest.json", "snapshot.bin"
_ID = re.compile(r"b\d{13}-[0-9a-f]{4}")
_POOL_NAME = re.compile(r"[a-z]+-[0-9a-f]+-\d+")


class PoolFile(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file in the pool, with its size and checksum."""

    name: str
    bytes: int
    checksum: str


class StoredFile(Struct, frozen=True, omit_defaults=True):
    """One file of a data directory: its path there, and its content in the pool."""

    path: str
    """The path below the root of its storage tier."""
    content: PoolFile
    cold: bool = False
    flags: PoolFile | None = None
    """The delete flags of all blocks, in block order; None if all are clear."""


class BackedTopic(Struct, frozen=True):
    """A topic at the moment of the backup."""

    topic: str
    topic_id: int
    head_seq: int
    earliest_seq: int


class BackupManifest(Struct, frozen=True):
    """The contents of one backup."""

    format: int
    id: str
    server_id: str
    version: str
    taken_ts: int
    """The time of the captured state."""
    topics: list[BackedTopic]
    snapshot: PoolFile
    files: list[StoredFile]
    damaged: list[str] = []
    """Blocks whose checksum was wrong when they were copied."""


def backup_dir(to: str, backup_id: str) -> str:
    """Return the directory of one backup."""
    return f"{to}/backups/{backup_id}"


def pool_path(to: str, name: str) -> str:
    """Return the path of a file in the pool."""
    return f"{to}/pool/{name}"


def foreign_name(manifest: BackupManifest) -> str | None:
    """Return a file name of a manifest that no backup of ours contains; None if there is none.

    Anybody can compute the checksum of a manifest. So a name is used as a path only if it has the form that we write.
    """
    for stored in manifest.files:
        tier_suffixes = COLD_SUFFIXES if stored.cold else HOT_SUFFIXES
        if not is_segment_file(stored.path, tier_suffixes):
            return stored.path
        for content in (stored.content, stored.flags):
            if content is not None and not _POOL_NAME.fullmatch(content.name):
                return content.name
    return None


def is_backup_id(text: str) -> bool:
    """Whether a text has the form of a backup id. Only such a text may become part of a path."""
    return _ID.fullmatch(text) is not None


def write_manifest(disk: Disk, to: str, manifest: BackupManifest) -> None:
    """Write a manifest durably: first under another name, then rename it."""
    line = json.encode(manifest)
    directory = backup_dir(to, manifest.id)
    put_file(disk, f"{directory}/{MANIFEST}", b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode()))
    disk.sync_dir(directory, Site.LAYOUT_DIR)
    disk.sync_dir(f"{to}/backups", Site.LAYOUT_DIR)


def read_manifest(disk: Disk, to: str, backup_id: str) -> BackupManifest | None:
    """Return the manifest of a backup, or None if it is missing, damaged or that of another id. Raise OSError."""
    try:
        content = read_file(disk, f"{backup_dir(to, backup_id)}/{MANIFEST}")
    except FileNotFoundError:
        return None
    line, _, rest = content.partition(b"\n")
    if rest.strip().decode("latin-1") != xxh3_64_hexdigest(line):
        return None
    try:
        manifest = json.decode(line, type=BackupManifest)
    except (DecodeError, ValidationError):
        return None
    return manifest if manifest.id == backup_id else None


def newest_ts(disk: Disk, to: str) -> int | None:
    """Return when the newest valid backup in a directory was taken; None if there is none. Raise OSError."""
    for name in reversed(disk.names(f"{to}/backups")):
        manifest = read_manifest(disk, to, name) if is_backup_id(name) else None
        if manifest is not None:
            return manifest.taken_ts
    return None


def read_manifests(disk: Disk, to: str) -> list[BackupManifest]:
    """Return the manifests of all valid backups in a directory, oldest first."""
    found = (read_manifest(disk, to, name) for name in disk.names(f"{to}/backups") if is_backup_id(name))
    return sorted((manifest for manifest in found if manifest is not None), key=lambda manifest: manifest.id)


def put_file(disk: Disk, path: str, content: bytes) -> None:
    """Write and sync a file that becomes visible only when it is complete. The caller syncs the directory."""
    file = disk.create(f"{path}.part")
    try:
        write_fully(file, [content], 0)
        file.sync(Site.BACKUP_FILE)
    finally:
        file.close()
    disk.rename(f"{path}.part", path)
