"""A torn tail is not a damaged middle: what a walk over a WAL file's bytes says (http-v0 §19.2)."""

import random

import pytest
from xxhash import xxh3_64_intdigest

from driftq.errors import NewerFormatError
from driftq.storage.blocks.frame import Frame, Kind, encode_control
from driftq.storage.wal.wal_reader import Damage, WalScan

NUMBER = 3


def frames(count: int, *, synced: bool) -> tuple[bytes, list[int]]:
    """Frames back to back and where each begins; each says, when `synced`, that all before it was synced."""
    content = b""
    starts = []
    for op in range(count):
        starts.append(len(content))
        at = NUMBER << 32 | len(content) if synced else 0
        content += encode_control(Kind.DELETE, b"%d" % op * (op + 1), topic_id=1, op=op, ts=0, synced_to=at)
    return content, starts


def walked(content: bytes, **options: int) -> tuple[list[int], list[Damage], WalScan]:
    scan = WalScan(content, NUMBER, **options)
    found = list(scan)
    return (
        [frame.seq for frame in found if isinstance(frame, Frame)],
        [damage for damage in found if isinstance(damage, Damage)],
        scan,
    )


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0x40]) + content[place + 1 :]


def test_a_whole_file_ends_where_its_zeros_begin() -> None:
    content, _ = frames(5, synced=False)
    ops, damage, scan = walked(content + bytes(500))
    assert (ops, damage, scan.end, scan.torn) == ([0, 1, 2, 3, 4], [], len(content), False)


def test_a_walk_may_begin_in_the_middle() -> None:
    content, starts = frames(5, synced=False)
    assert walked(content, start=starts[3])[0] == [3, 4]


@pytest.mark.parametrize("cut", range(0, 120, 8))
def test_a_torn_last_frame_is_cut(cut: int) -> None:
    content, starts = frames(5, synced=True)
    torn = content[: starts[4] + cut] + bytes(200)
    ops, damage, scan = walked(torn)
    if starts[4] + cut < len(content):
        assert (ops, damage, scan.end) == ([0, 1, 2, 3], [], starts[4])
        assert scan.torn == (cut > 0)
    else:
        assert ops == [0, 1, 2, 3, 4]


def test_pieces_behind_a_bad_place_do_not_count_when_nothing_says_it_was_synced() -> None:
    content, starts = frames(6, synced=False)
    ops, damage, scan = walked(flipped(content, starts[2] + 60))
    assert (ops, damage, scan.end, scan.torn) == ([0, 1], [], starts[2], True)


def test_a_damaged_frame_that_was_synced_costs_itself_and_tells_whose_it_was() -> None:
    content, starts = frames(6, synced=True)
    ops, damage, scan = walked(flipped(content, starts[2] + 66))
    assert (ops, scan.end, scan.torn) == ([0, 1, 3, 4, 5], len(content), False)
    (found,) = damage
    assert (found.start, found.end) == (starts[2], starts[3])
    assert found.header is not None
    assert (found.header.topic_id, found.header.seq) == (1, 2)


def test_a_damaged_header_costs_its_frame_and_does_not_tell_whose_it_was() -> None:
    content, starts = frames(6, synced=True)
    ops, damage, _ = walked(flipped(content, starts[2] + 20))
    assert ops == [0, 1, 3, 4, 5]
    assert [(found.start, found.end, found.header) for found in damage] == [(starts[2], starts[3], None)]


def test_a_torn_tail_right_behind_damage_does_not_hide_it() -> None:
    """What was synced is damage up to where the synced bytes end, though no sound frame begins there."""
    content, starts = frames(3, synced=False)
    torn = len(content)
    for op in (3, 4):
        content += encode_control(Kind.DELETE, b"late", topic_id=1, op=op, ts=0, synced_to=NUMBER << 32 | torn)
    ops, damage, scan = walked(flipped(flipped(content, starts[2] + 20), torn + 66))
    assert (ops, scan.end, scan.torn) == ([0, 1], torn, True)
    assert [(found.start, found.end, found.header) for found in damage] == [(starts[2], torn, None)]


def test_a_later_file_proves_that_this_one_was_synced() -> None:
    content, starts = frames(6, synced=False)
    ops, damage, _ = walked(flipped(content, starts[5] + 66), synced_end=len(content))
    assert (ops, len(damage)) == ([0, 1, 2, 3, 4], 1)


def test_what_another_file_says_about_itself_proves_nothing_here() -> None:
    content, starts = frames(4, synced=False)
    other = encode_control(Kind.DELETE, b"", topic_id=1, op=9, ts=0, synced_to=(NUMBER + 1) << 32 | 10_000)
    ops, damage, _ = walked(flipped(content, starts[3] + 66) + other)
    assert (ops, damage) == ([0, 1, 2], [])


def test_a_frame_of_a_newer_version_stops_the_walk() -> None:
    content, starts = frames(3, synced=True)
    newer = bytearray(content[starts[1] : starts[2]])
    newer[3] = 2
    newer[48:56] = xxh3_64_intdigest(bytes(newer[:48])).to_bytes(8, "little")
    with pytest.raises(NewerFormatError, match="version 2"):
        walked(content[: starts[1]] + bytes(newer) + content[starts[2] :])


@pytest.mark.parametrize("seed", range(200))
def test_whatever_the_damage_nothing_is_invented_and_what_is_sound_and_synced_is_found(seed: int) -> None:
    rng = random.Random(seed)
    content, starts = frames(rng.randint(1, 8), synced=True)
    ends = [*starts[1:], len(content)]
    damaged = bytearray(content + bytes(rng.choice((0, 64, 300))))
    places = [rng.randrange(len(content)) for _ in range(rng.randint(1, 4))]
    for place in places:
        damaged[place] ^= rng.randint(1, 255)
    try:
        ops, _, scan = walked(bytes(damaged))
    except NewerFormatError:
        return
    hit = {op for op, (start, end) in enumerate(zip(starts, ends, strict=True)) for p in places if start <= p < end}
    intact = [op for op in range(len(starts)) if op not in hit]
    assert set(ops) <= set(intact)
    assert ops == sorted(ops)
    if intact:
        # What the last intact frame says was synced is found, whatever happened before it.
        assert [op for op in intact if ends[op] <= starts[intact[-1]]] == [op for op in ops if op != intact[-1]]
    assert scan.end <= len(damaged)
