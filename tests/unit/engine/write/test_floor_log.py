"""Floors over records that no log has are logged, one frame at a time, for as long as there are such records."""

from typing import Any

import pytest

from driftq.engine.state.control_frames import FloorsBody, decode_body
from driftq.engine.write.change_log import ChangeLog
from driftq.errors import ThrottledError
from driftq.model.topic_config import Durability
from driftq.storage.blocks.frame import Frame, Kind, control_body
from driftq.storage.wal.group_commit import Shard
from driftq.storage.wal.wal_head import read_wal_head
from driftq.storage.wal.wal_reader import scan_of
from driftq.system.disk import Disk, read_file
from driftq.testing import EngineRig, FaultyDisk


@pytest.fixture
def rig() -> EngineRig:
    """Eight records of an `ephemeral` time in a topic that keeps ten."""
    rig = EngineRig()
    rig.put("t", Durability.EPHEMERAL)
    rig.write("t", *range(8))
    rig.put("t", Durability.FSYNC, cap_records=10)
    return rig


def logged(rig: EngineRig) -> list[int]:
    """`cap_lost` of every logged floor."""
    return [
        decode_body(FloorsBody, control_body(content, frame)).cap_lost
        for path in sorted(rig.disk.names("/data/wal"))
        for content in [read_file(rig.disk, f"/data/wal/{path}")]
        for frame in scan_of(content, 1, read_wal_head(content))
        if isinstance(frame, Frame) and frame.kind == Kind.FLOORS
    ]


def test_a_move_is_logged_until_the_last_of_them_is_gone(rig: EngineRig) -> None:
    """proves: G-TOMB-6"""
    rig.write("t", *range(2))
    assert logged(rig) == []
    rig.write("t", *range(3))
    assert logged(rig) == [3]
    rig.write("t", *range(5))
    assert logged(rig) == [3, 8]
    rig.write("t", *range(5))
    assert (logged(rig), rig.topic("t").cap_lost, rig.topic("t").mixed_to) == ([3, 8], 13, 0)


def test_moves_while_one_is_under_way_are_logged_together_behind_it(rig: EngineRig) -> None:
    """proves: G-TOMB-6"""
    rig.put("t", Durability.DISK, cap_records=10)
    rig.write("t", *range(2))
    rig.hold_wal()
    for _ in range(3):
        rig.write("t", 1)
    assert rig.topic("t").cap_lost == 3
    rig.release_wal()
    assert logged(rig) == [1, 3]


def test_a_full_queue_only_delays_it(rig: EngineRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """proves: G-TOMB-6"""
    rig.write("t", *range(2))
    full = iter([ThrottledError("full", retry_after_ms=1)])
    control = ChangeLog.control

    def refuse_once(change_log: ChangeLog, *args: Any, **options: Any) -> Any:
        for error in full:
            raise error
        return control(change_log, *args, **options)

    monkeypatch.setattr(ChangeLog, "control", refuse_once)
    rig.write("t", *range(1))
    assert logged(rig) == []
    rig.write("t", *range(1))
    assert logged(rig) == [1, 2]


def test_an_ephemeral_topic_logs_what_goes_of_its_other_time() -> None:
    """proves: G-TOMB-6"""
    rig = EngineRig()
    rig.put("t", Durability.FSYNC, cap_records=4)
    rig.write("t", *range(4))
    rig.put("t", Durability.EPHEMERAL, cap_records=4)
    rig.write("t", *range(3))
    rig.write("t", *range(3))
    rig.write("t", *range(3))
    assert (logged(rig), rig.topic("t").cap_lost) == ([3, 4], 9)


def pushed_out() -> EngineRig:
    """An `ephemeral` topic, full of records of another class."""
    rig = EngineRig(wal_shards=2)
    rig.put("t", Durability.FSYNC, cap_records=4)
    rig.write("t", *range(4))
    rig.put("t", Durability.EPHEMERAL, cap_records=4)
    rig.put("healthy", Durability.FSYNC)
    return rig


def test_a_stopped_log_holds_up_nobody() -> None:
    """proves: G-IO-1"""
    rig = pushed_out()
    rig.engine.change_log.shard_of(rig.topic("t")).stop("a sync failed")
    assert rig.write("t", 1).first_seq == 5
    assert rig.write("healthy", 1).first_seq == 1
    assert rig.write("t", 1).first_seq == 6


def test_a_log_that_fails_for_a_moment_hears_of_it_later() -> None:
    """proves: G-TOMB-6"""
    broken = False
    faulty: list[FaultyDisk] = []

    def wrap(disk: Disk) -> Disk:
        faulty.append(FaultyDisk(disk, when=lambda call, path: broken and call == "pwritev" and "/wal/" in path))
        return faulty[0] if len(faulty) == 1 else disk

    rig = EngineRig(wrap=wrap)
    rig.put("t", Durability.FSYNC, cap_records=4)
    rig.write("t", *range(4))
    rig.put("t", Durability.EPHEMERAL, cap_records=4)
    broken = True
    rig.write("t", *range(4))
    assert faulty[0].failed
    broken = False
    rig.runtime.advance(100)
    rig.crash()
    assert (rig.seqs("t"), rig.topic("t").evict_floor) == ([], 5)


def test_a_full_queue_without_another_write_only_delays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """proves: G-TOMB-6"""
    rig = pushed_out()
    full = True
    monkeypatch.setattr(Shard, "has_room", property(lambda shard: not full))
    rig.write("t", *range(4))
    full = False
    rig.runtime.advance(100)
    rig.crash()
    assert (rig.seqs("t"), rig.topic("t").evict_floor) == ([], 5)
