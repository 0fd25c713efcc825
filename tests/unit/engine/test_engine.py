"""The whole: opening, closing, one server per directory, and what is put together there."""

import errno

import pytest

from driftq.errors import DataDirLockedError, StartError, TopicNotFoundError
from driftq.model.topic_config import Durability
from driftq.testing import SMALL, EngineRig, FaultyDisk, SimDisk


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


def test_a_second_server_on_the_directory_is_refused_and_changes_nothing(rig: EngineRig) -> None:
    """inv: 85"""
    rig.write("t", 1)
    before = rig.disk.state_digest()
    with pytest.raises(DataDirLockedError, match="/data is in use"):
        EngineRig(disk=rig.disk, clock=rig.clock)
    assert rig.disk.state_digest() == before
    assert rig.write("t", 2).first_seq == 2


def test_a_closed_server_lets_go_of_the_directory(rig: EngineRig) -> None:
    rig.write("t", 1)
    assert rig.close()
    again = EngineRig(disk=rig.disk, clock=rig.clock)
    assert again.seqs("t") == [1]


def test_closing_twice_is_closing_once(rig: EngineRig) -> None:
    rig.write("t", 1)
    first, second = rig.engine.close(), rig.engine.close()
    assert first is second
    rig.runtime.advance(10)
    assert first.result()


def test_a_start_that_fails_lets_go_of_the_directory() -> None:
    disk = SimDisk()
    with pytest.raises(StartError, match="/data cannot be used"):
        EngineRig(disk=disk, wrap=lambda inner: FaultyDisk(inner, fail_at=3))
    EngineRig(disk=disk)


def test_a_graceful_stop_leaves_one_checkpoint_and_no_prepared_files(rig: EngineRig) -> None:
    rig.put("t")
    for _ in range(10):
        rig.write("t", *range(100))
    rig.close()
    assert len(rig.disk.names("/data/meta")) == 1
    before = rig.disk.names("/data/wal")
    rig.start()
    assert rig.engine.recovered.frames == 0
    rig.close()
    assert len(rig.disk.names("/data/wal")) <= len(before)


def test_a_stop_comes_to_its_end_on_a_file_system_that_has_become_read_only() -> None:
    """Nothing can be written or removed any more: no checkpoint is taken, and what was acked is in the log."""
    broken = False
    rig = EngineRig(wrap=lambda disk: FaultyDisk(disk, error=errno.EROFS, forever=True, when=lambda *_: broken))
    rig.put("t")
    for n in range(30):
        rig.write("t", n, "x" * 400)
    assert len(rig.disk.names("/data/wal")) > 1, "a file is prepared"
    broken = True
    assert not rig.close()
    broken = False
    rig.kill()
    assert len(rig.seqs("t")) == 60


def test_reads_never_create(rig: EngineRig) -> None:
    for call in (
        lambda: rig.topic("t"),
        lambda: rig.page("t"),
        lambda: rig.delete("t", before_seq=1),
    ):
        with pytest.raises(TopicNotFoundError):
            call()
    assert list(rig.engine.catalog.visible()) == []


def test_listeners_hear_of_new_records_when_readers_can_see_them(rig: EngineRig) -> None:
    rig.put("t")
    heard: list[int] = []
    rig.engine.listeners.append(lambda topic: heard.append(topic.head))
    rig.hold_wal()
    rig.write_nowait("t", 1, 2)
    rig.runtime.run_until_idle()
    assert heard == []
    rig.release_wal()
    assert heard == [2]


@pytest.mark.parametrize("counts", [(1, 4, 7, 1), (3, 1, 2), (2, 2, 5)])
def test_the_shard_count_may_change_at_any_start(counts: tuple[int, ...]) -> None:
    """inv: 83"""
    rig = EngineRig(wal_shards=counts[0])
    expected: dict[str, list[int]] = {}
    for life, shards in enumerate(counts):
        for number in range(5):
            name = f"t{number}"
            rig.put(name, cap_records=20)
            rig.write(name, *range(life * 10, life * 10 + 7), tags=["x"] * 7)
            rig.delete(name, before_seq=2)
            expected[name] = rig.seqs(name)
        rig.crash(wal_shards=shards)
        assert {name: rig.seqs(name) for name in expected} == expected
    for shards in (1, 3):
        rig.restart(wal_shards=shards)
        assert {name: rig.seqs(name) for name in expected} == expected


def test_reads_are_the_same_with_and_without_a_cold_tier() -> None:
    """inv: 86"""
    answers = []
    for cold in (None, "/cold"):
        rig = EngineRig(cold_dir=cold, hot_retain_segments=0, segment_max_events=8, cache_bytes=1)
        rig.put("t")
        for number in range(20):
            rig.write(
                "t",
                *[f"v{number}.{row}" for row in range(7)],
                tags=[("a", "b", 'q"', None)[row % 4] for row in range(7)],
                nodes=[("n", None)[row % 2] for row in range(7)],
                metas=[(b'{"k":"v"}', None)[row % 2] for row in range(7)],
            )
        rig.checkpoint()
        rig.runtime.advance(6000)
        rig.delete("t", match="a")
        rig.checkpoint()
        rig.delete("t", before_seq=12)
        pages = [rig.walk("t", cursor, limit=limit) for cursor in (0, 5, 60) for limit in (1, 9, 1000)]
        for life in range(2):
            assert rig.seqs("t") == [record["$seq"] for record in pages[2][0]]
            if life:
                rig.restart()
            else:
                rig.crash()
        answers.append(pages)
        if cold:
            assert rig.engine.relocation is not None
            assert any(segment.cold for segment in rig.topic("t").segments)
            assert rig.disk.names("/cold/topics")
    assert answers[0] == answers[1]


def test_deletes_that_come_while_a_segment_moves_are_in_the_cold_copy() -> None:
    rig = EngineRig(cold_dir="/cold", hot_retain_segments=0, segment_max_events=8)
    rig.put("t")
    rig.write("t", *range(32), tags=["a", "b"] * 16)
    rig.checkpoint()
    rig.runtime.hold("driftq-files")
    rig.runtime.advance(6000)
    rig.delete("t", match="a")
    rig.runtime.release("driftq-files")
    rig.runtime.run_until_idle()
    assert all(segment.cold for segment in rig.topic("t").segments if segment.sealed)
    kept = list(range(2, 33, 2))
    assert rig.seqs("t") == kept
    for _ in range(2):
        rig.checkpoint()
        rig.runtime.advance(2000)
        rig.crash()
        assert rig.seqs("t") == kept


def test_a_hot_copy_that_comes_back_does_not_bring_deleted_records_back() -> None:
    """Removing the hot copy is not synced: after a power loss it may be there again, with older flags."""
    rig = EngineRig(cold_dir="/cold", hot_retain_segments=0, segment_max_events=8)
    rig.put("t")
    rig.write("t", *range(8), tags=["a", "b"] * 4)
    rig.checkpoint()
    rig.runtime.advance(6000)
    assert rig.topic("t").segments[0].cold
    rig.delete("t", match="a")
    rig.checkpoint()
    rig.runtime.run_until_idle()
    rig.checkpoint()
    rig.crash()
    assert rig.seqs("t") == [2, 4, 6, 8]


def test_a_segment_moves_only_when_the_checkpoint_names_it_whole() -> None:
    """A checkpoint that names the first blocks of an active segment counts on its hot file."""
    rig = EngineRig(cold_dir="/cold", hot_retain_segments=0, segment_max_events=300, checkpoint_interval_ms=1 << 40)
    rig.put("t")
    rig.write("t", *range(256))
    rig.checkpoint()
    rig.write("t", *range(44))
    rig.runtime.advance(6000)
    rig.kill()
    assert (rig.topic("t").count, rig.topic("t").holes.all) == (300, [])
    rig.checkpoint()
    rig.runtime.advance(6000)
    assert rig.topic("t").segments[0].cold
    rig.kill()
    assert (rig.topic("t").count, rig.topic("t").holes.all) == (300, [])


def test_segments_go_by_age_too() -> None:
    rig = EngineRig(segment_max_age_ms=5000)
    rig.put("t")
    rig.write("t", 1)
    rig.runtime.advance(3000)
    assert not rig.topic("t").segments[0].sealed
    rig.runtime.advance(3000)
    assert rig.topic("t").segments[0].sealed


def test_segments_go_by_bytes_too() -> None:
    rig = EngineRig(segment_max_bytes=1000, segment_max_events=10_000)
    rig.put("t")
    for _ in range(4):
        rig.write("t", b'"%b"' % (b"x" * 400))
    assert len(rig.topic("t").segments) == 2


def test_settings_of_a_small_server_are_small() -> None:
    assert (SMALL.wal_file_bytes, SMALL.segment_max_events) == (16 << 10, 16)


def test_ephemeral_records_end_with_the_process_and_the_head_is_that_of_the_last_checkpoint(rig: EngineRig) -> None:
    rig.put("t", Durability.EPHEMERAL, cap_records=100)
    rig.write("t", *range(30))
    rig.checkpoint()
    rig.write("t", *range(5))
    rig.crash()
    topic = rig.topic("t")
    assert (topic.head, topic.count, topic.config.cap_records) == (30, 0, 100)
    assert rig.walk("t") == ([], [])
    assert rig.write("t", 1).first_seq == 31
