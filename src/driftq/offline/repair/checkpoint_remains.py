"""Reads what is left of checkpoints: the newest valid one, or the usable parts of a damaged one.

A checkpoint's body is a msgpack map of positions, sections and topics; each section and topic is a byte string of its
own. If the checksum does not match, each of them is used if it decodes and contains nothing impossible. Records are
always checked by their own checksums, never by this.
"""

from collections.abc import Iterator

from msgspec import DecodeError, Struct, ValidationError, msgpack, structs

from driftq.engine.files.topic_checkpoint import TopicCheckpoint, decode_topic
from driftq.engine.state.holes import HoleList
from driftq.model.names import is_stored_name
from driftq.model.tombstone import Reason
from driftq.offline.repair.seq_ranges import without
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import Frame, read_frame
from driftq.storage.layout import Layout
from driftq.storage.snapshot_file import Snapshot, decode_snapshot, newest_snapshot
from driftq.system.disk import read_file

SECTIONS = frozenset(("engine", "leases", "cursors", "staging", "routers", "idempotency", "runs", "groups"))
"""Names of the sections that a checkpoint may contain."""
_BODY_AT = 24
SEQ_MAX = 1 << 48
_BIN = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""Maps the first byte of a msgpack byte string to the number of its length bytes."""


class Remains(Struct, frozen=True):
    """A checkpoint as far as it can be trusted."""

    snapshot: Snapshot
    whole: bool
    """Whether the checksum was valid."""


def read_remains(layout: Layout) -> Remains | None:
    """Return the newest valid checkpoint, else the usable parts of the newest that has any, else None."""
    _, snapshot, _ = newest_snapshot(layout)
    if snapshot is not None:
        return Remains(snapshot, True)
    for number in reversed(layout.snapshots()):
        found = _make_sense(read_file(layout.disk, layout.snapshot_path(number)))
        if found.topics:
            return Remains(found, False)
    return None


def _make_sense(content: bytes) -> Snapshot:
    assert decode_snapshot(content) is None
    body = content[_BODY_AT:]
    topics: dict[int, TopicCheckpoint] = {}
    for piece in _strings_behind(body, b"\xa6topics"):
        try:
            state = decode_topic(piece)
        except (DecodeError, ValidationError, UnicodeDecodeError):
            continue
        if _is_possible(state) and state.topic_id not in topics:
            topics[state.topic_id] = _without_bad_blocks(state)
    sections = {name: section for name, section in _sections(body) if name in SECTIONS and _decodes(section)}
    return Snapshot({}, sections, [msgpack.encode(state) for state in topics.values()])


def _is_possible(state: TopicCheckpoint) -> bool:
    numbers = (state.op, state.head, state.earliest, state.cap_lost, state.ttl_lost, state.reserved)
    return (
        is_stored_name(state.name)
        and all(0 <= number < SEQ_MAX for number in numbers)
        and all(segment.first_seq < segment.end_seq <= state.head + 1 for segment in state.segments)
    )


def _without_bad_blocks(state: TopicCheckpoint) -> TopicCheckpoint:
    """Return the state without copied blocks that fail their checksums; their seqs become a hole."""
    tail = [frame for frame in state.tail if _is_block(frame)]
    if len(tail) == len(state.tail):
        return state
    gone = [(max((segment.end_seq for segment in state.segments), default=state.earliest), state.head)]
    for frame in tail:
        block = Block.of(frame)
        gone = without(gone, block.first_seq, block.last_seq)
    holes = HoleList(list(state.holes))
    for first, last in gone:
        holes.add(first, last, Reason.CORRUPTION)
    return structs.replace(state, tail=tail, holes=holes.all)


def _is_block(frame: bytes) -> bool:
    header = read_frame(frame, 0, len(frame))
    return isinstance(header, Frame) and isinstance(Block.read(frame, header), Block)


def _decodes(section: bytes) -> bool:
    try:
        msgpack.decode(section, strict=False)
    except (DecodeError, ValidationError, UnicodeDecodeError):
        return False
    return True


def _strings_behind(body: bytes, key: bytes) -> Iterator[bytes]:
    """Yield the byte strings of the list that follows a key, up to the first that is not valid."""
    place = body.find(key)
    if place < 0:
        return
    place = _skip_list_head(body, place + len(key))
    while (found := _string_at(body, place)) is not None:
        yield found[0]
        place = found[1]


def _skip_list_head(body: bytes, place: int) -> int:
    first = body[place] if place < len(body) else 0x90
    return place + {0xDC: 3, 0xDD: 5}.get(first, 1)


def _string_at(body: bytes, place: int) -> tuple[bytes, int] | None:
    """Return the byte string at `place` and where it ends; None if there is none."""
    width = _BIN.get(body[place]) if place < len(body) else None
    if width is None:
        return None
    start = place + 1 + width
    end = start + int.from_bytes(body[place + 1 : start], "big")
    return (body[start:end], end) if end <= len(body) else None


def _sections(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the sections with their names, up to the first that is not valid."""
    place = body.find(b"\xa8sections")
    if place < 0:
        return
    place += len(b"\xa8sections") + 1
    while place < len(body) and 0xA0 <= body[place] <= 0xBF:
        end = place + 1 + (body[place] & 0x1F)
        name = body[place + 1 : end].decode("latin-1")
        found = _string_at(body, end)
        if found is None:
            return
        yield name, found[0]
        place = found[1]
