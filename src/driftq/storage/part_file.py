"""A staged part on disk: `stage/part-<n:016>.bin`, two frames back to back (docs/formats/stage.md).

    head    a control frame of kind 82, whose body has the part's address, its size, and when it was staged
    rows    an Append frame of the part's records; its seq means nothing yet

The number in the file name grows: of two files with one address, the one with the higher number is used. A file is
complete if it is as long as its head states and both frames are valid. An incomplete file was never acknowledged, or is
damaged. It is not a part.
"""

from typing import NamedTuple

from msgspec import DecodeError, Struct, msgpack

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.frame import Frame, control_body, encode_control, read_frame
from driftq.storage.blocks.rows import Rows
from driftq.system.disk import Disk, read_file

KIND = 82
"""Frames of this kind are never in a WAL."""
_HEAD_BYTES_MAX = 4096


class PartHead(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Address, size and time of a staged part."""

    writer: str
    batch: int
    part: int
    attempt: int
    chunk: int
    staged_ts: int
    records: int
    payload: int
    rows_bytes: int = 0
    """Length of the frame after the head."""


class FoundPart(NamedTuple):
    """A part that a start found on disk."""

    topic_id: int
    head: PartHead


def encode_part(topic_id: int, head: PartHead, rows: Rows) -> list[bytes]:
    """Return the bytes of a part, with `rows_bytes` of the head filled in."""
    frame = encode_block(rows, topic_id=topic_id, first_seq=1, ts=head.staged_ts)
    filled = PartHead(
        head.writer,
        head.batch,
        head.part,
        head.attempt,
        head.chunk,
        head.staged_ts,
        head.records,
        head.payload,
        len(frame),
    )
    return [encode_control(KIND, msgpack.encode(filled), topic_id=topic_id, op=0, ts=head.staged_ts), frame]


def read_head(disk: Disk, path: str) -> FoundPart | None:
    """Return topic and head of a part, or None if the file is not complete."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        content, size = file.pread(_HEAD_BYTES_MAX, 0), file.size()
    finally:
        file.close()
    found = _head(content)
    return (
        None if found is None or found[0].end + found[1].rows_bytes != size else FoundPart(found[0].topic_id, found[1])
    )


def read_rows(disk: Disk, path: str) -> Rows | None:
    """Return the records of a part, or None if the file is not complete."""
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return None
    found = _head(content)
    if found is None or found[0].end + found[1].rows_bytes != len(content):
        return None
    frame = read_frame(content, found[0].end, len(content))
    block = Block.read(content, frame) if isinstance(frame, Frame) else None
    return block.rows() if isinstance(block, Block) else None


def _head(content: bytes) -> tuple[Frame, PartHead] | None:
    frame = read_frame(content, 0, len(content))
    if not isinstance(frame, Frame) or frame.kind != KIND:
        return None
    try:
        return frame, msgpack.decode(control_body(content, frame), type=PartHead)
    except DecodeError:
        return None
