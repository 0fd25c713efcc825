"""The packed column of partitions, against a plain list."""

import random
import sys

import pytest

from driftq.features.broker.state.partition_column import CHUNK, PartitionColumn


class _Plain:
    """What it packs."""

    def __init__(self) -> None:
        self.rows: list[int | None] = []
        self.start = 0

    def at_or_after(self, partition: int, offset: int) -> int | None:
        rows = range(max(offset, self.start), len(self.rows))
        return next((at for at in rows if self.rows[at] == partition), None)


@pytest.mark.parametrize(("partitions", "count"), [(2, 3 * CHUNK + 5), (16, 2 * CHUNK), (300, CHUNK + 77)])
def test_it_knows_what_a_list_of_them_knows(partitions: int, count: int) -> None:
    rng = random.Random(partitions)
    partition_column, plain = PartitionColumn(partitions), _Plain()
    while len(plain.rows) < count:
        if rng.random() < 0.1:
            plain.rows.extend([None] * rng.randrange(1, 50))
        elif rng.random() < 0.5:
            partition = rng.randrange(partitions)
            partition_column.add(partition, len(plain.rows))
            plain.rows.append(partition)
        else:
            some = [rng.randrange(partitions) for _ in range(rng.randrange(1, 900))]
            partition_column.extend(len(plain.rows), some)
            plain.rows.extend(some)
    for _ in range(300):
        partition, offset = rng.randrange(partitions), rng.randrange(len(plain.rows) + 10)
        assert partition_column.at_or_after(partition, offset) == plain.at_or_after(partition, offset)
        expected = plain.rows[offset] if offset < len(plain.rows) else None
        assert partition_column.partition_at(offset) == expected
    for partition in range(partitions):
        lasts = [offset for offset, row in enumerate(plain.rows) if row == partition]
        assert partition_column.last(partition) == max(lasts, default=-1)


def test_a_long_way_without_a_message_of_a_partition_is_found_over() -> None:
    partition_column = PartitionColumn(3)
    partition_column.add(2, 0)
    far = 600 * CHUNK
    partition_column.extend(1, [0] * (far - 1))
    partition_column.add(2, far)
    assert partition_column.at_or_after(2, 1) == far
    assert partition_column.at_or_after(1, 0) is None
    assert partition_column.at_or_after(2, far + 1) is None


def test_what_is_trimmed_is_not_found_and_takes_no_room() -> None:
    partition_column = PartitionColumn(2)
    partition_column.extend(0, [0, 1] * (5 * CHUNK))
    start = 7 * CHUNK + 10
    partition_column.trim(start)
    assert partition_column.at_or_after(0, start) == start
    assert partition_column.partition_at(start - CHUNK) is None
    assert len(partition_column._sealed) == 3
    assert partition_column.head == 10 * CHUNK


def test_it_may_begin_anywhere() -> None:
    partition_column = PartitionColumn(2)
    partition_column.add(1, 5 * CHUNK + 3)
    assert partition_column.at_or_after(1, 0) == 5 * CHUNK + 3
    assert partition_column.partition_at(5 * CHUNK + 2) is None
    assert partition_column.partition_at(3) is None


@pytest.mark.parametrize(("partitions", "bytes_max"), [(3, 0.35), (16, 0.6)])
def test_a_message_takes_less_than_a_byte(partitions: int, bytes_max: float) -> None:
    rng = random.Random(1)
    partition_column, count = PartitionColumn(partitions), 50 * CHUNK
    partition_column.extend(0, [rng.randrange(partitions) for _ in range(count)])
    size = sum(
        map(
            sys.getsizeof,
            (
                *partition_column._sealed,
                *partition_column._masks,
                partition_column._sealed,
                partition_column._masks,
                partition_column._spans,
            ),
        )
    )
    assert size / count < bytes_max
