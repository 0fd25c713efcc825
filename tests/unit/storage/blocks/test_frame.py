"""The frame: what is accepted is what was encoded, and everything else is told apart without an exception."""

import random
from struct import pack_into, unpack_from

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.blocks.frame import (
    FRAME_BYTES_MIN,
    HEAD_BYTES,
    MAGIC,
    Bad,
    Frame,
    Kind,
    NewerVersion,
    control_body,
    encode_control,
    encode_frame,
    read_frame,
)
from driftq.storage.blocks.frame_columns import read_one
from tests.unit.storage import samples

u64 = st.integers(0, (1 << 64) - 1)


def accepted(buffer: bytes, start: int = 0) -> Frame:
    """A frame that must be one."""
    found = read_frame(buffer, start, len(buffer))
    assert isinstance(found, Frame), found
    return found


def with_header_sum(frame: bytearray) -> bytes:
    """A frame with a changed header, checksummed again."""
    pack_into("<Q", frame, 48, xxh3_64_intdigest(bytes(frame[:48])))
    return bytes(frame)


def forged(body: bytes, *, kind: int = Kind.APPEND, bits: int = 0, count: int = 0, length: int | None = None) -> bytes:
    """A frame of any body at all, with every checksum right."""
    frame = bytearray(encode_frame(kind, [], topic_id=1, seq=1, ts=1, bits=bits, count=0))
    pack_into("<IHHI", frame, 4, HEAD_BYTES + len(body) + count if length is None else length, kind, bits, count)
    head = with_header_sum(frame)[:HEAD_BYTES]
    head_sum = int.from_bytes(head[48:], "little")
    return head + body + xxh3_64_intdigest(body, head_sum).to_bytes(8, "little") + bytes(min(count, 64))


@given(st.integers(2, 0xFFFF), st.binary(max_size=70), u64, u64, u64, u64)
def test_a_control_frame_round_trips(kind: int, body: bytes, topic_id: int, op: int, ts: int, synced_to: int) -> None:
    encoded = encode_control(kind, body, topic_id=topic_id, op=op, ts=ts, synced_to=synced_to)
    frame = accepted(encoded)
    assert frame[:-1] == (kind, 0, 0, topic_id, op, ts, synced_to, 0, len(encoded))
    assert control_body(encoded, frame) == body


def test_an_empty_body_is_a_body() -> None:
    encoded = encode_control(Kind.CHECKPOINT_MARK, b"", topic_id=0, op=1, ts=2)
    assert len(encoded) == FRAME_BYTES_MIN
    assert control_body(encoded, accepted(encoded)) == b""


@given(st.lists(samples.frames() | st.binary(max_size=30).map(lambda b: encode_control(4, b, topic_id=1, op=2, ts=3))))
def test_frames_stand_back_to_back_at_multiples_of_eight(encoded: list[bytes]) -> None:
    buffer = b"".join(encoded)
    place = 0
    for frame in encoded:
        assert place % 8 == 0
        found = accepted(buffer, place)
        assert (found.start, found.end) == (place, place + len(frame))
        place = found.end
    assert read_frame(buffer, place, len(buffer)) == Bad("too few bytes are left")


@given(samples.frames(), st.data())
def test_flags_are_outside_the_checksum_and_change_nothing_else(encoded: bytes, data: st.DataObject) -> None:
    frame = accepted(encoded)
    row = data.draw(st.integers(0, frame.count - 1))
    flipped = bytearray(encoded)
    flipped[len(encoded) - frame.count + row] = DELETED
    assert read_frame(bytes(flipped), 0, len(flipped)) == frame
    block = Block.read(bytes(flipped), frame)
    assert isinstance(block, Block)
    assert block.flags[row] == DELETED
    before = Block.read(encoded, frame)
    assert isinstance(before, Block)
    assert samples.records(block) == samples.records(before)


@given(samples.frames(), st.integers(0, 255))
def test_another_version_is_neither_good_nor_bad(encoded: bytes, version: int) -> None:
    changed = bytearray(encoded)
    changed[3] = version
    found = read_frame(with_header_sum(changed), 0, len(changed))
    assert found == NewerVersion(version) if version != MAGIC[3] else isinstance(found, Frame)


def test_a_damaged_version_byte_is_damage() -> None:
    changed = bytearray(encode_control(Kind.DELETE, b"x", topic_id=1, op=1, ts=1))
    changed[3] += 1
    assert read_frame(bytes(changed), 0, len(changed)) == Bad("the checksum of its header does not match")


@given(samples.frames(), st.data())
def test_damage_behind_a_sound_header_still_tells_whose_records_are_gone(encoded: bytes, data: st.DataObject) -> None:
    frame = accepted(encoded)
    place = data.draw(st.integers(HEAD_BYTES, len(encoded) - frame.count - 1))
    changed = bytearray(encoded)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    assert read_frame(bytes(changed), 0, len(changed)) == Bad("the checksum of its columns does not match", frame)


@given(samples.frames(), st.data())
def test_a_frame_cut_short_is_bad(encoded: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(encoded) - 1))
    assert isinstance(read_frame(encoded, 0, end), Bad)
    assert isinstance(read_frame(encoded[:end], 0, end), Bad)


@pytest.mark.parametrize(
    "frame",
    [
        forged(bytes(8), kind=Kind.APPEND, count=0),
        forged(bytes(23), kind=Kind.TOPIC, count=1),
        forged(bytes(16), kind=Kind.TOPIC, bits=1),
        forged(b"\x08" + bytes(7), kind=Kind.TOPIC),
        forged(b"\x01" + bytes(23), kind=Kind.TOPIC),
        forged(b"\xff\xff\xff\xff" + bytes(12), kind=Kind.TOPIC),
        forged(b"", kind=Kind.TOPIC),
        forged(b"", count=(1 << 32) - 1, length=64),
        forged(bytes(8), kind=Kind.TOPIC, length=(1 << 32) - 8),
        forged(bytes(8), kind=Kind.TOPIC, length=0),
        forged(bytes(9), kind=Kind.TOPIC),
    ],
)
def test_a_frame_of_right_checksums_and_wrong_numbers_is_bad(frame: bytes) -> None:
    for end in (len(frame), len(frame) + 16):
        assert isinstance(read_frame(frame + bytes(16), 0, end), Bad)


def corpus() -> list[bytes]:
    """Frames of every kind and shape."""
    rng = random.Random(11)
    made = [encode_control(kind, rng.randbytes(size), topic_id=3, op=9, ts=5) for kind in (2, 5) for size in (0, 7, 40)]
    for count in (1, 1, 2, 3, 8, 17, 64):
        for shape in range(8):
            data = [b'{"n":%d}' % rng.randrange(10**6) for _ in range(count)]
            some = [rng.choice([None, b"", b"tag-%d" % row]) for row in range(count)]
            written = samples.make_rows(
                data,
                tag=some if shape & 1 else None,
                meta=some if shape & 2 else None,
                batch_node=b"n" if shape & 4 else None,
            )
            made.append(encode_block(written, topic_id=1, first_seq=rng.randrange(1, 10**9), ts=77))
    return made


def checked_parts(frame: bytes) -> tuple[bytes, bytes]:
    """All bytes of a frame but its flags: the header, and what the checksum behind it covers."""
    (count,) = unpack_from("<I", frame, 12)
    return frame[:HEAD_BYTES], frame[HEAD_BYTES : len(frame) - count]


def mutated(rng: random.Random, good: list[bytes]) -> bytes:
    """Bytes that once were a frame, or never."""
    frame = bytearray(rng.choice(good))
    match rng.randrange(8):
        case 0:
            for _ in range(rng.randrange(1, 4)):
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        case 1:
            del frame[rng.randrange(len(frame)) :]
        case 2:
            other = rng.choice(good)
            place = rng.randrange(0, min(len(frame), len(other)), rng.choice((1, 8)))
            frame[place:] = other[place:]
        case 3:
            pack_into("<I", frame, rng.choice((4, 12, 56, 60)), rng.choice((0, 1, 7, 1 << 31, rng.getrandbits(32))))
        case 4:
            place = rng.randrange(len(frame))
            frame[place:place] = rng.randbytes(rng.randrange(1, 17))
        case 5:
            pack_into("<I", frame, rng.choice((4, 12)), rng.choice((8, 64, len(frame), rng.getrandbits(32))))
            frame = bytearray(with_header_sum(frame))
        case 6:
            place = rng.randrange(len(frame))
            frame[place : place + rng.randrange(1, 65)] = bytes(rng.randrange(1, 65))
        case _:
            frame = bytearray(rng.randbytes(rng.randrange(200)))
            frame[:4] = MAGIC if rng.randrange(2) else frame[:4]
    return bytes(frame)


def test_a_hundred_thousand_damaged_inputs_raise_nothing_and_invent_nothing() -> None:
    rng = random.Random(20_240_229)
    good = corpus()
    known = set(map(checked_parts, good))
    kept = 0
    for _ in range(100_000):
        buffer = mutated(rng, good)
        start = 0 if rng.randrange(4) else rng.randrange(len(buffer) + 1)
        found = read_frame(buffer, start, len(buffer))
        if not isinstance(found, Frame):
            continue
        kept += 1
        assert checked_parts(buffer[found.start : found.end]) in known
        if found.kind == Kind.APPEND:
            block = Block.read(buffer, found)
            one = read_one(buffer, found)
            if isinstance(block, Block):
                assert one in (None, (block.data(0, 1)[0], (block.tags(0, 1) or [None])[0]))
            else:
                assert one is None
    assert 0 < kept < 20_000
