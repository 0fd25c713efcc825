"""Bytes that rot and files that vanish: what is lost is told, and nothing else is lost."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from driftq.errors import StartError, UnrecoverableError
from driftq.model.limits import RESERVE_MAX
from driftq.model.tombstone import Hole, Reason
from driftq.storage.blocks.frame import Frame, Kind, read_frame
from driftq.storage.wal.wal_head import read_wal_head
from driftq.system.disk import Site, read_file
from driftq.testing import CrashMode, SimDisk
from tests.crash import scenarios
from tests.crash.reading import differences
from tests.crash.sweep import ALL, Scenario
from tests.crash.world import World

pytestmark = pytest.mark.crash

WAL = "/data/wal/wal-0000000000000001.log"
TOPIC = "/data/topics/00000001"


# Breaking things


def flip(disk: SimDisk, path: str, place: int, value: int | None = None) -> None:
    """One byte becomes another one, for good."""
    file = disk.open(path)
    byte = file.pread(1, place)[0]
    file.pwritev([bytes([byte ^ 0x41 if value is None else value])], place)
    file.sync(Site.WAL_TIMER)


def overwrite(disk: SimDisk, path: str, place: int, value: bytes) -> None:
    """Some bytes become others, for good; the file is made if it is not there."""
    file = disk.open(path) if disk.exists(path) else disk.create(path)
    file.pwritev([value], place)
    file.sync(Site.WAL_TIMER)
    disk.sync_dir(path.rpartition("/")[0], Site.WAL_TIMER)


def truncate(disk: SimDisk, path: str, size: int) -> None:
    """A file loses its end, for good."""
    file = disk.open(path)
    file.truncate(size)
    file.sync(Site.WAL_TIMER)


def remove(disk: SimDisk, path: str) -> None:
    """A file is gone, for good."""
    disk.unlink(path)
    disk.sync_dir(path.rpartition("/")[0], Site.WAL_TIMER)


def content(disk: SimDisk, path: str) -> bytes:
    """All bytes of a file."""
    file = disk.open(path)
    return file.pread(file.size(), 0)


def frames(disk: SimDisk, path: str = WAL) -> list[Frame]:
    """The frames of a WAL file or a segment."""
    buffer = content(disk, path)
    head = read_wal_head(buffer)
    found = [] if head is None else [head.frame]
    place, salt = (0, 0) if head is None else (head.frames_at, head.salt)
    while isinstance(frame := read_frame(buffer, place, len(buffer), salt), Frame):
        found.append(frame)
        place = frame.end
    return found


def appends(disk: SimDisk, topic_id: int = 1, path: str = WAL) -> list[Frame]:
    """The Append frames of one topic."""
    return [frame for frame in frames(disk, path) if frame.kind == Kind.APPEND and frame.topic_id == topic_id]


def restart(disk: SimDisk, world: World, **changed: Any) -> World:
    """Another process over a disk, which keeps what it finds."""
    again = World(disk, ledger=world.ledger.copy(), wall_ms=world.clock.wall_ms(), settings=world.settings)
    return again.start(**changed)


def seqs(world: World, name: str) -> list[int]:
    """What a reader gets."""
    return [record.seq for record in world.read(name).records]


def stays_so(world: World) -> None:
    """A second restart, over a crash, another shard count, and a checkpoint behind them, finds the identical state."""
    first = world.picture()
    for mode in (CrashMode.DROP, CrashMode.REORDER):
        again = restart(world.disk.crash(mode, 1), world, wal_shards=2)
        assert not differences(first, again.picture())
    assert again.checkpoint()
    assert not differences(first, restart(again.disk.crash(CrashMode.DROP, 1), again).picture())


# The WAL


def written(*, records: int = 3, writes: int = 6) -> World:
    """One file with a few synced writes, each a frame of its own, of a topic beside another."""
    world = World().start(wal_file_bytes=1 << 20)
    world.put("one", "fsync")
    world.put("two", "fsync")
    world.settle()
    world.append("two", 2)
    world.settle()
    for _ in range(writes):
        world.append("one", records, tags=["a", None, "b"], nodes=["n", None], metas=["m", None], key=None)
        world.settle()
    return world


@pytest.mark.parametrize("records", [3, 260])
def test_any_flipped_byte_of_the_last_frame_costs_at_most_that_frame(records: int) -> None:
    """proves: G-REC-5, G-REC-6; inv: 80"""
    world = written(records=records, writes=3)
    last = frames(world.disk, WAL)[-1]
    whole = [*range(1, 3 * records + 1)]
    places = range(last.start, last.end)
    for place in places if records == 3 else random.Random(1).sample(places, 60):
        disk = world.disk.crash(CrashMode.KEEP, 0)
        flip(disk, WAL, place)
        again = restart(disk, world)
        assert seqs(again, "one") in (whole, whole[:-records])
        assert seqs(again, "two") == [1, 2]
        assert again.engine.recovered.damaged == 0
        pending = again.append("one", 1)
        again.settle()
        assert pending.result().first_seq == len(seqs(again, "one"))
        assert not differences(again.picture(), restart(again.disk.crash(CrashMode.DROP, 1), again).picture())


def test_a_log_cut_anywhere_is_a_log_that_ends_there() -> None:
    """proves: G-REC-5; inv: 80"""
    world = written()
    ends = [frame.end for frame in appends(world.disk)]
    for size in range(appends(world.disk)[0].start, ends[-1] + 8, 1 if ALL else 7):
        disk = world.disk.crash(CrashMode.KEEP, 0)
        truncate(disk, WAL, size)
        again = restart(disk, world)
        assert seqs(again, "one") == [*range(1, 3 * sum(end <= size for end in ends) + 1)]
        again.append("one", 1)
        again.settle()
        assert not differences(again.picture(), restart(again.disk.crash(CrashMode.DROP, 1), again).picture())


_CLASSES = {
    "magic": 0,
    "version": 3,
    "length": 4,
    "length, high": 7,
    "kind": 8,
    "bits": 10,
    "count": 12,
    "topic": 16,
    "seq": 24,
    "ts": 32,
    "synced to": 40,
    "header sum": 48,
    "directory": 56,
    "columns": 72,
    "data": -30,
    "padding": -12,
    "sum": -11,
}
"""Where in a frame, counted from its start or its end, a byte is of which kind."""


@pytest.mark.parametrize("where", _CLASSES)
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_damaged_frame_inside_the_log_costs_that_frame_only(where: str, number: int) -> None:
    """proves: G-REC-6, G-TOMB-3, G-TOMB-8; inv: 80"""
    world = written()
    frame = appends(world.disk)[number]
    place = _CLASSES[where]
    disk = world.disk.crash(CrashMode.KEEP, 0)
    flip(disk, WAL, (frame.start if place >= 0 else frame.end) + place)
    again = restart(disk, world)
    gone = range(frame.seq, frame.seq + frame.count)
    assert seqs(again, "one") == [seq for seq in range(1, 19) if seq not in gone]
    assert again.engine.topic("one").holes.all == [Hole(gone[0], gone[-1], Reason.CORRUPTION)]
    tombstones = again.read("one").tombstones
    assert [(t.reason, t.gap_from, t.gap_to) for t in tombstones] == [(Reason.CORRUPTION, gone[0], gone[-1])]
    assert seqs(again, "two") == [1, 2]
    assert again.engine.recovered.damaged == 1
    stays_so(again)
    pending = again.append("one", 1)
    again.settle()
    assert pending.result().first_seq == 19


def test_a_flipped_flag_of_a_logged_frame_changes_nothing() -> None:
    """A delete adds a frame, it never edits one: what stands in the flags of the WAL is no delete.

    proves: G-DEL-4
    """
    for records in (3, 260):
        world = written(records=records, writes=3)
        frame = appends(world.disk)[1]
        disk = world.disk.crash(CrashMode.KEEP, 0)
        flip(disk, WAL, frame.end - 1, 0xD5)
        again = restart(disk, world)
        assert seqs(again, "one") == [*range(1, 3 * records + 1)]
        again.settle()
        stays_so(again)


def test_damage_over_several_frames_costs_those_and_tells_of_all() -> None:
    """proves: G-REC-6, G-TOMB-3"""
    world = written()
    found = appends(world.disk)
    disk = world.disk.crash(CrashMode.KEEP, 0)
    overwrite(disk, WAL, found[1].start + 8, b"\xee" * (found[3].end - found[1].start - 40))
    again = restart(disk, world)
    assert seqs(again, "one") == [1, 2, 3, *range(13, 19)]
    assert again.engine.topic("one").holes.all == [Hole(4, 12, Reason.CORRUPTION)]
    stays_so(again)


def test_zeros_inside_the_log_are_damage_too() -> None:
    """A sector that reads as zeros is not the end of the log when what follows says that it had been synced.

    proves: G-REC-6, G-TOMB-3
    """
    world = written()
    found = appends(world.disk)
    disk = world.disk.crash(CrashMode.KEEP, 0)
    overwrite(disk, WAL, found[2].start, bytes(found[2].end - found[2].start))
    again = restart(disk, world)
    assert seqs(again, "one") == [*range(1, 7), *range(10, 19)]
    assert again.engine.topic("one").holes.all == [Hole(7, 9, Reason.CORRUPTION)]
    stays_so(again)


def test_a_quiet_topic_reserves_ahead_where_damage_may_have_been_its_own() -> None:
    """Header and all are gone, and no later frame tells whose they were: no seq may be given out again.

    proves: G-SEQ-2, G-REC-6
    """
    world = World().start()
    world.put("one", "fsync")
    world.put("two", "fsync")
    world.settle()
    for name in ("one", "two", "one", "two"):
        world.append(name, 4)
        world.settle()
    lost = appends(world.disk, 1)[-1]
    disk = world.disk.crash(CrashMode.KEEP, 0)
    flip(disk, WAL, lost.start)
    again = restart(disk, world)
    assert seqs(again, "one") == [1, 2, 3, 4]
    pending = again.append("one", 1)
    again.settle()
    assert pending.result().first_seq > 8
    assert {tombstone.reason for tombstone in again.read("one").tombstones} == {Reason.CORRUPTION}
    assert seqs(again, "two") == [*range(1, 9)]
    stays_so(again)


def test_a_damaged_reservation_is_taken_for_the_largest() -> None:
    """The last reservation cannot be read, and behind it a tail was lost: what was acked is not given out again.

    proves: G-SEQ-2, G-REC-7
    """
    world = World().start(wal_file_bytes=1 << 20)
    world.put("disk", "disk")
    world.put("other", "fsync")
    world.settle()
    world.append("disk", 300)
    world.settle()
    for _ in range(2):
        world.append("other", 1)
        world.settle()
    before = world.disk.fork()
    answer = world.append("disk", 300)
    world.runtime.run_loop_only()
    last = [frame for frame in frames(before) if frame.kind == Kind.HEAD_WATERMARK][-1]
    for place in (last.end - 12, last.start):
        disk = before.crash(CrashMode.KEEP, 0)
        flip(disk, WAL, place)
        again = restart(disk, world)
        assert answer.result().last_seq <= again.engine.topic("disk").head <= answer.result().last_seq + RESERVE_MAX
        assert again.engine.recovered.damaged == 1


@pytest.mark.parametrize("where", [-12, 0], ids=["body", "header"])
def test_a_damaged_control_frame_is_counted_and_never_guessed(where: int) -> None:
    """The creation of a topic: the topic is not there, and the id it had is not given to another.

    proves: G-REC-7
    """
    world = written()
    created = [frame for frame in frames(world.disk) if frame.kind == Kind.TOPIC][1]
    disk = world.disk.crash(CrashMode.KEEP, 0)
    flip(disk, WAL, (created.end if where < 0 else created.start) + where)
    again = restart(disk, world)
    report = again.engine.recovered
    assert (report.damaged, report.control_lost) == (1, 1 if where < 0 else 0)
    assert again.engine.catalog.find("two") is None
    assert seqs(again, "one")[-1] == 18
    again.put("three", "fsync")
    again.settle()
    assert again.engine.topic("three").id > 2
    assert seqs(again, "three") == []
    assert not differences(again.picture(), restart(again.disk.crash(CrashMode.DROP, 1), again).picture())


def _rotated() -> World:
    world = World().start(wal_file_bytes=2048, segment_max_events=1000)
    world.put("one", "fsync")
    world.put("two", "fsync")
    world.settle()
    for _ in range(12):
        world.append("one", 2, padding=100)
        world.append("two", 1)
        world.settle()
    return world


def test_the_last_frame_of_a_full_file_is_damage_and_not_a_torn_tail() -> None:
    """The file behind it says how long it was.

    proves: G-REC-6, G-TOMB-3
    """
    world = _rotated()
    last = frames(world.disk, WAL)[-1]
    for damage in ("flip", "cut", "zeros"):
        disk = world.disk.crash(CrashMode.KEEP, 0)
        match damage:
            case "cut":
                truncate(disk, WAL, last.start + 20)
            case "zeros":
                overwrite(disk, WAL, last.start, bytes(last.end - last.start))
            case _:
                flip(disk, WAL, last.end - 20)
        again = restart(disk, world)
        assert again.engine.recovered.damaged == 1
        lost = 24 - len(seqs(again, "one")) + 12 - len(seqs(again, "two"))
        assert lost == last.count
        stays_so(again)


def test_a_sound_log_of_many_files_is_neither_torn_nor_damaged() -> None:
    """proves: G-REC-5"""
    world = _rotated()
    again = restart(world.disk.crash(CrashMode.KEEP, 0), world)
    assert (again.engine.recovered.torn, again.engine.recovered.damaged) == (0, 0)


def test_a_missing_wal_file_behind_a_checkpoint_is_damage() -> None:
    """proves: G-REC-6, G-REC-9"""
    world = _rotated()
    assert world.checkpoint()
    for _ in range(24):
        world.append("one", 1, padding=500)
        world.settle()
    names = [name for name in world.disk.names("/data/wal") if name.startswith("wal-")]
    used = [name for name in names if frames(world.disk, f"/data/wal/{name}")]
    assert len(used) >= 4
    disk = world.disk.crash(CrashMode.KEEP, 0)
    remove(disk, f"/data/wal/{used[0]}")
    with pytest.raises(UnrecoverableError, match=used[0]):
        restart(disk, world)
    disk = world.disk.crash(CrashMode.KEEP, 0)
    remove(disk, f"/data/wal/{used[1]}")
    again = restart(disk, world)
    shown, topic = seqs(again, "one"), again.engine.topic("one")
    assert shown[-1] == topic.head == 48
    assert [hole.reason for hole in topic.holes.all] == [Reason.CORRUPTION]
    assert topic.count + topic.holes.all[0].last - topic.holes.all[0].first + 1 == 48
    stays_so(again)


# Checkpoints


def _checkpointed(*, trimmed: bool) -> World:
    world = World().start(wal_file_bytes=2048 if trimmed else 1 << 20, segment_max_events=6)
    for name in ("fsync", "disk", "memory"):
        world.put(name, name)
    world.settle()
    for _ in range(4):
        for name in ("fsync", "disk", "memory"):
            world.append(name, 4, tags=["a", None], key=None, padding=60)
        world.advance(20)
    world.delete("fsync", tag="a", before=9)
    world.settle()
    assert world.checkpoint()
    world.append("fsync", 2)
    world.delete("disk", seqs=[3])
    world.advance(20)
    return world


@pytest.mark.parametrize("damage", ["magic", "version", "length", "sum", "body", "end", "cut", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_whole_wal(damage: str) -> None:
    """proves: G-CKPT-4, G-REC-8; inv: 82"""
    world = _checkpointed(trimmed=False)
    before = restart(world.disk.crash(CrashMode.KEEP, 0), world).picture()
    disk = world.disk.crash(CrashMode.KEEP, 0)
    _break_checkpoint(disk, damage)
    again = restart(disk, world)
    assert len(again.engine.recovered.refused_snapshots) == 1
    assert not differences(before, again.picture())
    stays_so(again)


@pytest.mark.parametrize("damage", ["body", "cut", "empty", "gone"])
def test_a_damaged_checkpoint_with_nothing_to_fall_back_on_refuses_the_start(damage: str) -> None:
    """proves: G-REC-9; inv: 82"""
    world = _checkpointed(trimmed=True)
    disk = world.disk.crash(CrashMode.KEEP, 0)
    if damage == "gone":
        remove(disk, _checkpoint(disk))
        with pytest.raises(UnrecoverableError, match="/data/wal"):
            restart(disk, world)
    else:
        _break_checkpoint(disk, damage)
        with pytest.raises(UnrecoverableError, match=_checkpoint(disk)):
            restart(disk, world)
    names = disk.names("/data/meta"), disk.names("/data/wal"), disk.names("/data/topics")
    with pytest.raises(UnrecoverableError):
        restart(disk, world)
    assert (disk.names("/data/meta"), disk.names("/data/wal"), disk.names("/data/topics")) == names


def test_a_damaged_checkpoint_gives_way_to_an_older_one() -> None:
    """A crash brought the older one and the WAL files behind it back, whose removal was not synced.

    proves: G-CKPT-4, G-REC-8; inv: 82
    """
    world, older = _superseded()
    disk = world.disk.crash(CrashMode.DROP, 0)
    assert disk.names("/data/meta") == [older, f"snapshot-{2:016}.bin"]
    before = restart(disk.fork(), world).picture()
    _break_checkpoint(disk, "body")
    again = restart(disk, world)
    assert again.engine.recovered.snapshot == 1
    assert not differences(before, again.picture())
    stays_so(again)


def test_an_older_checkpoint_without_the_wal_behind_it_refuses_the_start() -> None:
    """What happened between the two is nowhere: not a server that has forgotten it.

    proves: G-REC-9
    """
    world, _ = _superseded()
    disk = world.disk.crash(CrashMode.DROP, 0)
    _break_checkpoint(disk, "body")
    position = sorted(set(disk.names("/data/wal")) - set(world.disk.names("/data/wal")))[0]
    remove(disk, f"/data/wal/{position}")
    with pytest.raises(UnrecoverableError, match=position):
        restart(disk, world)


def _superseded() -> tuple[World, str]:
    """Two checkpoints in a row. The removals behind the second are pending."""
    world = _checkpointed(trimmed=True)
    world.write_back("/data")
    (older,) = world.disk.names("/data/meta")
    for _ in range(8):
        world.append("fsync", 3, padding=100)
        world.settle()
    world.delete("fsync", before=12)
    world.settle()
    assert world.checkpoint()
    return world, older


def _checkpoint(disk: SimDisk) -> str:
    return f"/data/meta/{disk.names('/data/meta')[-1]}"


def _break_checkpoint(disk: SimDisk, damage: str) -> None:
    path = _checkpoint(disk)
    size = len(content(disk, path))
    match damage:
        case "cut":
            truncate(disk, path, size - 1)
        case "empty":
            truncate(disk, path, 0)
        case _:
            places = {"magic": 0, "version": 4, "length": 8, "sum": 16, "body": size // 2, "end": size - 1}
            flip(disk, path, places[damage])


class Keeping(World):
    """A world with one large WAL file, so that no checkpoint trims it."""

    def start(self, **changed: Any) -> "Keeping":
        """With a file that is never full."""
        super().start(**{**changed, "wal_file_bytes": 1 << 20})
        return self


_REPLAYED: Sequence[Scenario] = (
    scenarios.seal,
    scenarios.flag_flip,
    scenarios.checkpoint,
    scenarios.relocate,
    scenarios.delete_topic,
    scenarios.class_change,
    scenarios.retention,
)


@pytest.mark.parametrize("scenario", _REPLAYED, ids=lambda scenario: scenario.__name__)
def test_checkpoint_and_tail_give_what_a_full_replay_gives(scenario: Scenario) -> None:
    """At many moments of a run: once with its checkpoint, once with none, compared field by field.

    proves: G-REC-8; inv: 82
    """
    world = Keeping(keep_images=True, order=False)
    scenario(world)
    images = [image for image in world.images if any(n.endswith(".bin") for n in image.disk.names("/data/meta"))]
    compared = 0
    for image in images if ALL else images[:: max(1, len(images) // 25)] + images[-1:]:
        pictures = []
        for checkpoints in (True, False):
            disk = image.disk.crash(CrashMode.KEEP, 0)
            for name in [] if checkpoints else disk.names("/data/meta"):
                disk.unlink(f"/data/meta/{name}")
            # Later than any moment that either of them notes for TTL.
            again = World(
                disk, ledger=image.ledger.copy(), wall_ms=image.wall_ms + 10_000, settings=image.settings, order=False
            ).start()
            assert (again.engine.recovered.snapshot > 0) == checkpoints
            pictures.append(again.picture())
        for picture in pictures:
            for topic in picture["topics"].values():
                if topic["config"].durability == "ephemeral":
                    for field in ("head", "earliest", "next_seq", "tombstones"):
                        del topic[field]  # as of the last checkpoint, by contract
        assert not differences(pictures[0], pictures[1]), image.call
        compared += 1
    assert compared >= 5


# Segments


def sealed(*, cold: bool = False) -> World:
    """A topic of four sealed segments that a checkpoint names, of two blocks each, and a few records behind them."""
    world = World().start(
        segment_max_events=300, wal_file_bytes=4096, cold_dir="/cold" if cold else None, hot_retain_segments=0
    )
    world.put("one", "fsync")
    world.settle()
    for _ in range(4):
        world.append("one", 260, tags=["a", None])
        world.append("one", 40, tags=["b"])
        world.settle()
    world.advance(6000)
    assert world.checkpoint()
    world.append("one", 3)
    world.settle()
    return world


def reopened(disk: SimDisk, world: World) -> World:
    """Another process, with nothing in memory."""
    return restart(disk, world, cache_bytes=0)


def test_a_damaged_sealed_block_is_a_hole_from_its_first_read_on() -> None:
    """proves: G-SEG-2, G-TOMB-3, G-TOMB-8"""
    world = sealed()
    path = f"{TOPIC}/seg-0000000000000301.data"
    blocks = frames(world.disk, path)
    assert [(block.seq, block.count) for block in blocks] == [(301, 260), (561, 40)]
    for block in blocks:
        place, first, last = block.start + 200, block.seq, block.seq + block.count - 1
        disk = world.disk.crash(CrashMode.KEEP, 0)
        flip(disk, path, place)
        again = reopened(disk, world)
        assert again.engine.recovered.damaged == 0
        assert again.engine.topic("one").count == 1203
        frames_before = again.engine.shards.all[0].counters.frames
        shown = seqs(again, "one")
        assert again.engine.shards.all[0].counters.frames > frames_before, "it was not logged"
        assert shown == [seq for seq in range(1, 1204) if not first <= seq <= last]
        assert again.engine.topic("one").count == len(shown)
        assert again.engine.topic("one").holes.all == [Hole(first, last, Reason.CORRUPTION)]
        stays_so(again)
        # With the damage gone the hole stays: it has been told.
        disk = again.disk.crash(CrashMode.DROP, 0)
        flip(disk, path, place)
        assert restart(disk, again).engine.topic("one").holes.all == [Hole(first, last, Reason.CORRUPTION)]


def test_a_delete_goes_around_a_damaged_block() -> None:
    """proves: G-SEG-2, G-DEL-1"""
    world = sealed()
    disk = world.disk.crash(CrashMode.KEEP, 0)
    flip(disk, f"{TOPIC}/seg-0000000000000301.data", 200)
    again = reopened(disk, world)
    again.delete("one", tag="a")
    again.delete("one", before=400)
    again.settle()
    shown = seqs(again, "one")
    assert not any(seq < 400 or (seq % 300 <= 260 and seq % 2 and seq < 1200 and seq % 300) for seq in shown)
    assert {561, 600, 1203} <= set(shown)
    stays_so(again)


@pytest.mark.parametrize("suffix", ["idx", "tags"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_index_is_made_again_from_the_data(suffix: str, damage: str) -> None:
    """proves: G-SEG-6"""
    world = sealed()
    before = restart(world.disk.crash(CrashMode.KEEP, 0), world).picture()
    disk = world.disk.crash(CrashMode.KEEP, 0)
    path = f"{TOPIC}/seg-0000000000000301.{suffix}"
    match damage:
        case "flip":
            flip(disk, path, 30)
        case "cut":
            truncate(disk, path, 20)
        case _:
            remove(disk, path)
    again = reopened(disk, world)
    assert not differences(before, again.picture())
    again.delete("one", tag="a")
    again.settle()
    assert [seq for seq in seqs(again, "one") if 300 < seq <= 600] == [*range(302, 561, 2), *range(561, 601)]
    stays_so(again)


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_a_missing_named_segment_refuses_the_start_and_nothing_is_removed(*, cold: bool) -> None:
    """proves: G-SEG-6; row: F-COLD-4"""
    world = sealed(cold=cold)
    disk = world.disk.crash(CrashMode.KEEP, 0)
    directory = TOPIC.replace("/data", "/cold") if cold else TOPIC
    path = f"{directory}/seg-0000000000000301.{'parquet' if cold else 'data'}"
    content = read_file(disk, path)
    remove(disk, path)
    names = disk.names(directory)
    for _ in range(2):
        with pytest.raises(StartError, match=r"records 301..600 of topic 'one' .*--accept-loss one 301..600"):
            reopened(disk, world)
    assert disk.names(directory) == names
    file = disk.create(path)
    file.pwritev([content], 0)
    file.close()
    again = reopened(disk, world)
    assert seqs(again, "one") == list(range(1, 1204))
    assert again.engine.topic("one").holes.all == []


def test_a_named_segment_that_was_cut_is_a_hole() -> None:
    """proves: G-SEG-6, G-TOMB-3"""
    world = sealed()
    disk = world.disk.crash(CrashMode.KEEP, 0)
    truncate(disk, f"{TOPIC}/seg-0000000000000301.data", 5000)
    again = reopened(disk, world)
    assert seqs(again, "one") == [seq for seq in range(1, 1204) if not 301 <= seq <= 600]
    assert again.engine.topic("one").holes.all == [Hole(301, 600, Reason.CORRUPTION)]
    stays_so(again)


def test_a_flag_written_by_hand_hides_that_record_and_any_other_byte_none() -> None:
    """proves: G-DEL-4; inv: 81"""
    world = sealed()
    path = f"{TOPIC}/seg-0000000000000301.data"
    frame = frames(world.disk, path)[0]
    for value in (0x00, 0x01, 0xD4, 0xD5, 0xFF):
        disk = world.disk.crash(CrashMode.KEEP, 0)
        flip(disk, path, frame.end - frame.count + 9, value)
        again = reopened(disk, world)
        assert (310 in seqs(again, "one")) == (value != 0xD5)
        assert again.engine.topic("one").count == 1203 - (value == 0xD5)
        stays_so(again)
    # Not in a frame that does not check out.
    disk = world.disk.crash(CrashMode.KEEP, 0)
    flip(disk, path, frame.end - frame.count + 9, 0xD5)
    flip(disk, path, frame.start + 200)
    again = reopened(disk, world)
    assert again.engine.topic("one").count == 1203
    assert seqs(again, "one") == [seq for seq in range(1, 1204) if not 301 <= seq <= 560]


def test_a_damaged_cold_segment_is_a_hole() -> None:
    """proves: G-SEG-2, G-SEG-6, G-TOMB-3"""
    world = sealed(cold=True)
    before = restart(world.disk.crash(CrashMode.KEEP, 0), world).picture()
    cold = "/cold/topics/00000001/seg-0000000000000301"
    size = len(content(world.disk, f"{cold}.parquet"))
    for suffix, place in (("parquet", 200), ("parquet", size - 3), ("parquet", size - 100), ("del", 2), ("del", 20)):
        disk = world.disk.crash(CrashMode.KEEP, 0)
        flip(disk, f"{cold}.{suffix}", place)
        again = reopened(disk, world)
        assert seqs(again, "one") == [seq for seq in range(1, 1204) if not 301 <= seq <= 600], (suffix, place)
        assert again.engine.topic("one").holes.all == [Hole(301, 600, Reason.CORRUPTION)]
        stays_so(again)
    assert not differences(before, restart(world.disk.crash(CrashMode.KEEP, 0), world).picture())
