"""Checkpoints: what they cost, what they trim, and that nothing changes by them (http-v0 §19.5)."""

import random

import pytest

from driftq.model.topic import Durability
from driftq.testing import CrashMode, EngineRig
from tests.property.test_engine_model import walk
from tests.property.world import World


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


def wal_files(rig: EngineRig) -> list[str]:
    return [name for name in rig.disk.names("/data/wal") if name.endswith(".log")]


def snapshots(rig: EngineRig) -> list[str]:
    return [name for name in rig.disk.names("/data/meta") if name.endswith(".bin")]


def test_it_costs_what_changed_and_not_what_is_stored() -> None:
    rig = EngineRig(segment_max_events=10_000, wal_file_bytes=8 << 20)
    rig.put("t")
    payload = b'"' + b"x" * 90 + b'"'
    for _ in range(50):
        rig.write("t", *[payload] * 2000, tags=["tag"] * 2000)
    rig.checkpoint()
    rig.write("t", *[payload] * 1000, tags=["tag"] * 1000)
    rig.checkpoint()
    assert rig.topic("t").count == 101_000
    assert rig.engine.checkpointer.bytes_written < 400_000
    rig.checkpoint()
    assert rig.engine.checkpointer.bytes_written < 50_000


def test_unchanged_topics_cost_no_more_than_their_last_capture(rig: EngineRig) -> None:
    for number in range(50):
        rig.put(f"t{number}")
        rig.write(f"t{number}", *range(20))
    rig.checkpoint()
    captured = rig.engine.checkpointer._captured
    before = {topic.name: state for topic, state in captured.items()}
    rig.write("t7", 1)
    rig.checkpoint()
    after = {topic.name: state for topic, state in rig.engine.checkpointer._captured.items()}
    assert [name for name in before if before[name] is not after[name]] == ["t7"]


def test_wal_files_and_older_snapshots_go_and_one_snapshot_remains(rig: EngineRig) -> None:
    rig.put("t")
    for _ in range(40):
        rig.write("t", *[b'"%b"' % (b"x" * 200)] * 8)
    assert len(wal_files(rig)) > 3
    rig.checkpoint()
    assert len(wal_files(rig)) <= 2
    rig.write("t", 1)
    rig.checkpoint()
    assert len(snapshots(rig)) == 1
    rig.crash()
    assert rig.topic("t").count == 321


def test_it_is_taken_by_wal_bytes_and_by_time_and_not_without_topics(rig: EngineRig) -> None:
    rig.runtime.advance(50_000)
    rig.put("t")
    rig.runtime.advance(5000)
    assert snapshots(rig) == []
    rig.runtime.advance(10_000)
    assert len(snapshots(rig)) == 1
    number = snapshots(rig)
    rig.runtime.advance(120_000)
    assert snapshots(rig) == number, "nothing was written, so nothing is due"
    rig = EngineRig()
    rig.runtime.advance(120_000)
    assert snapshots(rig) == []
    rig = EngineRig(checkpoint_wal_bytes=1000)
    rig.put("t")
    rig.write("t", *range(1000))
    rig.runtime.advance(6000)
    assert len(snapshots(rig)) == 1


def test_calls_while_it_is_being_taken_are_in_the_snapshot_or_in_the_log(rig: EngineRig) -> None:
    for durability in Durability:
        rig.put(durability, durability)
    for workers in (["driftq-files"], ["driftq-wal-0"], ["driftq-files", "driftq-blocks", "driftq-wal-0"]):
        for worker in workers:
            rig.runtime.hold(worker)
        rig.engine.checkpointer.run()
        rig.runtime.run_until_idle()
        for durability in Durability:
            rig.write_nowait(durability, *range(20), tags=["a", "b"] * 10)
            rig.runtime.run_until_idle()
            rig.engine.delete_records(durability, before_seq=2)
        rig.runtime.run_until_idle()
        for worker in workers:
            rig.runtime.release(worker)
        rig.runtime.run_until_idle()
    rig.runtime.advance(20)
    expected = {name: rig.walk(name) for name in (Durability.MEMORY, Durability.FSYNC)}
    rig.crash()
    assert {name: rig.walk(name) for name in expected} == expected


def test_a_running_one_is_shared(rig: EngineRig) -> None:
    rig.put("t")
    first = rig.engine.checkpointer.run()
    second = rig.engine.checkpointer.run()
    rig.runtime.run_until_idle()
    assert (first.result(), second.result(), snapshots(rig)) == (True, True, ["snapshot-0000000000000001.bin"])


@pytest.mark.parametrize("seed", range(20))
def test_state_after_a_checkpoint_and_its_tail_is_the_state_after_a_full_replay(seed: int) -> None:
    """Two servers do the same; one of them takes checkpoints; both are killed, and compared field by field."""
    states = []
    for checkpoints in (False, True):
        rng = random.Random(seed)
        rig = EngineRig(segment_max_events=8, checkpoint_interval_ms=1 << 40, checkpoint_wal_bytes=1 << 40)
        for step in range(60):
            _do_something(rig, rng)
            if checkpoints and step % 7 == 0:
                assert rig.checkpoint()
        rig.runtime.advance(20)
        rig.crash(CrashMode.DROP)
        states.append({topic.name: _fields(rig, topic.name) for topic in rig.engine.catalog.visible()})
    assert states[0] == states[1]


def _do_something(rig: EngineRig, rng: random.Random) -> None:
    name = rng.choice(("a", "b"))
    dice = rng.random()
    if dice < 0.6:
        count = rng.choice((1, 2, 5, 20, 300))
        tags = [rng.choice(("x", "y", None)) for _ in range(count)]
        rig.write(name, *range(count), tags=tags, key=rng.choice((None, "k", "l")))
    elif dice < 0.75 and name in rig.engine.catalog.by_name:
        rig.delete(name, before_seq=rng.choice((None, rng.randint(1, 300))), match=rng.choice(("x", "y")))
    elif dice < 0.9:
        durability = rng.choice((Durability.MEMORY, Durability.DISK, Durability.FSYNC))
        rig.put(name, durability, cap_records=rng.choice((0, 0, 30)), ttl_ms=rng.choice((0, 0, 5000)))
    elif dice < 0.92:
        rig.run(rig.engine.delete_topic(name))
    else:
        rig.runtime.advance(rng.choice((20, 3000)))


def _fields(rig: EngineRig, name: str) -> list[object]:
    topic = rig.topic(name)
    return [
        topic.config,
        topic.created_ts,
        topic.op,
        topic.head,
        topic.last_ts,
        topic.earliest,
        topic.count,
        topic.payload,
        topic.cap_lost,
        topic.ttl_lost,
        topic.reserved,
        topic.holes.all,
        sorted(topic.keys.items()),
        rig.walk(name),
    ]


def test_a_world_that_takes_checkpoints_all_the_time_is_the_same_world() -> None:
    rng = random.Random(4)
    world = World(4, EngineRig(cold_dir="/cold", hot_retain_segments=0, segment_max_events=8).settings)
    for _ in range(150):
        walk(world, rng)
        world.checkpoint()
