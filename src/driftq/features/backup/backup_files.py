"""The files of a backup directory (`docs/formats/backup.md`). It holds any number of backups, and what they share once.

<to>/backups/<id>/snapshot.bin     the state at one moment, as a checkpoint that needs no log
<to>/backups/<id>/manifest.json    what belongs to it; one line of JSON, one of XXH3-64 of that line. Written last
<to>/pool/<kind>-<hash>-<bytes>    files of segments, named after what is in them; never changed, shared by backups

Invariant: a backup without a manifest that checks out is none. A file of the pool that no manifest names means nothing.
Names are made of numbers and hashes; no name of a user is a part of a path.
"""

import re

from msgspec import DecodeError, Struct, ValidationError, json
from xxhash import xxh3_64_hexdigest

from driftq.system.disk import Disk, Site, read_file, write_fully

FORMAT = 1
MANIFEST, SNAPSHOT = "manifest.json", "snapshot.bin"
_ID = re.compile(r"b\d{13}-[0-9a-f]{4}")


class PoolFile(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file of the pool, and how to tell that it is what it was."""

    name: str
    bytes: int
    checksum: str


class StoredFile(Struct, frozen=True, omit_defaults=True):
    """One file of a data directory: where it stands there, and what makes it."""

    path: str
    """From the root of its tier."""
    content: PoolFile
    cold: bool = False
    flags: PoolFile | None = None
    """Its delete flags, block behind block; without them all are clear."""


class BackedTopic(Struct, frozen=True):
    """A topic at the moment of the backup."""

    topic: str
    topic_id: int
    head_seq: int
    earliest_seq: int


class BackupManifest(Struct, frozen=True):
    """What belongs to a backup."""

    format: int
    id: str
    server_id: str
    version: str
    taken_ts: int
    """The moment whose state this is."""
    topics: list[BackedTopic]
    snapshot: PoolFile
    files: list[StoredFile]
    damaged: list[str] = []
    """Blocks that did not check out when they were copied."""


def backup_dir(to: str, backup_id: str) -> str:
    """Where the files of one backup stand."""
    return f"{to}/backups/{backup_id}"


def pool_path(to: str, name: str) -> str:
    """Where a file of the pool stands."""
    return f"{to}/pool/{name}"


def is_backup_id(text: str) -> bool:
    """Does it look like one? Only then may it be a part of a path."""
    return _ID.fullmatch(text) is not None


def write_manifest(disk: Disk, to: str, manifest: BackupManifest) -> None:
    """Write it, durably, under another name first."""
    line = json.encode(manifest)
    directory = backup_dir(to, manifest.id)
    put_file(disk, f"{directory}/{MANIFEST}", b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode()))
    disk.sync_dir(directory, Site.LAYOUT_DIR)
    disk.sync_dir(f"{to}/backups", Site.LAYOUT_DIR)


def read_manifest(disk: Disk, to: str, backup_id: str) -> BackupManifest | None:
    """The manifest of a backup, or None when it has none that checks out. Raises OSError."""
    try:
        content = read_file(disk, f"{backup_dir(to, backup_id)}/{MANIFEST}")
    except FileNotFoundError:
        return None
    line, _, rest = content.partition(b"\n")
    if rest.strip().decode("latin-1") != xxh3_64_hexdigest(line):
        return None
    try:
        return json.decode(line, type=BackupManifest)
    except (DecodeError, ValidationError):
        return None


def newest_ts(disk: Disk, to: str) -> int | None:
    """Return when the newest whole backup of a directory was taken; None where there is none. Raises OSError."""
    for name in reversed(disk.names(f"{to}/backups")):
        manifest = read_manifest(disk, to, name) if is_backup_id(name) else None
        if manifest is not None:
            return manifest.taken_ts
    return None


def read_manifests(disk: Disk, to: str) -> list[BackupManifest]:
    """Every backup of a directory, oldest first."""
    found = (read_manifest(disk, to, name) for name in disk.names(f"{to}/backups") if is_backup_id(name))
    return sorted((manifest for manifest in found if manifest is not None), key=lambda manifest: manifest.id)


def put_file(disk: Disk, path: str, content: bytes) -> None:
    """A whole file, synced, that appears at once; its directory is the caller's to sync."""
    file = disk.create(f"{path}.part")
    try:
        write_fully(file, [content], 0)
        file.sync(Site.BACKUP_FILE)
    finally:
        file.close()
    disk.rename(f"{path}.part", path)
