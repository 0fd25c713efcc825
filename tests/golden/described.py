"""Frames as plain values and back: what a golden file holds stands beside it as JSON, in these words."""

from array import array
from collections.abc import Iterator, Sequence

from msgspec import Struct

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.frame import Frame, Kind, control_body, encode_control, read_frame
from driftq.storage.blocks.rows import Rows, Texts


class Row(Struct, frozen=True, array_like=True):
    """One record. Its time is its own; a node that all rows share stands in the frame."""

    ts: int
    tag: str | None
    node: str | None
    meta: str | None
    data: str


class Described(Struct, frozen=True, omit_defaults=True):
    """One frame: `rows` and what belongs to them when it appends, else `body`."""

    kind: int
    topic_id: int
    seq: int
    ts: int
    synced_to: int
    rows: list[Row] = []
    batch_node: str | None = None
    key: str | None = None
    writer: str | None = None
    flags: str = ""
    plain: bool = True
    body: str = ""


def encode(frame: Described) -> bytes:
    """The bytes that today's code makes of a frame."""
    if frame.kind != Kind.APPEND:
        body = bytes.fromhex(frame.body)
        return encode_control(
            frame.kind, body, topic_id=frame.topic_id, op=frame.seq, ts=frame.ts, synced_to=frame.synced_to
        )
    rows = Rows(
        Texts.of([row.data.encode() for row in frame.rows]),
        tag=_column([row.tag for row in frame.rows]),
        node=_column([row.node for row in frame.rows]),
        meta=_column([row.meta for row in frame.rows]),
        batch_node=_bytes(frame.batch_node),
    )
    times = array("q", [row.ts for row in frame.rows])
    return encode_block(
        rows,
        topic_id=frame.topic_id,
        first_seq=frame.seq,
        ts=frame.ts,
        synced_to=frame.synced_to,
        times=None if times.count(frame.ts) == len(times) else times,
        key=_bytes(frame.key),
        writer=_bytes(frame.writer),
        flags=bytes.fromhex(frame.flags),
    )


def describe_all(content: bytes) -> Iterator[tuple[bytes, Described]]:
    """Every frame of a file of frames, as bytes and as values."""
    place = 0
    while place < len(content):
        header = read_frame(content, place, len(content))
        assert isinstance(header, Frame), header
        yield content[place : header.end], _describe(content, header)
        place = header.end


def _describe(content: bytes, header: Frame) -> Described:
    kind, _, _, topic_id, seq, ts, synced_to, _, _, _ = header
    if kind != Kind.APPEND:
        body = control_body(content, header).hex()
        return Described(kind=kind, topic_id=topic_id, seq=seq, ts=ts, synced_to=synced_to, body=body)
    block = Block.read(content, header)
    assert isinstance(block, Block), block
    return Described(
        kind=kind,
        topic_id=topic_id,
        seq=seq,
        ts=ts,
        synced_to=synced_to,
        rows=describe_rows(block),
        batch_node=_text(block.batch_node),
        key=_text(block.key),
        writer=_text(block.writer),
        flags=block.flags.hex(),
        plain=block.plain,
    )


def describe_rows(block: Block) -> list[Row]:
    """The rows of a block."""
    count = block.count
    times = block.times(0, count)
    none: list[bytes | None] = [None] * count
    texts = (block.tags(0, count), block.nodes(0, count), block.metas(0, count), block.data(0, count))
    columns = [[_text(value) for value in values or none] for values in texts]
    return [
        Row(ts, tag, node, meta, data or "")
        for ts, tag, node, meta, data in zip(
            [times] * count if isinstance(times, int) else times, *columns, strict=True
        )
    ]


def _column(values: Sequence[str | None]) -> Texts | None:
    if all(value is None for value in values):
        return None
    return Texts.of([_bytes(value) for value in values])


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
