"""The snapshot file, which a checkpoint writes and a start reads (http-v0 §19.5). See `docs/formats/snapshot.md`.

    0   4  magic "SNP1"         4   4  version
    8   8  body length          16  8  XXH3-64 of the body
    24  …  body: msgpack, `Snapshot`

In every future version the body is a map with the key `written_by`, so that an older version can name the version to
start. From version 2 on, the checksum is seeded with the version: a damaged version number is damage, not a newer file.

A snapshot is written to a temporary name, synced, renamed, its directory synced, read back and verified. Only then is
anything older removed. So a crash at any step leaves exactly one usable state, never zero if one existed.
"""

from collections.abc import Sequence
from contextlib import suppress
from struct import Struct as Layoutter

from msgspec import DecodeError, Struct, msgpack, structs
from xxhash import xxh3_64_intdigest

from driftq import __version__
from driftq.storage.format_version import newer
from driftq.storage.layout import Layout
from driftq.system.disk import Site, read_file, write_fully

MAGIC = b"SNP1"
VERSION = 2
_HEADER = Layoutter("<4sIQQ")
_PIECE_BYTES = 8 << 20
"""Bytes that are read back at a time."""


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """Where replay begins in each shard directory, and the named sections of the features that have state."""

    positions: dict[str, tuple[int, int]]
    sections: dict[str, bytes]
    topics: list[bytes]
    written_by: str = __version__
    """The DriftQ version that wrote the file; "" for a file of version 1."""


_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the content of the file."""
    return b"".join(snapshot_parts(snapshot))


def snapshot_parts(snapshot: Snapshot) -> tuple[bytes, bytes]:
    """Return header and body of the file. They are separate because the body may be too large to copy."""
    body = _encoder.encode(snapshot)
    return _HEADER.pack(MAGIC, VERSION, len(body), xxh3_64_intdigest(body, VERSION)), body


def decode_snapshot(content: bytes) -> Snapshot | None:
    """Return the content of a file, or None if it is damaged or incomplete. Raises NewerFormatError."""
    if len(content) < _HEADER.size:
        return None
    magic, version, size, checksum = _HEADER.unpack_from(content)
    body = content[_HEADER.size :]
    if magic != MAGIC or size != len(body) or checksum != xxh3_64_intdigest(body, 0 if version == 1 else version):
        return None
    try:
        snapshot = _decoder.decode(body) if version <= VERSION else None
    except DecodeError:
        snapshot = None
    if snapshot is None:
        raise newer(f"a checkpoint of format version {version}", _written_by(body))
    return structs.replace(snapshot, written_by="") if version == 1 else snapshot


def body_of(content: bytes) -> bytes:
    """Return the body of a file without checking it, to salvage what is left of a damaged one."""
    return content[_HEADER.size :]


class _Signed(Struct):
    """The field that can be read from a checkpoint of any version."""

    written_by: str = ""


def _written_by(body: bytes) -> str:
    try:
        return msgpack.decode(body, type=_Signed).written_by
    except DecodeError:
        return ""


def install_snapshot(layout: Layout, number: int, *parts: bytes) -> None:
    """Write a snapshot, make it durable and read it back. Raises OSError; then nothing older was changed."""
    path = unfinished_path(layout, number)
    file = layout.disk.create(path)
    try:
        write_fully(file, parts, 0)
        file.sync(Site.SNAPSHOT_FILE)
    except OSError:
        file.close()
        with suppress(OSError):
            layout.disk.unlink(path)  # an incomplete file would take space that the next may need
        raise
    file.close()
    _finish(layout, number, parts)


def unfinished_path(layout: Layout, number: int) -> str:
    """Return the path of a snapshot that is not complete yet."""
    return f"{layout.snapshot_path(number)}.tmp"


def overwrite_snapshot(layout: Layout, number: int, *parts: bytes) -> None:
    """Write a snapshot over the file at `unfinished_path`, which may be longer, as `install_snapshot` does.

    Raises OSError; then that file is still there.
    """
    file = layout.disk.open(unfinished_path(layout, number))
    try:
        write_fully(file, parts, 0)
        file.truncate(sum(map(len, parts)))
        file.sync(Site.SNAPSHOT_FILE)
    finally:
        file.close()
    _finish(layout, number, parts)


def _finish(layout: Layout, number: int, parts: Sequence[bytes]) -> None:
    path = layout.snapshot_path(number)
    layout.disk.rename(unfinished_path(layout, number), path)
    layout.disk.sync_dir(layout.meta_dir, Site.SNAPSHOT_DIR)
    if not _reads_back(layout, path, parts):
        raise OSError(f"{path} does not have the bytes that were written to it")


def _reads_back(layout: Layout, path: str, parts: Sequence[bytes]) -> bool:
    """Whether a file has these parts back to back, and nothing else."""
    file = layout.disk.open(path)
    try:
        place = 0
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(part), _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                if file.pread(len(piece), place) != piece:
                    return False
                place += len(piece)
        return file.size() == place
    finally:
        file.close()


def remove_older(layout: Layout, number: int) -> None:
    """Remove all other snapshots, complete or not."""
    keep = layout.snapshot_path(number)
    for name in layout.disk.names(layout.meta_dir):
        path = f"{layout.meta_dir}/{name}"
        if name.startswith("snapshot-") and path != keep:
            layout.disk.unlink(path)


def newest_snapshot(layout: Layout) -> tuple[int, Snapshot | None, list[str]]:
    """Return number and content of the newest valid snapshot, and the paths of newer invalid ones.

    Returns 0 and None if there is none. Raises NewerFormatError.
    """
    refused: list[str] = []
    for number in reversed(layout.snapshots()):
        path = layout.snapshot_path(number)
        snapshot = decode_snapshot(read_file(layout.disk, path))
        if snapshot is not None:
            return number, snapshot, refused
        refused.append(path)
    return 0, None, refused
