"""Records of class `memory` are loaded when the server is ready, and nobody can tell from what they read and write."""

import random
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from driftq.engine.read.topic_page import Page, PageQuery
from driftq.engine.recovery import deferred_load as late
from driftq.engine.recovery.replay import Replay
from driftq.engine.state.topic import Topic
from driftq.errors import SegmentUnavailableError
from driftq.model.topic_config import Durability, TopicPatch
from driftq.storage.blocks.frame import Frame
from driftq.storage.blocks.rows import Rows
from driftq.storage.wal import memory_spans as spans
from driftq.storage.wal import wal_replayed
from driftq.storage.wal.wal_head import HEAD_BYTES
from driftq.system.disk import Disk, Site
from driftq.testing import CrashMode, EngineRig, FaultyDisk, SimDisk
from driftq.testing.engine_rig import SMALL, rows_of

MEMORY, FSYNC = Durability.MEMORY, Durability.FSYNC


@pytest.fixture(autouse=True, params=["spans", "frames"])
def put_off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of any length are named after every sync; or none is, and every frame is put off by itself."""
    monkeypatch.setattr(late, "EAGER_FRAMES", 0)
    monkeypatch.setattr(spans, "SPAN_BYTES_MIN", 1 if request.param == "spans" else sys.maxsize)
    monkeypatch.setattr(spans, "NAMED_BYTES", 1)


def _held(rig: EngineRig, name: str) -> Topic:
    """A topic as it is, without having it loaded."""
    return rig.engine.catalog.by_name[name]


def _filled(records: int = 40, *, wrap: Callable[[Disk], Disk] = lambda disk: disk, **config: Any) -> EngineRig:
    rig = EngineRig(SMALL, wrap=wrap, wal_file_bytes=1 << 20)
    rig.put("m", MEMORY, **config)
    rig.put("f", FSYNC)
    for number in range(records):
        rig.write("m", number)
    rig.write("f", "behind them")
    rig.write("m", "the last one")
    return rig


def test_a_start_is_ready_before_the_records_are_there_and_then_they_come() -> None:
    """proves: G-REC-17, G-DUR-3"""
    rig = _filled()
    rig.kill()
    assert _held(rig, "m").late
    assert _held(rig, "m").head == 0
    assert rig.seqs("f") == [1]
    rig.runtime.run_until_idle()
    assert not _held(rig, "m").late
    assert rig.seqs("m") == list(range(1, 42))
    assert rig.read("m", 40)[0]["$seq"] == 41


def test_what_other_topics_do_does_not_have_it_loaded() -> None:
    rig = _filled()
    rig.kill()
    assert rig.engine.append("f", _rows()).settled is False
    assert isinstance(rig.engine.diff("f", PageQuery(0, 10)), Page)
    assert _held(rig, "m").late


def _rows() -> Rows:
    return rows_of(["another"])


def test_loading_goes_on_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "STEP_FRAMES", 4)
    rig = _filled()
    rig.kill()
    topic, heads = _held(rig, "m"), []
    while topic.late:
        rig.runtime.turn()
        heads.append(topic.head)
    assert len(set(heads)) > 2
    assert rig.seqs("m") == list(range(1, 42))


def test_frames_of_many_records_are_loaded_in_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "STEP_FRAMES", 10)
    rig = EngineRig(SMALL, wal_file_bytes=1 << 20)
    rig.put("m", MEMORY)
    for first in range(0, 400, 20):
        rig.write("m", *range(first, first + 20))
    rig.kill()
    topic, heads = _held(rig, "m"), [0]
    while topic.late:
        rig.runtime.turn()
        heads.append(topic.head)
    assert max(after - before for before, after in pairwise(heads)) <= 2 * 20
    assert rig.seqs("m") == list(range(1, 401))


def test_a_write_before_they_are_loaded_gets_the_next_seq_and_a_repeat_is_known() -> None:
    """proves: G-SEQ-1, G-KEY-1"""
    rig = _filled()
    first = rig.write("m", "with a key", key="k")
    rig.kill()
    assert _held(rig, "m").late
    again = rig.write("m", "with a key", key="k")
    assert (again.deduped, again.first_seq) == (True, first.first_seq)
    rig.kill()
    assert _held(rig, "m").late
    assert rig.write("m", "next").first_seq == first.first_seq + 1
    assert rig.seqs("m") == list(range(1, first.first_seq + 2))


def test_deletes_settings_and_a_new_life_of_a_topic_that_is_not_loaded() -> None:
    rig = _filled()
    rig.kill()
    assert _held(rig, "m").late
    assert rig.delete("m", before_seq=11).deleted == 10
    rig.kill()
    assert rig.seqs("m") == list(range(11, 42))
    rig.kill()
    rig.run(rig.engine.patch_topic("m", TopicPatch(cap_records=5)))
    assert rig.seqs("m") == list(range(37, 42))
    rig.kill()
    assert rig.run(rig.engine.delete_topic("m"))
    rig.put("m", MEMORY)
    rig.write("m", "new")
    rig.kill()
    assert rig.seqs("m") == [1]
    assert rig.read("m")[0]["data"] == "new"


def test_a_deleted_topic_has_nothing_loaded_for_it() -> None:
    rig = _filled()
    rig.run(rig.engine.delete_topic("m"))
    rig.kill()
    assert "m" not in rig.engine.catalog.by_name
    assert not rig.engine.loading.open
    assert rig.seqs("f") == [1]


@pytest.mark.parametrize("turns", [0, 1, 3])
@pytest.mark.parametrize("mode", [*CrashMode, None])
def test_a_crash_while_they_are_loaded_changes_nothing(
    turns: int, mode: CrashMode | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """proves: G-DUR-3, G-REC-1"""
    monkeypatch.setattr(late, "STEP_FRAMES", 4)
    rig = _filled()
    rig.kill()
    for life in range(3):
        for _ in range(turns):
            rig.runtime.turn()
        rig.engine.append("f", _rows())
        for _ in range(turns):
            rig.runtime.turn()
        if mode is None:
            rig.kill()
        else:
            rig.crash(mode, life)
    assert rig.seqs("m") == list(range(1, 42))
    assert rig.read("f")[0]["data"] == "behind them"


def test_a_checkpoint_and_a_stop_have_everything_loaded_first() -> None:
    """proves: G-DUR-10"""
    for take in (EngineRig.checkpoint, EngineRig.close):
        rig = _filled()
        rig.kill()
        assert _held(rig, "m").late
        assert take(rig)
        rig.crash()
        assert rig.seqs("m") == list(range(1, 42))


def test_a_checkpoint_waits_while_they_are_loaded_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "STEP_FRAMES", 4)
    rig = _filled()
    rig.kill()
    monkeypatch.setattr(rig.engine.catalog, "load_late", lambda: pytest.fail("the loop is blocked"))
    taken, topic, heads = rig.engine.checkpointer.run(), _held(rig, "m"), [0]
    while topic.late:
        assert not taken.settled
        rig.runtime.turn()
        heads.append(topic.head)
    assert len(set(heads)) > 2
    rig.runtime.run_until_idle()
    assert taken.result()
    rig.crash()
    assert rig.seqs("m") == list(range(1, 42))


def test_stamps_do_not_go_back_behind_records_that_are_not_loaded() -> None:
    rig = _filled()
    last = rig.read("m", 40)[0]["$ts"]
    rig.clock.set_wall(rig.clock.wall_ms() - 10_000)
    rig.kill()
    assert _held(rig, "m").late
    assert rig.write("f", "later").ts >= last


def _damage_span(rig: EngineRig) -> None:
    (name,) = [name for name in rig.disk.names("/data/wal") if name.endswith(".log")][:1]
    file = rig.disk.open(f"/data/wal/{name}")
    content = file.pread(file.size(), 0)
    place = content.find(b"20", HEAD_BYTES + 1500) & ~7
    file.pwritev([b"\xff" * 8], place)
    file.sync(Site.WAL_COMMIT)


def test_damage_in_what_was_passed_over_costs_other_topics_nothing() -> None:
    """proves: G-DUR-3, G-TOMB-3"""
    rig = _filled()
    _damage_span(rig)
    rig.kill()
    assert rig.topic("f").holes.all == []
    seqs, holes = rig.seqs("m"), rig.topic("m").holes.all
    assert len(seqs) == 40
    assert [(hole.first, hole.last) for hole in holes] == [(missing, missing) for missing in {*range(1, 42)} - {*seqs}]
    rig.crash(CrashMode.KEEP)
    assert (rig.seqs("m"), rig.topic("m").holes.all) == (seqs, holes)


def test_a_log_that_cannot_be_read_for_a_while_is_an_error_and_then_they_come() -> None:
    disks: list[FaultyDisk] = []
    broken = [False]

    def wrap(disk: Disk) -> Disk:
        when: Callable[[str, str], bool] = lambda operation, path: broken[0] and path.endswith(".log")  # noqa: E731
        disks.append(FaultyDisk(disk, reads=True, forever=True, when=when))
        return disks[-1]

    rig = _filled(wrap=wrap)
    rig.kill()
    broken[0] = True
    waiting = rig.engine.loading_of("m")
    assert waiting is not None
    with pytest.raises(SegmentUnavailableError):
        rig.topic("m")
    with pytest.raises(SegmentUnavailableError):
        rig.engine.append("m", _rows())
    rig.runtime.run_until_idle()
    assert isinstance(waiting.error, SegmentUnavailableError)
    assert not rig.checkpoint()
    broken[0] = False
    rig.runtime.advance(2000)
    assert not _held(rig, "m").late
    assert rig.seqs("m") == list(range(1, 42))


# How much a start does


@pytest.mark.parametrize("records", [20, 200])
def test_a_start_applies_no_record_of_a_topic_that_is_written_in_turn_with_others(
    records: int, put_off: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """proves: G-REC-17"""
    rig = EngineRig(SMALL, wal_file_bytes=1 << 20)
    rig.put("m", MEMORY)
    rig.put("f", FSYNC)
    for number in range(records):
        rig.write("m", number)
        rig.write("f", number)
    applied: list[int] = []
    append = Replay.append

    def counted(replay: Replay, buffer: bytes, frame: Frame) -> None:
        applied.append(frame.topic_id)
        append(replay, buffer, frame)

    monkeypatch.setattr(late, "EAGER_FRAMES", 7)
    monkeypatch.setattr(Replay, "append", counted)
    rig.kill()
    topic = _held(rig, "m")
    assert (topic.late, applied.count(topic.id)) == (True, min(7, topic.head))
    assert applied.count(_held(rig, "f").id) == records
    rig.runtime.run_until_idle()
    assert rig.seqs("m") == list(range(1, records + 1))


# Any history


def _picture(rig: EngineRig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in rig.engine.catalog.names():
        topic = rig.topic(name)
        counts = (
            topic.head,
            topic.earliest,
            topic.count,
            topic.payload,
            topic.last_ts,
            topic.op,
            topic.in_flight.next_seq,
        )
        floors = (topic.cap_lost, topic.ttl_lost, topic.holes.all, topic.in_flight.synced_seq, len(topic.keys))
        found[name] = (counts, floors, topic.config, rig.walk(name))
    return found


def _step(rig: EngineRig, rng: random.Random, serial: Iterator[int]) -> None:
    name = rng.choice(["m1", "m1", "m1", "m2", "m2", "f", "d"])
    config = {"m1": MEMORY, "m2": MEMORY, "f": FSYNC, "d": Durability.DISK}
    if name not in rig.engine.catalog.by_name:
        rig.put(name, config[name], cap_records=rng.choice([0, 25]), ttl_ms=rng.choice([0, 5000]))
    what = rng.random()
    if what < 0.8:
        count = rng.choice([1, 1, 1, 1, 3, 40])
        key = f"k{rng.randrange(30)}" if rng.random() < 0.1 else None
        rig.write(name, *[next(serial) for _ in range(count)], key=key)
    elif what < 0.84:
        rig.delete(name, before_seq=rng.randrange(1, rig.topic(name).head + 2))
    elif what < 0.87:
        rig.run(rig.engine.patch_topic(name, TopicPatch(cap_records=rng.choice([0, 10, 50]))))
    elif what < 0.89:
        rig.put(name, rng.choice([MEMORY, FSYNC, Durability.DISK, Durability.EPHEMERAL]))
    elif what < 0.91:
        rig.run(rig.engine.delete_topic(name))
    elif what < 0.93:
        rig.checkpoint()
    else:
        rig.runtime.advance(rng.choice([1, 20, 1500]))


@pytest.mark.parametrize("seed", range(12))
def test_a_start_that_puts_off_finds_what_one_that_does_not_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """proves: G-REC-17"""
    rng = random.Random(seed)
    rig = EngineRig(SMALL, wal_file_bytes=rng.choice([16 << 10, 1 << 20]), wal_shards=rng.choice([1, 1, 2]))
    serial = iter(range(10**6))
    put_off = 0
    for _ in range(6):
        for _ in range(rng.randrange(10, 60)):
            _step(rig, rng, serial)
        mode = rng.choice([None, None, *CrashMode])
        rig.runtime.stop()
        disk = rig.disk.fork() if mode is None else rig.disk.crash(mode, seed)
        clock, boot = rig.clock.wall_ms(), rig.boot + (mode is not None)
        with monkeypatch.context() as at_once:
            at_once.setattr(wal_replayed, "find_spans", lambda *_: [])
            at_once.setattr(late, "EAGER_FRAMES", sys.maxsize)
            plain = _started(rig, disk.fork(), boot)
            assert not plain.engine.loading.open
            expected = _picture(plain)
        rig = _started(rig, disk, boot)
        put_off += rig.engine.loading.open
        for _ in range(rng.randrange(3)):
            rig.runtime.turn()
        assert _picture(rig) == expected
        assert rig.clock.wall_ms() >= clock
    assert put_off


def _started(before: EngineRig, disk: SimDisk, boot: int) -> EngineRig:
    rig = EngineRig.__new__(EngineRig)
    rig.__dict__.update(before.__dict__)
    rig.disk, rig.boot = disk, boot
    rig.start()
    return rig
