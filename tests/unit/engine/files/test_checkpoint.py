"""Checkpoints: what they cost, what they trim, and that nothing changes by them (http-v0 §19.5)."""

import errno
import random

import pytest
from msgspec.structs import replace

from driftq.engine import upkeep
from driftq.engine.files import checkpoint
from driftq.errors import ShardStoppedError
from driftq.model.topic_config import Durability
from driftq.testing import CrashMode, EngineRig, FaultyDisk
from tests.property.test_engine_model import walk
from tests.property.world import World
from tests.unit.engine.unreadable import Fault, filled, let_go


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


def test_behind_a_load_memory_is_given_back_once_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(upkeep, "_TIDY_BYTES", 200_000)
    monkeypatch.setattr(upkeep, "give_freed_memory_back", lambda: given.append(1))
    rig = EngineRig()
    rig.put("t")
    rig.runtime.advance(3000)
    assert not given
    rig.write("t", *[b"1" * 100] * 3000)
    rig.runtime.advance(1000)
    rig.runtime.advance(3000)
    assert len(given) == 1
    rig.write("t", b"1")
    rig.runtime.advance(3000)
    assert len(given) == 1


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


def test_one_that_has_to_copy_what_cannot_be_read_ends_and_the_next_one_has_everything() -> None:
    """A topic that was captured before the failure must be captured again, or not count as unchanged.

    proves: G-CKPT-3, G-IO-8
    """
    fault = Fault(errno.EMFILE)
    rig = EngineRig(wrap=fault.wrap, segment_max_events=8, cache_bytes=1)
    for name in ("a", "t"):
        rig.put(name)
    assert rig.checkpoint()
    fault.on = True
    rig.write("a", 1)
    for _ in range(3):
        rig.write("t", *range(8))
    before = snapshots(rig)
    assert not rig.checkpoint()
    assert snapshots(rig) == before
    fault.on = False
    assert rig.checkpoint()
    rig.crash()
    assert (rig.seqs("a"), rig.seqs("t")) == ([1], list(range(1, 25)))
    assert rig.topic("t").holes.all == []


def test_one_that_failed_is_tried_again_by_the_upkeep() -> None:
    """proves: G-CKPT-3"""
    fault = Fault(errno.EMFILE)
    rig = EngineRig(wrap=fault.wrap, segment_max_events=8, cache_bytes=1, checkpoint_interval_ms=5000)
    rig.put("t")
    fault.on = True
    for _ in range(3):
        rig.write("t", *range(8))
    rig.runtime.advance(12_000)
    assert snapshots(rig) == []
    fault.on = False
    rig.runtime.advance(6000)
    assert len(snapshots(rig)) == 1


def test_one_that_cannot_list_a_directory_ends_and_keeps_nobody_waiting() -> None:
    """Too many open files, for a moment. Who waits for a sync behind its mark is answered, and the next one is taken.

    proves: G-CKPT-3
    """
    full = False
    rig = EngineRig(
        wrap=lambda disk: FaultyDisk(
            disk, error=errno.EMFILE, forever=True, reads=True, when=lambda operation, _: full and operation == "names"
        )
    )
    rig.put("t")
    rig.write("t", 1)
    full = True
    taken = rig.engine.checkpointer.run()
    written = rig.write_nowait("t", 2)
    rig.runtime.run_until_idle()
    assert (taken.result(), written.result().first_seq) == (False, 2)
    full = False
    assert rig.checkpoint()
    assert rig.close()


def test_none_is_taken_while_a_shard_is_stopped() -> None:
    """Memory is behind the log then: a delete may be there by half, and count as done.

    proves: G-IO-9
    """
    fault = Fault(errno.EMFILE)
    rig = filled(fault)
    before = snapshots(rig)
    answer = rig.engine.delete_records("t", seqs=[17, 18, 2])
    let_go(rig, "t")
    fault.on = True
    rig.runtime.run_until_idle()
    assert isinstance(answer.error, ShardStoppedError)
    fault.on = False
    assert not rig.checkpoint()
    rig.runtime.advance(120_000)
    assert snapshots(rig) == before
    assert not rig.close()
    rig.kill()
    assert rig.seqs("t") == [1, *range(3, 17), *range(19, 25)]


def test_one_that_waits_when_a_shard_stops_is_not_installed() -> None:
    """proves: G-IO-9"""
    fault = Fault(errno.EMFILE)
    rig = EngineRig(wrap=fault.wrap, segment_max_events=8, cache_bytes=1, wal_shards=2)
    for name in ("one", "two"):
        rig.put(name)
    for _ in range(3):
        rig.write("one", *range(8))
    rig.checkpoint()
    before = snapshots(rig)
    other = rig.engine.shards.all.index(rig.engine.change_log.shard_of(rig.topic("two")))
    rig.runtime.hold(f"driftq-wal-{other}")
    waiting = rig.engine.checkpointer.run()
    rig.runtime.run_until_idle()
    answer = rig.engine.delete_records("one", seqs=[17, 2])
    let_go(rig, "one")
    fault.on = True
    rig.runtime.run_until_idle()
    assert isinstance(answer.error, ShardStoppedError)
    fault.on = False
    rig.release_wal()
    assert waiting.result() is False
    assert snapshots(rig) == before
    rig.kill()
    assert rig.seqs("one") == [1, *range(3, 17), *range(18, 25)]


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


def test_a_start_leaves_no_topic_beyond_its_cap() -> None:
    """Rows that were deleted count as live again where their flag stands in a block that is damaged."""
    rig = EngineRig(segment_max_events=8)
    rig.put("t", cap_records=8)
    rig.write("t", *range(8))
    rig.topic("t").config = replace(rig.topic("t").config, cap_records=5)
    rig.topic("t").changed = True
    rig.checkpoint()
    rig.crash()
    assert (rig.topic("t").count, rig.seqs("t")) == (5, [4, 5, 6, 7, 8])


def test_segments_whose_data_is_durable_are_named_though_they_are_not_sealed() -> None:
    """A disk that cannot make index files, and a load behind which sealing lags, cost no copies."""

    def no_index(operation: str, path: str) -> bool:
        return operation == "create" and path.endswith(".idx")

    rig = EngineRig(
        segment_max_events=2000,
        wal_file_bytes=8 << 20,
        wrap=lambda disk: FaultyDisk(disk, forever=True, error=errno.EIO, when=no_index),
    )
    rig.put("t")
    payload = b'"' + b"x" * 90 + b'"'
    for _ in range(10):
        rig.write("t", *[payload] * 2000)
    rig.run(rig.engine.delete_records("t", seqs=[3000]))
    rig.checkpoint()
    assert [segment.sealed for segment in rig.topic("t").segments] == [False] * 10
    assert rig.engine.checkpointer.bytes_written < 20_000
    rig.write("t", 1)
    before = rig.walk("t")
    rig.crash(CrashMode.DROP)
    assert rig.walk("t") == before
    rig.checkpoint()
    rig.restart()
    assert rig.walk("t") == before


def test_what_is_closed_while_it_syncs_is_synced_too_before_it_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_COPIED_BYTES", 1000)
    rig = EngineRig(segment_max_events=2000, wal_file_bytes=8 << 20)
    rig.put("t", Durability.DISK)
    payload = b'"' + b"x" * 90 + b'"'
    rig.write("t", *[payload] * 2000)
    rig.runtime.hold("driftq-files")
    taken = rig.engine.checkpointer.run()
    rig.write("t", *[payload] * 1500)
    rig.runtime.release("driftq-files")
    assert rig.run(taken)
    assert rig.engine.checkpointer.bytes_written < 20_000
