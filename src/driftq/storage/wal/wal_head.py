"""The head of a WAL file: the version that wrote it, the previous file, and the salt of its checksums.

    version 1   byte 0      one frame of kind FILE_HEAD; the other frames follow it; no salt
    version 2   byte 0      the frame, with the magic "DQF" 2, then zeros
                byte 4096   the same frame again, then zeros
                byte 8192   the other frames, each with the salt (`storage/blocks/frame`)

Why a salt: after a crash the reader searches for frames after a bad place, and finds them by their bytes. Tags, nodes
and keys hold bytes that clients chose, and XXH3 has no secret, so a client can put a whole frame into a tag. With the
salt, the stored checksum of a header is XXH3 combined by XOR with 64 random bits that no client can see. A planted
frame is accepted only if its author guessed these bits: a probability of 2^-64 for each planted frame. Every file has
its own salt, so the frames of a removed file are not accepted in a later one either, should a file system show old
bytes.

Invariants
- The head never contains bytes from a client, so both copies can be found without a salt.
- The head of a version 2 file is durable before the first frame after it is written. A file without a readable head is
  therefore unused if all other bytes are zeros, and damaged if they are not. It is never a torn end, and none of its
  frames are used, because its salt is lost.
- A file without a readable head counts as version 1 only if a file with a higher number has a version 1 head: versions
  never go back.
- Every future version may extend the body of a head only at its end, so that `written_by` can always be read.
"""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import DecodeError, Struct, msgpack

from driftq.storage.blocks.frame import Frame, Kind, NewerVersion, control_body, encode_control, read_frame
from driftq.storage.format_version import newer
from driftq.system.disk import Disk


class FileHead(Struct, frozen=True, array_like=True):
    """First frame of every WAL file: the run and shard that wrote it, and the end of the previous file.

    `run` is the number of the run's first file. `previous` is the number of the file that this shard wrote before in
    the same run, or 0. `previous_end` is the size of its frames in bytes, all of them synced before this file began.
    The fields after it are new in version 2 (`storage/wal/wal_head`). `boot_id` identifies the boot of the machine;
    zeros mean unknown.
    """

    run: int
    shard: int
    shards: int
    previous: int
    previous_end: int
    salt: bytes = b""
    boot_id: bytes = b""
    written_by: str = ""
    """The DriftQ version that wrote the file."""


_file_head = msgpack.Decoder(FileHead)
_encoder = msgpack.Encoder()


def encode_file_head(head: FileHead) -> bytes:
    """Return the body of a FILE_HEAD frame."""
    return _encoder.encode(head)


def decode_file_head(body: bytes) -> FileHead:
    """Return the head in the body of a FILE_HEAD frame."""
    return _file_head.decode(body)


VERSION = 2
MAGIC_2 = b"DQF\x02"
COPY_BYTES = 4096
HEAD_BYTES = 2 * COPY_BYTES
"""The first frame of a version 2 file begins at this byte."""
SALT_BYTES = 8
PLACE_BITS = 32
"""A place in the log is one integer: the file number, then the offset in the file in this many bits."""


class WalHead(NamedTuple):
    """The head that was read from a file, with its format version."""

    body: FileHead
    frame: Frame
    """The copy of the head that was read."""
    version: int

    @property
    def salt(self) -> int:
        """Return the salt of the file's header checksums, or 0 if it has none."""
        return int.from_bytes(self.body.salt, "little")

    @property
    def frames_at(self) -> int:
        """Return the offset of the first frame to read. The head of a version 1 file is itself a frame."""
        return HEAD_BYTES if self.version > 1 else 0


def encode_head(head: FileHead, number: int) -> bytes:
    """Return the first 8192 bytes of file `number`."""
    assert len(head.salt) == SALT_BYTES, "a version 2 file has a salt"
    frame = encode_control(
        Kind.FILE_HEAD,
        encode_file_head(head),
        topic_id=0,
        op=0,
        ts=0,
        synced_to=number << PLACE_BITS,
        magic=MAGIC_2,
    )
    return frame.ljust(COPY_BYTES, b"\0") * 2


def copies_of(content: bytes) -> list[WalHead]:
    """Return the copies of a version 2 head that can be read. Raises NewerFormatError."""
    return [head for place in (0, COPY_BYTES) if (head := _read_copy(content, place)) is not None]


def read_wal_head(content: bytes) -> WalHead | None:
    """Return the head in the first bytes of a file, or None if it cannot be read. Raises NewerFormatError."""
    first = read_frame(content, 0, len(content))
    if isinstance(first, Frame) and first.kind == Kind.FILE_HEAD:
        return WalHead(decode_file_head(control_body(content, first)), first, 1)
    return next(iter(copies_of(content)), None)


def whole_head(content: bytes, head: WalHead) -> bytes:
    """Return what the first bytes of a version 2 file must be, made from the copy that was read."""
    return content[head.frame.start : head.frame.end].ljust(COPY_BYTES, b"\0") * 2


def head_of(disk: Disk, path: str) -> WalHead | None:
    """Return the head of a file. Raises OSError and NewerFormatError."""
    file = disk.open(path)
    try:
        return read_wal_head(file.pread(HEAD_BYTES, 0))
    finally:
        file.close()


def is_version_1(number: int, heads: Mapping[tuple[int, str], WalHead | None]) -> bool:
    """Whether a file without a readable head was written as version 1, judged by the heads of all files."""
    return any(head is not None and head.version == 1 and other > number for (other, _), head in heads.items())


def _read_copy(content: bytes, place: int) -> WalHead | None:
    found = read_frame(content, place, min(len(content), place + COPY_BYTES), version=MAGIC_2)
    if isinstance(found, NewerVersion) and found.version > VERSION:
        raise newer(f"a WAL file of format version {found.version}", _written_by(content, place))
    if not isinstance(found, Frame) or found.kind != Kind.FILE_HEAD:
        return None
    try:
        body = decode_file_head(control_body(content, found))
    except DecodeError:
        return None
    return WalHead(body, found, VERSION)


def _written_by(content: bytes, place: int) -> str:
    """Return the DriftQ version in a head of a newer format, or "" if it cannot be read."""
    found = read_frame(content, place, len(content), version=content[place : place + 4])
    try:
        return decode_file_head(control_body(content, found)).written_by if isinstance(found, Frame) else ""
    except DecodeError:
        return ""
