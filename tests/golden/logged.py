"""A WAL file and what a reader finds in it: its head, and every frame after it without the salt."""

from msgspec import Struct

from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import Frame, Kind, add_salt, control_body
from driftq.storage.wal.wal_head import HEAD_BYTES, FileHead, encode_head, read_wal_head
from driftq.storage.wal.wal_reader import scan_of
from tests.golden.described import Described, describe_all, encode

NUMBER = 2
_HEAD = FileHead(1, 0, 1, 1, 9000, salt=bytes(range(1, 9)), boot_id=bytes(range(16)), written_by="0.1.0")


class Logged(Struct, frozen=True):
    """A head without its salt, how many bytes it takes, and the frames after it."""

    head: FileHead
    version: int
    frames_at: int
    end: int
    kinds: list[int]
    frames: list[Described]


def build(frames: list[Described]) -> bytes:
    """Return a version 2 file with these frames and some zeros after them."""
    content = bytearray(b"".join(map(encode, frames)))
    add_salt(content, int.from_bytes(_HEAD.salt, "little"))
    return encode_head(_HEAD, NUMBER) + content + bytes(512)


def picture(content: bytes) -> Logged:
    """Return what a reader finds."""
    head = read_wal_head(content[:HEAD_BYTES])
    assert head is not None
    scan = scan_of(content, NUMBER, head)
    found = [frame for frame in scan if isinstance(frame, Frame)]
    described: list[Described] = []
    for frame in found:
        if frame.kind == Kind.APPEND:
            block = Block.read(content, frame)
            assert isinstance(block, Block)
            described += [described for _, described in describe_all(block.frame)]
        else:
            body = control_body(content, frame).hex()
            described.append(Described(frame.kind, frame.topic_id, frame.seq, frame.ts, frame.synced_to, body=body))
    return Logged(head.body, head.version, head.frames_at, scan.end, [frame.kind for frame in found], described)
