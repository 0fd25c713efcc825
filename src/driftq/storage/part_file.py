"""A staged part on disk: `stage/part-<n:016>.bin`, two frames back to back (docs/formats/stage.md).

    head    a control frame of kind 82, whose body says whose part this is, how large, and when it was staged
    rows    an Append frame of the part's records; its seq means nothing yet

The file's name is a number that grows: of two files of one address the higher one counts. A file is whole when it is as
long as its head says and both frames check out; one that is not was never acknowledged, or is damaged. It is no part.
"""

from typing import NamedTuple

from msgspec import DecodeError, Struct, msgpack

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.frame import Frame, control_body, encode_control, read_frame
from driftq.storage.blocks.rows import Rows
from driftq.system.disk import Disk, read_file

KIND = 82
"""Never in a WAL."""
_HEAD_BYTES_MAX = 4096


class PartHead(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of the head."""

    writer: str
    batch: int
    part: int
    attempt: int
    chunk: int
    staged_ts: int
    records: int
    payload: int
    rows_bytes: int = 0
    """Length of the frame behind the head."""


class FoundPart(NamedTuple):
    """A part as a start finds it."""

    topic_id: int
    head: PartHead


def encode_part(topic_id: int, head: PartHead, rows: Rows) -> list[bytes]:
    """The bytes of a part; `rows_bytes` of the head is filled in."""
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
    """Whose part a file is; None when it is not whole."""
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
    """The records of a part; None when it is not whole."""
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
