"""The index of partitions after a start: the same as before it, read from no payload of a sealed segment."""

import random
from collections import Counter
from typing import Any

import pytest
from msgspec import structs

from driftq.features.broker.state.message_index import Index
from driftq.system.disk import write_fully
from driftq.testing.engine_rig import SMALL
from driftq.testing.simulated_disk import SimDisk, SimFile
from tests.unit.features.broker.rig import BrokerRig

PARTITIONS = 8
MESSAGES = 160


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes that were read, by the suffix of the file."""
    counted: Counter[str] = Counter()
    pread, nowait = SimFile.pread, SimFile.pread_nowait

    def note(file: SimFile, content: bytes | None) -> bytes | None:
        counted[file._path.rpartition(".")[2]] += len(content or b"")
        return content

    monkeypatch.setattr(SimFile, "pread", lambda file, size, offset: note(file, pread(file, size, offset)))
    monkeypatch.setattr(SimFile, "pread_nowait", lambda file, size, offset: note(file, nowait(file, size, offset)))
    return counted


def _filled(size: int, *, partitions: int = PARTITIONS, **changes: Any) -> BrokerRig:
    """A topic whose messages are in sealed segments, all but the newest few."""
    rig = BrokerRig(settings=structs.replace(SMALL, wal_file_bytes=1 << 20, **changes))
    rig.create("t", partitions)
    rng = random.Random(size)
    for number in range(MESSAGES):
        rig.produce(rng.randbytes(size // 2).hex(), partition_override=(number * 7 + number // 11) % partitions)
    return rig


def _index(rig: BrokerRig) -> Index:
    return rig.broker.broker_state.by_name["t"].index


def _found(rig: BrokerRig) -> list[int | None]:
    index = _index(rig)
    found = [index.partition_at(offset) for offset in range(index.start, index.head)]
    for number in range(len(index.parts)):
        offsets = [index.start + place for place, partition in enumerate(found) if partition == number]
        assert index.last(number) == max(offsets, default=-1)
        at: int | None = -1
        for offset in offsets:
            at = index.at_or_after(number, offset if at is None else at + 1)
            assert at == offset
    return found


def _start_bytes(rig: BrokerRig, read: Counter[str]) -> Counter[str]:
    rig.broker.close()
    assert rig.engine_rig.close()
    read.clear()
    rig.engine_rig.start()
    rig._open()
    return Counter(read)


@pytest.mark.parametrize("cold", [False, True])
def test_a_start_reads_as_many_bytes_of_sealed_segments_whatever_the_size_of_messages(
    cold: bool, read: Counter[str]
) -> None:
    """proves: G-GROUP-6"""
    tier: dict[str, Any] = {"cold_dir": "/cold", "hot_retain_segments": 0} if cold else {}
    small, large = _filled(12_000, **tier), _filled(24_000, **tier)
    for rig in (small, large):
        rig.advance(120_000)
        sealed = [segment for segment in rig.broker.broker_state.by_name["t"].log.segments if segment.sealed]
        assert len(sealed) == MESSAGES // SMALL.segment_max_events
        assert all(segment.cold == cold for segment in sealed)
    before = _found(small)
    few, many = _start_bytes(small, read), _start_bytes(large, read)
    assert (_found(small), _found(large)) == (before, before)
    del few["log"], many["log"]
    assert few["data"] == many["data"]
    assert sum(many.values()) < sum(few.values()) + 1000
    assert bool(many["parquet"]) == cold


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("partitions", [2, 8, 300])
def test_the_index_after_a_start_is_that_of_before(cold: bool, partitions: int) -> None:
    tier: dict[str, Any] = {"cold_dir": "/cold", "hot_retain_segments": 3} if cold else {}
    rig = _filled(10, partitions=partitions, **tier)
    rig.advance(120_000)
    before, totals = _found(rig), [(part.count, part.size) for part in _index(rig).parts]
    rig.restart()
    assert _found(rig) == before
    assert [(part.count, part.size) for part in _index(rig).parts] == totals
    rig.crash()
    assert _found(rig) == before
    assert [(part.count, part.size) for part in _index(rig).parts] == totals


def _files(disk: SimDisk, suffix: str) -> list[str]:
    return [
        f"/data/topics/{topic}/{name}"
        for topic in disk.names("/data/topics")
        for name in disk.names(f"/data/topics/{topic}")
        if name.endswith(suffix)
    ]


@pytest.mark.parametrize("harm", ["gone", "torn", "of another segment"])
def test_a_tag_index_that_is_not_to_be_had_is_made_up_for_by_the_blocks(harm: str) -> None:
    rig = _filled(10)
    before = _found(rig)
    rig.broker.close()
    assert rig.engine_rig.close()
    disk = rig.engine_rig.disk
    first, second, *_ = _files(disk, ".tags")
    if harm == "gone":
        disk.unlink(first)
    elif harm == "torn":
        write_fully(disk.open(first), [b"\0" * 16], 20)
    else:
        other = disk.open(second)
        content = other.pread(other.size() - 40, 0)
        write_fully(disk.create(first), [content], 0)
    rig.engine_rig.start()
    rig._open()
    assert _found(rig) == before


def test_messages_of_a_block_that_is_damaged_are_passed_over_and_the_others_come() -> None:
    rig = _filled(10)
    before = _found(rig)
    rig.broker.close()
    assert rig.engine_rig.close()
    disk = rig.engine_rig.disk
    data = disk.open(_files(disk, ".data")[0])
    write_fully(data, [b"\xff" * 8], 60)
    for _ in range(2):
        rig.engine_rig.start()
        rig._open()
        consumer = rig.consume(lease_ms=60_000, credit=0)
        got = {delivery.offset for delivery in consumer.take()}
        (hole,) = rig.engine_rig.topic("@t").holes.all
        assert got == set(range(len(before))) - set(range(hole.first - 1, hole.last))
        consumer.close()
        rig.broker.close()
        assert rig.engine_rig.close()
