"""Arrow streams that somebody changed: each one is a write or a refusal, and none ends the process that reads it."""

import random
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pyarrow as pa

from driftq.codec.arrow_columns import read_texts
from driftq.errors import BatchTooLargeError, InvalidRequestError
from tests.support.process import environment

STREAMS = 100_000
SEED = 15
ROWS_MAX = 50
COLUMNS = frozenset(("data", "tag", "node", "meta"))
NUMBERS = (0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1)


def stream(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=2)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def originals() -> list[bytes]:
    """Streams of every shape that a client sends, good ones and others."""
    texts = ["1", '"é"', "[2]"]
    plain = pa.table({"data": texts, "tag": ["a", None, "c"]})
    batch = plain.to_batches()[0]
    return [
        stream(plain),
        stream(plain.cast(pa.schema([("data", pa.large_utf8()), ("tag", pa.large_utf8())]))),
        stream(pa.table({"data": texts, "node": pa.nulls(3), "meta": ['{"k":"v"}', None, None]})),
        stream(plain, use_legacy_format=True),
        stream(plain, compression="lz4"),
        stream(pa.table({"data": pa.array(texts).dictionary_encode()})),
        stream(pa.table({"data": [[1], [2, 3], []]})),
        stream(pa.table({"data": texts}).slice(1)),
        batch.schema.serialize().to_pybytes(),
        batch.serialize().to_pybytes(),
        pa.record_batch({"data": [1]}).serialize().to_pybytes(),
    ]


def changed(dice: random.Random, bodies: list[bytes]) -> bytes:
    """One of the bodies with one to four changes."""
    body = bytearray(dice.choice(bodies))
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        place = dice.randrange(len(body) + 1)
        way = dice.randrange(8)
        if way < 3 and place < len(body):
            body[place] = dice.randrange(256)
        elif way < 6:
            size = dice.choice((2, 4, 8))
            place -= place % size
            body[place : place + size] = (dice.choice(NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif way == 6:
            del body[place : place + dice.choice((1, 4, 8, 64, len(body)))]
        else:
            other = dice.choice(bodies)
            first = dice.randrange(0, len(other), 8)
            body[place:place] = other[first : first + dice.choice((8, 64, len(other)))]
    return bytes(body)


def checked(body: bytes) -> bool:
    """Whether the stream is a write; what was read is then complete and valid."""
    try:
        columns, rows = read_texts(body, COLUMNS, ROWS_MAX)
    except (InvalidRequestError, BatchTooLargeError):
        return False
    assert 0 <= rows <= ROWS_MAX
    for column in columns.values():
        offsets = list(column.offsets)
        assert len(offsets) == rows + 1
        assert offsets == sorted(offsets)
        assert (offsets[0], offsets[-1]) == (0, len(column.data))
        for first, last in pairwise(offsets):
            column.data[first:last].decode()
    return True


def fuzz(streams: int, seed: int) -> tuple[int, int]:
    """How many of the changed streams were writes, and how many were refused."""
    dice, bodies = random.Random(seed), originals()
    good = sum(checked(changed(dice, bodies)) for _ in range(streams))
    return good, streams - good


def test_no_changed_stream_ends_the_process() -> None:
    """proves: G-IN-1"""
    script = f"from tests.property.test_arrow_fuzz import fuzz; print(*fuzz({STREAMS}, {SEED}))"
    child = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert child.returncode == 0, child.stderr[-2000:]
    good, refused = map(int, child.stdout.split())
    assert good + refused == STREAMS
    assert good > STREAMS // 20, "too few streams reach the columns"
    assert refused > STREAMS // 4
