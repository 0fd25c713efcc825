"""Crashes while caps and TTL take records, and clocks that go back."""

import pytest

from driftq.model.tombstone import Reason
from driftq.testing import CrashMode
from tests.crash import scenarios
from tests.crash.sweep import run_and_sweep
from tests.crash.world import World

pytestmark = pytest.mark.crash


def test_a_crash_at_any_call_leaves_floors_where_readers_saw_them() -> None:
    """proves: G-TOMB-1, G-TOMB-6, G-TOMB-7, G-SEG-3, G-DEL-3, G-REC-1, G-REC-2"""
    run_and_sweep("retention", scenarios.retention)


@pytest.mark.parametrize("wait_ms", [20, 500, 995, 1003, 1008, 1500, 2005, 2999])
@pytest.mark.parametrize("mode", CrashMode)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_was_seen_expired_stays_so_with_the_clock_set_back(
    wait_ms: int, mode: CrashMode, *, checkpointed: bool
) -> None:
    """proves: G-TOMB-6, G-TOMB-7, G-SEQ-3"""
    world = World().start()
    began = world.clock.wall_ms()
    world.advance(7)
    world.put("aging", "fsync", ttl_ms=5)
    world.settle()
    world.append("aging", 2)
    world.settle()
    if checkpointed:
        world.advance(wait_ms // 2)
        world.checkpoint()
        world.append("aging", 2)
        world.advance(wait_ms - wait_ms // 2)
    else:
        world.advance(wait_ms - 6)
        world.append("aging", 2)
        world.advance(6)
    assert not world.read("aging").records
    world.clock.set_wall(began - 3_600_000)
    world.crash(mode, 1)
    world.judge()
    assert not world.read("aging").records
    assert [t.reason for t in world.read("aging").tombstones] == [Reason.TTL]
    world.append("aging", 1)
    world.settle()
    world.crash(mode, 2)
    world.judge()


def test_a_start_long_behind_is_noted_before_the_clock_can_go_back() -> None:
    """What a new process finds expired stays so, though its own life was short.

    proves: G-TOMB-6
    """
    world = World().start()
    world.put("aging", "fsync", ttl_ms=60_000)
    world.settle()
    world.append("aging", 2)
    world.settle()
    began = world.clock.wall_ms()
    world.clock.advance(3_600_000)
    world.kill()
    assert not world.read("aging").records
    world.advance(20)
    world.look("aging")
    world.clock.set_wall(began)
    world.crash(CrashMode.DROP)
    world.judge()
    assert not world.read("aging").records


def test_restarts_in_a_row_do_not_push_the_time_ahead() -> None:
    """proves: G-REC-2"""
    world = World().start()
    world.put("aging", "fsync", ttl_ms=60_000)
    world.settle()
    world.append("aging", 1)
    world.settle()
    for _ in range(100):
        world.advance(20)
        world.kill()
    assert world.engine.time.now() - world.clock.wall_ms() <= 2000
    world.judge()


@pytest.mark.parametrize("mode", CrashMode)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_reason_of_a_loss_survives(mode: CrashMode, *, checkpointed: bool) -> None:
    """proves: G-TOMB-1, G-TOMB-6"""
    world = World().start(segment_max_events=5)
    world.put("cap", "fsync", cap_records=4)
    world.put("ttl", "fsync", ttl_ms=1000)
    world.put("mixed", "fsync", ttl_ms=1000, cap_records=4)
    world.settle()
    for _ in range(3):
        for name in ("cap", "ttl", "mixed"):
            world.append(name, 3)
        world.advance(600)
    if checkpointed:
        world.checkpoint()
    for _ in range(2):
        world.crash(mode, 1)
        world.judge()
        for name in ("cap", "ttl", "mixed"):
            assert [t.reason for t in world.read(name).tombstones] == [Reason(name)]


@pytest.mark.parametrize("mode", CrashMode)
def test_a_relaxed_cap_brings_nothing_back(mode: CrashMode) -> None:
    """proves: G-TOMB-7"""
    world = World().start(segment_max_events=100)
    world.put("cap", "fsync", cap_records=4)
    world.put("size", "fsync", cap_bytes=30)
    world.put("ttl", "fsync", ttl_ms=1000)
    world.settle()
    for name in ("cap", "size", "ttl"):
        world.append(name, 9)
    world.advance(1500)
    for name in ("cap", "size", "ttl"):
        world.put(name, "fsync")
    world.settle()
    kept = {name: world.read(name).records for name in ("cap", "size", "ttl")}
    for _ in range(2):
        world.crash(mode, 1)
        world.judge()
        assert {name: world.read(name).records for name in kept} == kept


def test_only_whole_segments_go() -> None:
    """What caps and deletes leave of a segment is never written anew: its file stays as it is until it goes.

    proves: G-SEG-3
    """
    world = World().start(segment_max_events=5)
    world.put("cap", "fsync", cap_records=8)
    world.settle()
    contents: dict[str, bytes] = {}
    directory = "/data/topics/00000001"
    for _ in range(12):
        world.append("cap", 3, tags=["a", None])
        world.settle()
        world.checkpoint()
        now = {
            name: world.disk.open(f"{directory}/{name}").pread(1 << 20, 0)
            for name in world.disk.names(directory)
            if name.endswith(".data")
        }
        assert all(contents[name] == now[name] for name in now.keys() & contents.keys())
        contents = now
    assert len(contents) <= 3
    assert min(contents) > "seg-0000000000000020.data"
