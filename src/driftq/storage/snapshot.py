"""The snapshot file: what a checkpoint writes and a start reads (http-v0 §19.5). `docs/formats/snapshot.md`.

    0   4  magic "SNP1"         4   4  version
    8   8  body length          16  8  XXH3-64 of the body
    24  …  body: msgpack, `Snapshot`

Written to a temporary name, synced, renamed, the directory synced, read back and verified, and only then is anything
older removed: a crash at any step leaves exactly one usable state, never zero when one existed.
"""

from struct import Struct as Layoutter

from msgspec import DecodeError, Struct, msgpack
from xxhash import xxh3_64_intdigest

from driftq.seam.disk import Site, read_file, write_fully
from driftq.storage.layout import Layout

MAGIC = b"SNP1"
VERSION = 1
_HEADER = Layoutter("<4sIQQ")


class Snapshot(Struct, frozen=True):
    """Where replay begins in each shard directory, and the named sections of those who have state."""

    positions: dict[str, tuple[int, int]]
    sections: dict[str, bytes]
    topics: list[bytes]


_encoder = msgpack.Encoder()
_decoder = msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The whole file."""
    body = _encoder.encode(snapshot)
    return _HEADER.pack(MAGIC, VERSION, len(body), xxh3_64_intdigest(body)) + body


def decode_snapshot(content: bytes) -> Snapshot | None:
    """A file's content, or None when it is damaged, unfinished or of another version."""
    if len(content) < _HEADER.size:
        return None
    magic, version, size, checksum = _HEADER.unpack_from(content)
    body = content[_HEADER.size :]
    if magic != MAGIC or version != VERSION or size != len(body) or checksum != xxh3_64_intdigest(body):
        return None
    try:
        return _decoder.decode(body)
    except DecodeError:
        return None


def install_snapshot(layout: Layout, number: int, content: bytes) -> None:
    """Write one, make it durable and read it back. Raises OSError; then nothing older has been touched."""
    path = layout.snapshot_path(number)
    file = layout.disk.create(f"{path}.tmp")
    try:
        write_fully(file, [content], 0)
        file.sync(Site.SNAPSHOT_FILE)
    finally:
        file.close()
    layout.disk.rename(f"{path}.tmp", path)
    layout.disk.sync_dir(layout.meta_dir, Site.SNAPSHOT_DIR)
    if read_file(layout.disk, path) != content:
        raise OSError(f"{path} reads back other bytes than were written")


def remove_older(layout: Layout, number: int) -> None:
    """Remove every other finished or unfinished snapshot."""
    keep = layout.snapshot_path(number)
    for name in layout.disk.names(layout.meta_dir):
        path = f"{layout.meta_dir}/{name}"
        if name.startswith("snapshot-") and path != keep:
            layout.disk.unlink(path)


def newest_snapshot(layout: Layout) -> tuple[int, Snapshot | None, list[str]]:
    """Number and content of the newest valid one (0 and None for none), and the paths passed over on the way."""
    refused: list[str] = []
    for number in reversed(layout.snapshots()):
        path = layout.snapshot_path(number)
        snapshot = decode_snapshot(read_file(layout.disk, path))
        if snapshot is not None:
            return number, snapshot, refused
        refused.append(path)
    return 0, None, refused
