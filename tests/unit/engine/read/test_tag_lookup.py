"""Records are found by tag wherever they are: open block, closed blocks, sealed segments, cold tier."""

import pytest

from driftq.engine.read.tag_lookup import Match, find_tagged
from driftq.model.topic_config import Durability
from driftq.testing import CrashMode, EngineRig

TAGS = ["a", "a:1", "a:2", "b", 'q"uote', "é", None, "", "long common prefix 1", "long common prefix 2\0"]


def tagged(count: int) -> list[str | None]:
    return [TAGS[row % len(TAGS)] for row in range(count)]


def found(rig: EngineRig, match: Match) -> list[int]:
    """Seqs of all rows that match."""
    topic = rig.topic("t")
    parts = find_tagged(topic, rig.engine.indexes, match, topic.head + 1)
    return [part.first_seq + row for part, rows in parts for row in rows]


def expected(count: int, match: Match) -> list[int]:
    tags = [None if tag is None else tag.encode() for tag in tagged(count)]
    return [row + 1 for row, tag in enumerate(tags) if match.fits(tag)]


MATCHES = [
    Match(b"a", False),
    Match(b"a", True),
    Match(b"a:", True),
    Match(b"", False),
    Match(b"", True),
    Match(b'q"uote', False),
    Match("é".encode(), True),
    Match(b"long common prefix", True),
    Match(b"long common prefix 2", False),
    Match(b"long common prefix 2\0", False),
    Match(b"nothing", False),
    Match(b"zz", True),
]


def placed(where: str) -> tuple[EngineRig, int]:
    """An engine with tagged records in one place."""
    settings: dict[str, object] = {"segment_max_events": 30}
    if where == "open":
        settings["segment_max_events"] = 10_000
    if where == "cold":
        settings |= {"cold_dir": "/cold", "hot_retain_segments": 0}
    rig = EngineRig(**settings)  # type: ignore[arg-type]
    rig.put("t", Durability.EPHEMERAL if where == "ephemeral" else Durability.FSYNC)
    if where == "unsealed":
        for worker in ("driftq-files", "driftq-blocks"):
            rig.runtime.hold(worker)
    count = 20 if where == "open" else 100
    for start in range(0, count, 10):
        rig.write("t", *range(10), tags=tagged(10)[:10])
        assert start >= 0
    if where == "cold":
        rig.checkpoint()
        rig.runtime.advance(6000)
        assert rig.engine.relocation is not None
        assert rig.engine.relocation.moved > 0
    return rig, count


@pytest.mark.parametrize("where", ["open", "unsealed", "sealed", "cold", "ephemeral"])
def test_exact_and_prefix_wherever_the_records_are(where: str) -> None:
    rig, count = placed(where)
    for match in MATCHES:
        assert found(rig, match) == expected(count, match), match


@pytest.mark.parametrize("where", ["sealed", "cold"])
def test_an_index_that_is_missing_or_damaged_is_made_again(where: str) -> None:
    rig, count = placed(where)
    topic = rig.topic("t")
    for segment in topic.segments:
        rig.engine.indexes.forget(segment)
        path = f"/data/topics/{topic.id:08X}/seg-{segment.first_seq:016}.tags"
        if rig.disk.exists(path):
            file = rig.disk.open(path)
            file.pwritev([b"\xff"], 50)
            file.close()
    for match in MATCHES:
        assert found(rig, match) == expected(count, match), match


def test_nothing_at_or_above_the_bound_is_found() -> None:
    rig, _ = placed("sealed")
    topic = rig.topic("t")
    parts = find_tagged(topic, rig.engine.indexes, Match(b"a", False), 42)
    assert [part.first_seq + row for part, rows in parts for row in rows] == [1, 11, 21, 31, 41]


def test_a_gap_in_the_seqs_of_a_segment_does_not_confuse_its_index() -> None:
    rig = EngineRig(segment_max_events=1000)
    rig.put("t", Durability.DISK)
    rig.write("t", 1, 2, tags=["a", "b"])
    rig.runtime.advance(20)
    rig.checkpoint()
    rig.crash()
    rig.write("t", 3, 4, tags=["a", "c"])
    rig.topic("t").seal_active()
    rig.engine.segment_files.changed(rig.topic("t"))
    rig.runtime.run_until_idle()
    assert found(rig, Match(b"a", False)) == [1, 259]
    assert found(rig, Match(b"c", False)) == [260]


def test_tags_of_records_that_a_crash_took_are_not_those_of_the_ones_that_came_after() -> None:
    """A segment is sealed, its last records are lost, others take their seqs, it is sealed again, and power goes."""
    rig = EngineRig(segment_max_events=300)
    rig.put("t", Durability.MEMORY)
    rig.write("t", *range(256), tags=["kept"] * 256)
    rig.runtime.advance(20)
    rig.checkpoint()
    rig.hold_wal()
    rig.write("t", *range(44), tags=["lost"] * 44)
    assert rig.disk.exists(f"/data/topics/{rig.topic('t').id:08X}/seg-{1:016}.tags")
    rig.crash(CrashMode.KEEP)
    assert rig.topic("t").head == 256
    rig.write("t", *range(44), tags=["new"] * 44)
    rig.runtime.advance(20)
    rig.checkpoint()
    rig.crash(CrashMode.DROP)
    assert rig.topic("t").count == 300
    assert rig.delete("t", match="lost").deleted == 0
    assert rig.delete("t", match="new").deleted == 44


def test_a_small_budget_keeps_one_index_and_answers_the_same() -> None:
    rig = EngineRig(segment_max_events=10, cache_bytes=1)
    rig.put("t")
    for _ in range(10):
        rig.write("t", *range(10), tags=tagged(10))
    for _ in range(2):
        assert found(rig, Match(b"a", False)) == expected(100, Match(b"a", False))
