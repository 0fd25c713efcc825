"""A server that is killed alone: its log writers write what they were sent and say so, and then nothing is missing."""

import errno
import random

import pytest

from driftq.model.tombstone import Hole
from driftq.system.disk import Site
from driftq.testing import CrashMode, FaultyDisk
from driftq.testing.manual_writer_process import ManualWriterProcess
from tests.crash.judge import Violation
from tests.crash.world import World

pytestmark = pytest.mark.crash

MODES = [CrashMode.DROP, CrashMode.KEEP, CrashMode.TORN]


def busy(world: World, rng: random.Random, turns: int) -> None:
    """Some clients write, and look at what there is, for so many turns of the loop."""
    for _ in range(turns):
        name = rng.choice(("disk", "capped", "fsync", "memory"))
        world.append(name, rng.choice((1, 2, 30, 300)), tags=["a", None])
        if rng.random() < 0.1:
            world.delete(name, tag="a")
        for _ in range(rng.choice((0, 1, 3))):
            world.runtime.turn()
        if rng.random() < 0.2:
            world.advance(rng.choice((1, 11)))


def started(seed: int = 1, **settings: object) -> World:
    world = World(seed=seed, order=False).start(wal_file_bytes=32 << 10, **settings)
    for name in ("disk", "fsync", "memory"):
        world.put(name, name)
    world.put("capped", "disk", cap_records=50)
    world.settle()
    return world


def log_writer(world: World) -> ManualWriterProcess:
    return next(writer_process for writer_process in world.runtime.writer_processes if writer_process.writes_log)


def holes(world: World) -> list[Hole]:
    return [hole for topic in world.engine.catalog.visible() for hole in topic.holes.all]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_server_that_dies_alone_at_any_moment_leaves_no_hole(shards: int) -> None:
    """proves: G-REC-15, G-DUR-1, G-SEQ-2"""
    for seed in range(1, 60, 2):
        rng = random.Random(seed)
        world = started(seed, wal_shards=shards)
        for _ in range(3):
            busy(world, rng, rng.randrange(12))
            if rng.random() < 0.3:
                world.checkpoint()
            world.die_alone(wal_shards=rng.choice((1, 2, shards)))
            world.judge()
            assert holes(world) == [], f"seed {seed}"


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_power_loss_after_the_drain_invents_nothing_and_gives_no_seq_twice(mode: CrashMode) -> None:
    """proves: G-REC-15, G-SEQ-2, G-TOMB-9"""
    for seed in range(1, 40, 2):
        rng = random.Random(seed)
        world = started(seed)
        busy(world, rng, rng.randrange(15))
        world.drain()
        world.crash(mode, seed)
        world.judge()
        world.probe(rng)
        world.crash(mode, seed)
        world.judge()


def test_without_the_sync_before_it_a_drained_log_would_lie() -> None:
    """proves: G-REC-15"""
    broken = 0
    for seed in range(1, 60, 2):
        world = World(seed=seed, order=False, ignore=Site.WAL_DRAIN).start(wal_file_bytes=1 << 20)
        world.put("disk", "disk")
        world.settle()
        world.append("disk", 3)
        world.advance(20)
        for _ in range(4):
            world.append("disk", 3, padding=6000)
            world.settle()
        world.drain()
        world.crash(CrashMode.REORDER, seed)
        try:
            world.judge()
        except Violation:
            broken += 1
    assert broken


def test_a_disk_write_is_neither_acked_nor_seen_before_it_is_handed_over() -> None:
    """proves: G-REC-16"""
    world = started()
    world.append("disk")
    world.settle()
    line = log_writer(world)
    line.held = True
    first, second = world.append("disk", 2), world.append("disk", 300)
    world.runtime.run_until_idle()
    assert (first.settled, second.settled, world.engine.topic("disk").head) == (False, False, 1)
    line.release()
    world.settle()
    assert (first.result().last_seq, second.result().last_seq) == (3, 303)


def test_what_was_not_handed_over_when_the_server_died_was_seen_by_nobody() -> None:
    """proves: G-REC-15, G-REC-16"""
    world = started()
    world.append("disk")
    world.settle()
    log_writer(world).held = True
    lost = world.append("disk", 2)
    world.runtime.run_until_idle()
    world.die_alone()
    assert not lost.settled
    assert (world.engine.topic("disk").head, holes(world)) == (1, [])
    again = world.append("disk")
    world.settle()
    assert again.result().first_seq == 2


def test_where_the_log_writer_died_too_the_hole_is_an_upper_bound() -> None:
    """proves: G-TOMB-9"""
    for shards in (1, 2):
        world = started(wal_shards=shards)
        world.append("disk")
        world.settle()
        log_writer(world).lose()
        world.die_alone()
        world.judge()
        assert holes(world)
        assert all(hole.at_most for hole in holes(world))


def test_a_run_that_is_complete_proves_nothing_about_a_run_before_it() -> None:
    """proves: G-SEQ-2, G-REC-15"""
    world = started()
    world.append("disk", 5)
    world.settle()
    world.crash(CrashMode.DROP)
    raised = world.engine.topic("disk").head
    assert raised > 5
    world.append("fsync")
    world.settle()
    world.die_alone()
    assert world.engine.topic("disk").head == raised
    world.append("disk")
    world.settle()
    world.die_alone()
    assert world.engine.topic("disk").head == raised + 1
    assert [hole.at_most for hole in world.engine.topic("disk").holes.all] == [True]


def test_a_run_in_which_a_write_failed_is_not_called_complete() -> None:
    """proves: G-REC-15"""
    fails = [False]
    world = World(
        seed=1,
        order=False,
        wrap=lambda disk: FaultyDisk(
            disk,
            error=errno.EIO,
            forever=True,
            when=lambda operation, path: fails[0] and operation == "pwritev" and "/wal/" in path,
        ),
    ).start()
    world.put("disk", "disk")
    world.settle()
    world.append("disk")
    world.settle()
    fails[0] = True
    acked = world.append("disk", 4)
    world.settle()
    fails[0] = False
    assert acked.result().last_seq == 5
    world.die_alone()
    assert world.engine.topic("disk").head > 5
    assert [hole.at_most for hole in holes(world)] == [True]
