"""A disk of so many bytes that fills up: what works on it, what brings the space back, and starts without any."""

from collections.abc import Callable
from typing import Any

import pytest

from driftq.errors import DiskFullError, DriftQError
from driftq.storage.layout import Layout
from driftq.storage.wal.wal_file import WalFiles
from driftq.system.disk import Site
from driftq.system.runtime import Pending
from driftq.testing import CrashMode, SimDisk
from tests.crash.judge import Violation
from tests.crash.sweep import ALL, KILL, MODES, Swept, crash, sweep
from tests.crash.world import SETTINGS, World

pytestmark = pytest.mark.crash

_SPACE = 4_000_000
_FULL: dict[str, Any] = {"wal_file_bytes": 256 << 10, "disk_reserve_bytes": 256 << 10}


def _begin(*, seed: int | None = None, ignore: Site | None = None, space: int = _SPACE) -> World:
    world = World(SimDisk(["/data", "/cold"], ignore=ignore), seed=seed)
    world.disk.space = space
    world.start(**_FULL)
    for name in ("a", "b"):
        world.put(name, "fsync")
    world.put("d", "disk")
    world.settle()
    world.advance(100)
    return world


def _fill(world: World, *names: str) -> None:
    """Write until records have been refused for two seconds on end, and what can be kept in reserve is kept."""
    refused_ms = 0
    while refused_ms < 2000:
        for name in names:
            try:
                answer = world.append(name, 3, padding=4000)
            except DiskFullError:
                refused_ms += 100
                world.advance(100)
            else:
                world.settle()
                refused_ms = 0 if answer.error is None else refused_ms
                assert answer.error is None or isinstance(answer.error, DiskFullError)
    world.advance(6000)


def _take_the_rest(world: World) -> None:
    world.disk.space = world.disk.used_bytes()


def _ended(world: World, mode: str) -> SimDisk:
    """Return what a start finds after a graceful stop, or after a crash of this mode."""
    if mode != "stop":
        return crash(world.disk, mode, 1)
    closing = world.engine.close()
    world.runtime.advance(1000)
    assert closing.result()
    return world.disk.fork()


def _started_on(disk: SimDisk, world: World) -> World:
    """Start a server on a disk, and check that it has all that the one before promised."""
    again = World(disk, ledger=world.ledger.copy(), settings=world.settings, wall_ms=world.clock.wall_ms(), order=False)
    again.start()
    again.judge()
    return again


def _done(world: World, call: Callable[[], Pending[Any]]) -> Any:
    answer = call()
    world.settle()
    return answer.result()


def _is_short(world: World) -> bool:
    return world.engine.change_log.space.short


def _wait_until_roomy(world: World) -> None:
    for _ in range(30):
        if not _is_short(world):
            return
        world.advance(100)
    raise AssertionError(f"still short after 3 s: {world.engine.refusal}")


WAYS: dict[str, Callable[[World], Pending[Any]]] = {
    "delete": lambda world: world.delete("a", before=world.engine.topic("a").head - 3),
    "cap": lambda world: world.put("a", "fsync", cap_records=10),
    "topic": lambda world: world.drop("a"),
}


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_is_emptied_from_inside(way: str, seed: int | None) -> None:
    """proves: G-IO-15, G-IO-13"""
    world = _begin(seed=seed)
    _fill(world, "a", "b", "d")
    _take_the_rest(world)
    world.advance(2000)
    assert _is_short(world)
    with pytest.raises(DiskFullError, match="before_seq"):
        world.append("b", 1)
    deleted = _done(world, lambda: world.delete("b", seqs=[world.engine.topic("b").earliest]))
    assert deleted.deleted == 1
    free = world.disk.free_bytes("/data")
    _done(world, lambda: WAYS[way](world))
    _wait_until_roomy(world)
    assert world.disk.free_bytes("/data") > free
    assert _done(world, lambda: world.append("b", 1)).count == 1
    for mode in MODES:
        again = World(crash(world.disk, mode, 1), ledger=world.ledger.copy(), settings=world.settings, order=False)
        again.start()
        again.judge()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["stop", *MODES])
def test_a_start_without_a_free_byte_is_ready_and_can_be_emptied(mode: str, way: str) -> None:
    """proves: G-IO-14, G-IO-15"""
    world = _begin()
    _fill(world, "a", "b", "d")
    disk = _ended(world, mode)
    disk.space = disk.used_bytes()
    again = _started_on(disk, world)
    _done(again, lambda: WAYS[way](again))
    _wait_until_roomy(again)
    assert _done(again, lambda: again.append("b", 1)).count == 1
    again.crash(CrashMode.DROP)
    again.judge()


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_works_where_another_program_takes_every_free_byte(way: str, seed: int | None) -> None:
    """The checkpoint is written over the reserve file, so the reserve is never free for others.

    proves: G-IO-15
    """
    world = _begin(seed=seed)
    _fill(world, "a", "b", "d")
    disk = world.disk

    def take(operation: str, path: str) -> None:
        disk.space = disk.used_bytes()

    disk.on_call = take
    before = disk.used_bytes()
    _done(world, lambda: WAYS[way](world))
    world.advance(3000)
    assert disk.used_bytes() < before - (256 << 10)
    for mode in MODES:
        again = _started_on(crash(disk, mode, 1), world)
        again.judge()


def test_a_shard_without_a_file_is_covered_by_a_checkpoint_that_nothing_follows() -> None:
    """The log of a run that could never make a file is empty, and the next run's files are not passed over.

    proves: G-IO-14, G-REC-1
    """
    world = _begin()
    _fill(world, "a", "b")
    disk = world.disk.fork()
    disk.unlink("/data/.driftq.reserve")
    disk.space = disk.used_bytes() + 2000
    again = World(disk, ledger=world.ledger.copy(), settings=world.settings, wall_ms=world.clock.wall_ms(), order=False)
    again.start()
    again.advance(3000)
    again.disk.space = None
    again.advance(3000)
    assert not _is_short(again)
    assert _done(again, lambda: again.append("a", 2)).count == 2
    for mode in MODES:
        third = World(crash(again.disk, mode, 1), ledger=again.ledger.copy(), settings=again.settings, order=False)
        third.start()
        third.judge()


def test_a_power_loss_at_any_call_on_a_full_disk_keeps_every_promise() -> None:
    """Filling, the checkpoints for lack of space, deletes in the reserve, and writes with space back.

    proves: G-IO-15, G-IO-13, G-CKPT-1
    """
    swept = Swept()
    for seed in (None, 1, 2):
        world = _begin(seed=seed)
        _fill(world, "a", "b", "d")
        world.disk.space = world.disk.used_bytes() + 2000
        world._recording = True
        world.record(world.disk)
        world.advance(1200)
        for call in (
            lambda world=world: world.delete("a", before=30),
            lambda world=world: world.put("b", "fsync", cap_records=20),
            lambda world=world: world.drop("d"),
        ):
            _done(world, call)
            world.advance(1200)
        world.append("b", 4)
        world.settle()
        assert world.checkpoint()
        for image in world.images:
            image.disk.space = None  # the second life of a state writes to every topic
        sweep(world.images, states=10**6 if ALL else 120, swept=swept, seed=seed or 0)
    assert not swept.violations, "\n".join(swept.violations)
    assert len(swept.states) >= 300
    assert KILL in MODES
    assert SETTINGS.disk_reserve_bytes == 0, "sweeps of other scenarios spend no calls on the reserve"


def _crashed_on_a_full_disk(mode: str, *, ignore: Site | None = None) -> World:
    """A start after a crash on a disk where other programs take every byte that is given back, and took the reserve."""
    world = _begin(ignore=ignore)
    _fill(world, "a", "b", "d")
    disk = _ended(world, mode)
    disk.unlink("/data/.driftq.reserve")
    disk.space = 0
    return _started_on(disk, world)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["stop", *MODES])
def test_deletes_work_after_a_start_even_if_others_take_every_byte_that_is_given_back(mode: str, way: str) -> None:
    """proves: G-IO-14, G-IO-15"""
    again = _crashed_on_a_full_disk(mode)
    again.advance(3000)
    for _ in range(20):
        _done(again, lambda: again.delete("b", seqs=[again.engine.topic("b").earliest]))
    _done(again, lambda: WAYS[way](again))
    again.crash(CrashMode.DROP)
    again.judge()
    again.disk.space = None
    _wait_until_roomy(again)
    assert _done(again, lambda: again.append("b", 1)).count == 1


def test_without_the_sync_of_the_log_reserve_a_power_loss_takes_it() -> None:
    """proves: G-IO-14"""
    again = _crashed_on_a_full_disk("drop", ignore=Site.WAL_RESERVE)
    with pytest.raises(DiskFullError):
        _done(again, lambda: again.delete("b", seqs=[again.engine.topic("b").earliest]))


def test_without_the_sync_of_its_entry_a_power_loss_takes_the_log_reserve() -> None:
    """proves: G-IO-14"""
    for ignore, kept in ((None, True), (Site.WAL_RESERVE_DIR, False)):
        disk = SimDisk(["/data"], ignore=ignore)
        layout = Layout(disk, "/data")
        layout.prepare()
        WalFiles(layout, "", 1 << 20, keeps_reserve=True).keep_reserve()
        assert disk.crash(CrashMode.DROP, 0).exists(layout.wal_reserve_path("")) == kept


def _checkpoints_without_space(ignore: Site | None) -> int:
    """Count the power losses after which a start on a full disk has no space for a checkpoint."""
    world = _begin(ignore=ignore)
    _fill(world, "a", "b", "d")
    lacked = 0
    for seed in range(1, 4):
        disk = crash(world.disk, CrashMode.TORN, seed)
        disk.space = disk.used_bytes()
        again = _started_on(disk, world)
        again.advance(3000)
        lacked += again.engine.checkpointer.lacked > 0 or _is_short(again)
    return lacked


def test_after_a_power_loss_on_a_full_disk_a_checkpoint_has_room() -> None:
    """proves: G-IO-14"""
    assert _checkpoints_without_space(None) == 0


def test_without_the_sync_of_the_reserve_file_a_power_loss_takes_the_space_for_the_next_checkpoint() -> None:
    """proves: G-IO-14"""
    assert _checkpoints_without_space(Site.SPACE_RESERVE) > 0


def _begin_with(topics: int, space: int) -> World:
    """Start a server with many topics of class `disk` on a disk of this size."""
    world = World(SimDisk(["/data"]))
    world.disk.space = space
    world.start(**{**_FULL, "segment_max_events": 10_000})
    for number in range(topics):
        world.put(f"t{number}", "disk")
    world.settle()
    return world


def test_a_disk_that_many_small_topics_have_filled_is_emptied_by_deleting_their_records() -> None:
    """The newest records of every topic are in no segment: a checkpoint copies them, and needs a reserve for them.

    proves: G-IO-13, G-IO-15
    """
    world = _begin_with(topics := 60, 8_000_000)
    _fill(world, *(f"t{number}" for number in range(topics)))
    assert world.engine.checkpointer.needed > 500_000
    _take_the_rest(world)
    for number in range(topics * 2 // 3):
        _done(world, lambda: world.delete(f"t{number}", before=10**6))  # noqa: B023 - called at once
    _wait_until_roomy(world)
    assert _done(world, lambda: world.append("t0", 1)).count == 1
    closing = world.engine.close()
    world.runtime.advance(1000)
    assert closing.result()


def test_deletes_make_a_checkpoint_small_enough_if_there_is_no_reserve_for_it() -> None:
    """proves: G-IO-13, G-IO-15"""
    world = _begin_with(topics := 20, 4_000_000)
    _fill(world, *(f"t{number}" for number in range(topics)))
    world.disk.space = world.disk.used_bytes()
    disk = crash(world.disk, KILL, 1)
    reserve = disk.open("/data/.driftq.reserve")
    reserve.truncate(250_000)
    reserve.close()
    disk.space = disk.used_bytes()
    again = _started_on(disk, world)
    again.advance(3000)
    assert again.engine.checkpointer.lacked
    for number in range(topics - 1):
        _done(again, lambda: again.delete(f"t{number}", before=10**6))  # noqa: B023 - called at once
    _wait_until_roomy(again)
    assert _done(again, lambda: again.append("t0", 1)).count == 1


@pytest.mark.parametrize("reserve", [900_000, 1_050_000, 1_200_000])
def test_checkpoints_go_on_while_each_of_them_frees_something(reserve: int) -> None:
    """proves: G-IO-13; after the deletes nothing is written that would make a checkpoint due."""
    world = _begin_with(topics := 20, 4_000_000)
    _fill(world, *(f"t{number}" for number in range(topics)))
    world.disk.space = world.disk.used_bytes()
    disk = crash(world.disk, KILL, 1)
    file = disk.open("/data/.driftq.reserve")
    file.truncate(reserve)
    file.close()
    disk.space = disk.used_bytes()
    again = _started_on(disk, world)
    again.advance(3000)
    for number in range(11):
        _done(again, lambda: again.delete(f"t{number}", before=10**6))  # noqa: B023 - called at once
    again.advance(30_000)
    assert not _is_short(again)
    assert _done(again, lambda: again.append("t0", 1)).count == 1


@pytest.mark.parametrize("space", range(3_700_000, 6_000_000, 15_013 if ALL else 160_001))
def test_a_full_disk_of_any_size_can_be_emptied_and_stopped(space: int) -> None:
    """proves: G-IO-13, G-IO-15"""
    for others_take_the_rest in (False, True):
        world = _begin(space=space)
        _fill(world, "a", "b", "d")
        if others_take_the_rest:
            _take_the_rest(world)
            world.advance(2000)
        _done(world, lambda: WAYS["delete"](world))  # noqa: B023 - called at once
        _wait_until_roomy(world)
    world = _begin(space=space)
    _fill(world, "a", "b", "d")
    closing = world.engine.close()
    world.runtime.advance(3000)
    assert closing.result(), "the last checkpoint had no room"


def _damaged_starts(ignore: Site | None) -> int:
    """Count the power losses after a checkpoint over the reserve file that a second start does not recover from."""
    world = _begin(ignore=ignore)
    _fill(world, "a", "b", "d")
    _take_the_rest(world)
    lent = world.disk.synced[Site.SPACE_RESERVE_LENT]
    images = []

    def record(operation: str, path: str) -> None:
        if operation == "sync_dir" and path == "/data/meta" and world.disk.synced[Site.SPACE_RESERVE_LENT] > lent:
            images.append(world.disk.fork())

    world.disk.on_call = record
    _done(world, lambda: WAYS["delete"](world))
    world.advance(2000)
    assert len(images) > 1, "no checkpoint was written over the reserve file"
    damaged = 0
    for image in images:
        for seed in range(6):
            disk = image.crash(CrashMode.REORDER, seed)
            disk.space = None
            try:
                first = _started_on(disk, world)
                first.advance(6000)
                _started_on(crash(first.disk, KILL, 1), first)
            except (Violation, AssertionError, DriftQError):
                damaged += 1
    return damaged


def test_a_power_loss_never_leaves_a_checkpoint_that_is_the_reserve_file_too() -> None:
    """proves: G-IO-14, G-CKPT-1"""
    assert _damaged_starts(None) == 0


def test_without_the_syncs_of_a_lent_reserve_file_a_start_extends_a_checkpoint() -> None:
    """proves: G-IO-14"""
    assert _damaged_starts(Site.SPACE_RESERVE_LENT) > 0
