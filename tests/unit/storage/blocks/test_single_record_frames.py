"""A run of one-record frames is what the frames are one by one, and ends at the first that is anything else."""

from collections.abc import Sequence

import pytest

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.frame import Frame, Kind, encode_control, read_frame
from driftq.storage.blocks.frame_columns import read_one
from driftq.storage.blocks.rows import Rows, Texts
from driftq.storage.blocks.single_record_frames import SingleRecordRun, read_run
from driftq.storage.wal.wal_reader import WalScan

NUMBER, TOPIC = 3, 7
Record = tuple[bytes, bytes | None]
RECORDS: Sequence[Record] = [
    (b"1", None),
    (b'{"a":1}', b"order-1"),
    (b'"' + b"x" * 300 + b'"', b""),
    (b"[12345]", b'needs "escaping"'),
    (b"null", b"eight bi"),
    (b"12345678", None),
]


def frame_of(record: Record, seq: int, *, topic_id: int = TOPIC, synced_to: int = 0) -> bytes:
    data, tag = record
    rows = Rows(Texts.of([data]), tag=None if tag is None else Texts.of([tag]))
    return encode_block(rows, topic_id=topic_id, first_seq=seq, ts=1000 + seq, synced_to=synced_to)


def wal(records: Sequence[Record], first: int = 1) -> bytes:
    return b"".join(frame_of(record, seq) for seq, record in enumerate(records, first))


def run_of(
    buffer: bytes,
    *,
    place: int = 0,
    seq: int = 1,
    rows_max: int = 1024,
    bytes_max: int = 1 << 18,
    topic_id: int = TOPIC,
) -> SingleRecordRun | None:
    return read_run(buffer, place, number=NUMBER, topic_id=topic_id, seq=seq, rows_max=rows_max, bytes_max=bytes_max)


def one_by_one(buffer: bytes) -> list[tuple[Record, int]]:
    """The same by the way of all frames."""
    found: list[tuple[Record, int]] = []
    place = 0
    while True:
        frame = read_frame(buffer, place, len(buffer))
        if not isinstance(frame, Frame) or (one := read_one(buffer, frame)) is None or frame.seq != len(found) + 1:
            return found
        found.append((one, frame.ts))
        place = frame.end


def listed(run: SingleRecordRun | None) -> list[tuple[Record, int]]:
    if run is None:
        return []
    rows = run.rows
    records = []
    for row in range(rows.count):
        data = rows.data[row]
        assert data is not None
        records.append(((data, None if rows.tag is None else rows.tag[row]), run.times[row]))
    return records


@pytest.mark.parametrize("records", [RECORDS, RECORDS[:1], RECORDS[1:4], [RECORDS[0]] * 3])
def test_a_run_is_what_its_frames_are_one_by_one(records: Sequence[Record]) -> None:
    buffer = wal(records)
    for behind in (b"", bytes(500)):
        run = run_of(buffer + behind)
        assert run is not None
        assert run.end == len(buffer)
        assert listed(run) == one_by_one(buffer) == [(record, 1001 + row) for row, record in enumerate(records)]


def test_no_flipped_bit_of_a_frame_gets_into_a_run() -> None:
    buffer = wal(RECORDS)
    for place in range(len(buffer)):
        for bit in (0x01, 0x80):
            bent = buffer[:place] + bytes([buffer[place] ^ bit]) + buffer[place + 1 :]
            assert listed(run_of(bent)) == one_by_one(bent)


def test_a_run_ends_where_the_bytes_do() -> None:
    buffer = wal(RECORDS)
    for size in range(len(buffer)):
        assert listed(run_of(buffer[:size])) == one_by_one(buffer[:size])


def test_a_run_is_of_one_topic_and_has_no_gap() -> None:
    buffer = wal(RECORDS[:2]) + frame_of(RECORDS[2], 4)
    assert len(listed(run_of(buffer))) == 2
    buffer = wal(RECORDS[:2]) + frame_of(RECORDS[2], 3, topic_id=8)
    assert len(listed(run_of(buffer))) == 2
    assert run_of(buffer, topic_id=8) is None
    assert run_of(buffer, seq=2) is None


def test_other_frames_end_a_run() -> None:
    control = encode_control(Kind.HEAD_WATERMARK, b"body", topic_id=TOPIC, op=1, ts=0)
    two = encode_block(Rows(Texts.of([b"1", b"2"])), topic_id=TOPIC, first_seq=3, ts=0)
    keyed = encode_block(Rows(Texts.of([b"1"])), topic_id=TOPIC, first_seq=3, ts=0, key=b"k")
    for other in (control, two, keyed):
        assert len(listed(run_of(wal(RECORDS[:2]) + other + bytes(99)))) == 2


def test_a_run_takes_no_more_than_it_may() -> None:
    buffer = wal(RECORDS)
    assert len(listed(run_of(buffer, rows_max=4))) == 4
    assert run_of(buffer, rows_max=0) is None
    assert len(listed(run_of(buffer, bytes_max=9))) == 3
    assert run_of(buffer, bytes_max=0) is None


def test_a_delete_flag_in_the_wal_is_an_accident() -> None:
    buffer = bytearray(wal(RECORDS[:2]))
    buffer[-1] = 0xD5
    assert len(listed(run_of(bytes(buffer)))) == 2


def test_a_walk_goes_on_behind_a_run_and_has_its_proof() -> None:
    head = frame_of(RECORDS[0], 1)
    middle = frame_of(RECORDS[1], 2, synced_to=NUMBER << 32 | len(head)) + frame_of(
        RECORDS[2], 3, synced_to=(NUMBER - 1) << 32 | 99999
    )
    tail = encode_control(Kind.HEAD_WATERMARK, b"body", topic_id=TOPIC, op=1, ts=0)
    scan = WalScan(head + middle + tail, NUMBER)
    seen = []
    for found in scan:
        assert isinstance(found, Frame)
        seen.append(found.kind)
        if found.kind == Kind.APPEND:
            run = scan.singles(TOPIC, 2, rows_max=9, bytes_max=999)
            assert run is not None
            assert run.rows.count == 2
    assert seen == [Kind.APPEND, Kind.HEAD_WATERMARK]
    assert (scan.end, scan.proven, scan.torn) == (len(head + middle + tail), len(head), False)


def test_rows_of_a_run_are_what_a_block_has() -> None:
    run = run_of(wal(RECORDS))
    assert run is not None
    block = Block.of(encode_block(run.rows, topic_id=TOPIC, first_seq=1, ts=1001, times=run.times))
    assert block.data(0, block.count) == [data for data, _ in RECORDS]
    assert block.tags(0, block.count) == [tag for _, tag in RECORDS]
