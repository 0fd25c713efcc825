"""The simulated disk as a file system: handles, names, errors, counting and death."""

import pytest

from driftq.system.disk import Disk, Site, read_file, write_fully, write_zeros
from driftq.system.lock import LockHeldError
from driftq.testing import Crashed, CrashMode, SimDisk


def _put(disk: Disk, path: str, data: bytes) -> None:
    file = disk.create(path)
    file.pwritev([data], 0)
    file.close()


def test_roots_exist_durably_at_any_depth() -> None:
    disk = SimDisk(["/srv/data", "/cold"]).crash(CrashMode.DROP, 0)
    assert disk.names("/") == ["cold", "srv"]
    assert disk.exists("/srv/data")
    assert disk.calls == 0


def test_reads_see_every_write_that_has_returned() -> None:
    disk = SimDisk()
    file = disk.create("/data/a")
    assert file.pwritev([b"abc", b"", b"def"], 0) == 6
    assert disk.open("/data/a").pread(10, 2) == b"cdef"
    assert file.pwritev([b"XY"], 8) == 2
    assert file.pread(100, 0) == b"abcdef\0\0XY"
    assert file.size() == 10
    assert file.pread(5, 10) == b""


def test_a_write_of_nothing_takes_nothing() -> None:
    file = SimDisk().create("/data/a")
    assert file.pwritev([b""], 100) == 0
    assert file.size() == 0


def test_truncate_cuts_and_extends_with_zeros_not_with_what_was_there() -> None:
    file = SimDisk().create("/data/a")
    write_fully(file, [b"x" * 10_000], 0)
    file.truncate(5_000)
    file.truncate(10_000)
    assert file.pread(10_000, 0) == b"x" * 5_000 + bytes(5_000)
    file.truncate(0)
    file.truncate(3)
    assert file.pread(10, 0) == bytes(3)


def test_a_read_that_may_not_wait_is_whole_or_nothing() -> None:
    disk = SimDisk()
    _put(disk, "/data/a", b"abcdef")
    file = disk.open("/data/a")
    assert file.pread_nowait(3, 3) == b"def"
    assert file.pread_nowait(4, 3) is None
    disk.cached = False
    assert file.pread_nowait(3, 3) is None
    assert file.pread(3, 3) == b"def"


def test_handles_survive_rename_and_unlink() -> None:
    disk = SimDisk()
    file = disk.create("/data/a")
    disk.rename("/data/a", "/data/b")
    write_fully(file, [b"one"], 0)
    assert read_file(disk, "/data/b") == b"one"
    disk.unlink("/data/b")
    write_fully(file, [b"two"], 3)
    file.sync(Site.WAL_COMMIT)
    assert file.pread(10, 0) == b"onetwo"
    assert not disk.exists("/data/b")


def test_a_new_file_of_an_old_name_is_another_file() -> None:
    disk = SimDisk()
    old = disk.create("/data/a")
    disk.unlink("/data/a")
    _put(disk, "/data/a", b"new")
    write_fully(old, [b"old"], 0)
    assert read_file(disk, "/data/a") == b"new"


def test_creating_an_existing_file_cuts_it() -> None:
    disk = SimDisk()
    _put(disk, "/data/a", b"something")
    disk.create("/data/a").close()
    assert read_file(disk, "/data/a") == b""


def test_directories_list_their_names_and_go_with_all_below() -> None:
    disk = SimDisk()
    assert disk.mkdir("/data/t")
    assert not disk.mkdir("/data/t")
    assert disk.mkdir("/data/t/u/")
    _put(disk, "/data/t/u/b", b"")
    _put(disk, "/data/t/a", b"")
    assert disk.names("/data/t/") == ["a", "u"]
    disk.remove_tree("/data/t")
    disk.remove_tree("/data/t")
    assert not disk.exists("/data/t/u/b")
    assert disk.names("/data/t") == []
    assert disk.names("/data") == []


def test_a_missing_file_is_no_error_to_remove_and_one_to_open() -> None:
    disk = SimDisk()
    disk.unlink("/data/a")
    with pytest.raises(FileNotFoundError):
        disk.open("/data/a")
    with pytest.raises(FileNotFoundError):
        disk.sync_dir("/data/a", Site.WAL_DIR)
    with pytest.raises(FileNotFoundError):
        disk.rename("/data/a", "/data/b")
    with pytest.raises(FileNotFoundError):
        disk.mkdir("/data/a/b")


def test_files_and_directories_are_not_taken_for_each_other() -> None:
    disk = SimDisk()
    disk.mkdir("/data/d")
    _put(disk, "/data/f", b"")
    for call in (disk.open, disk.create, disk.unlink):
        with pytest.raises(IsADirectoryError):
            call("/data/d")
    with pytest.raises(IsADirectoryError):
        disk.rename("/data/f", "/data/d")
    with pytest.raises(NotADirectoryError):
        disk.names("/data/f")
    with pytest.raises(NotADirectoryError):
        disk.create("/data/f/x")
    with pytest.raises(AssertionError, match="only files"):
        disk.rename("/data/d", "/data/e")
    assert not disk.exists("/data/f/x")
    disk.remove_tree("/data/f")
    assert disk.exists("/data/f")


def test_a_closed_handle_refuses() -> None:
    file = SimDisk().create("/data/a")
    file.close()
    file.close()
    for call in (file.size, lambda: file.pwritev([b"x"], 0), lambda: file.sync(Site.WAL_COMMIT)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()


def test_a_lock_has_one_holder() -> None:
    disk = SimDisk()
    lock = disk.lock("/data/.lock", b"pid 1")
    with pytest.raises(LockHeldError):
        disk.lock("/data/.lock", b"pid 2")
    assert read_file(disk, "/data/.lock") == b"pid 1"
    lock.release()
    disk.lock("/data/.lock", b"2")
    lock.release()
    with pytest.raises(LockHeldError):
        disk.lock("/data/.lock", b"pid 3")
    assert read_file(disk, "/data/.lock") == b"2"


def test_a_crash_and_a_fork_start_without_locks() -> None:
    disk = SimDisk()
    disk.lock("/data/.lock", b"pid 1")
    disk.crash(CrashMode.KEEP, 0).lock("/data/.lock", b"pid 2")
    disk.fork().lock("/data/.lock", b"pid 2")
    with pytest.raises(LockHeldError):
        disk.lock("/data/.lock", b"pid 2")


def test_every_call_that_can_change_something_is_counted_and_told() -> None:
    told: list[tuple[str, str]] = []
    disk = SimDisk(on_call=lambda operation, path: told.append((operation, path)))
    disk.mkdir("/data/d")
    file = disk.create("/data/d/a")
    file.pwritev([b"abc"], 0)
    file.truncate(2)
    file.sync(Site.SEGMENT_DATA)
    disk.rename("/data/d/a", "/data/d/b")
    disk.sync_dir("/data/d", Site.SEGMENT_DIR)
    disk.unlink("/data/d/b")
    disk.remove_tree("/data/d")
    disk.lock("/data/.lock", b"").release()
    assert told == [
        ("mkdir", "/data/d"),
        ("create", "/data/d/a"),
        ("pwritev", "/data/d/a"),
        ("truncate", "/data/d/a"),
        ("sync", "/data/d/a"),
        ("rename", "/data/d/a"),
        ("sync_dir", "/data/d"),
        ("unlink", "/data/d/b"),
        ("remove_tree", "/data/d"),
        ("lock", "/data/.lock"),
    ]
    assert disk.calls == len(told)
    disk.names("/data")
    disk.exists("/data/d")
    file.pread(1, 0)
    file.close()
    with pytest.raises(FileNotFoundError):
        disk.create("/data/missing/a")
    assert disk.calls == len(told)


def test_the_process_dies_behind_the_call_it_is_told_to_die_at() -> None:
    disk = SimDisk(crash_after=2)
    file = disk.create("/data/a")
    with pytest.raises(Crashed):
        file.pwritev([b"abc"], 0)
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.sync(Site.WAL_COMMIT),
        lambda: disk.create("/data/b"),
        lambda: disk.names("/data"),
        lambda: disk.exists("/data"),
        lambda: disk.open("/data/a"),
    ):
        with pytest.raises(Crashed):
            call()
    file.close()
    assert disk.calls == 2
    after = disk.crash(CrashMode.KEEP, 0)
    assert after.names("/data") == ["a"]
    assert read_file(after, "/data/a") == b"abc"
    assert read_file(disk.fork(), "/data/a") == b"abc"


def test_no_handler_of_ordinary_errors_survives_a_power_loss() -> None:
    assert not issubclass(Crashed, Exception)


def test_syncs_are_counted_by_site_also_ignored_ones() -> None:
    disk = SimDisk(ignore=Site.WAL_DIR)
    file = disk.create("/data/a")
    file.sync(Site.WAL_COMMIT)
    file.sync(Site.WAL_COMMIT)
    disk.sync_dir("/data", Site.WAL_DIR)
    assert disk.synced == {Site.WAL_COMMIT: 2, Site.WAL_DIR: 1}
    assert disk.calls == 4


def test_a_fork_goes_its_own_way() -> None:
    disk = SimDisk()
    file = disk.create("/data/a")
    file.pwritev([b"one"], 0)
    image = disk.fork()
    file.pwritev([b"two"], 0)
    disk.unlink("/data/a")
    other = image.open("/data/a")
    assert other.pread(3, 0) == b"one"
    other.pwritev([b"six"], 0)
    assert file.pread(3, 0) == b"two"
    assert image.calls == 3


def test_a_fork_shares_what_the_files_hold() -> None:
    disk = SimDisk()
    file = disk.create("/data/a")
    write_zeros(file, 0, 1 << 20)
    write_fully(file, [b"x" * 8_192], 4_096)
    ours, theirs = (d.open("/data/a")._content() for d in (disk, disk.fork()))
    assert ours is theirs
    # Zero pages are not kept at all.
    assert (ours.size, sorted(ours.pages)) == (1 << 20, [1, 2])


def test_digests_are_equal_for_equal_states_and_only_for_those() -> None:
    def build(*, data: bytes, synced: bool, entry_synced: bool) -> SimDisk:
        disk = SimDisk()
        file = disk.create("/data/a")
        file.pwritev([data], 0)
        if synced:
            file.sync(Site.WAL_COMMIT)
        if entry_synced:
            disk.sync_dir("/data", Site.WAL_DIR)
        return disk

    kinds = [(data, s, e) for data in (b"a", b"b") for s in (False, True) for e in (False, True)]
    digests = [build(data=d, synced=s, entry_synced=e).state_digest() for d, s, e in kinds]
    assert digests == [build(data=d, synced=s, entry_synced=e).state_digest() for d, s, e in kinds]
    assert len(set(digests)) == len(kinds)


def test_a_digest_knows_a_state_however_it_came_about() -> None:
    straight = SimDisk()
    _put(straight, "/data/b", b"hello")
    detour = SimDisk()
    _put(detour, "/data/x", b"other")
    detour.unlink("/data/x")
    _put(detour, "/data/a", b"hell")
    detour.open("/data/a").pwritev([b"o"], 4)
    detour.rename("/data/a", "/data/b")
    assert straight.state_digest() != detour.state_digest()
    kept = [disk.crash(CrashMode.KEEP, 0).state_digest() for disk in (straight, detour)]
    assert kept[0] == kept[1]


def test_what_a_failed_sync_left_is_read_and_never_durable() -> None:
    disk = SimDisk()
    file = disk.create("/data/f")
    disk.sync_dir("/data", Site.LAYOUT_DIR)
    file.pwritev([b"lost"], 0)
    file.forget_pending()
    file.sync(Site.WAL_COMMIT)
    assert file.pread(9, 0) == b"lost"
    assert disk.fork().open("/data/f").pread(9, 0) == b"lost"
    assert disk.crash(CrashMode.DROP, 0).open("/data/f").pread(9, 0) == b""
    file.pwritev([b"kept"], 0)
    file.sync(Site.WAL_COMMIT)
    assert disk.crash(CrashMode.DROP, 0).open("/data/f").pread(9, 0) == b"kept"


def test_a_disk_without_space_cuts_writes_short_and_then_refuses_them() -> None:
    disk = SimDisk()
    first, second = disk.create("/data/a"), disk.create("/data/b")
    disk.space = 10
    assert first.pwritev([b"123456"], 0) == 6
    assert disk.free_bytes("/data") == 4
    assert second.pwritev([b"abcdef"], 0) == 4
    with pytest.raises(OSError, match="No space left"):
        second.pwritev([b"ef"], 4)
    assert first.pwritev([b"xyz"], 2) == 3, "a write inside a file needs no space"
    assert (disk.used_bytes(), disk.fork().free_bytes("/data")) == (10, 0)
    disk.unlink("/data/a")
    assert second.pwritev([b"ef"], 4) == 2
    second.truncate(1)
    assert disk.free_bytes("/data") == 9
