"""What a power loss leaves of a simulated disk, mode by mode."""

import pytest

from driftq.system.disk import Site, read_file, write_fully, write_zeros
from driftq.testing import CrashMode, SimDisk, SimFile

DROP, KEEP, TORN, REORDER = CrashMode
SEEDS = range(300)


def _durable_file(disk: SimDisk, path: str, data: bytes) -> SimFile:
    file = disk.create(path)
    file.pwritev([data], 0)
    file.sync(Site.WAL_COMMIT)
    disk.sync_dir(path.rpartition("/")[0], Site.WAL_DIR)
    return file


def _outcomes(disk: SimDisk, mode: CrashMode, path: str) -> set[bytes | None]:
    """What the file holds after a crash, over many seeds; None where it is gone."""
    crashed = [disk.crash(mode, seed) for seed in SEEDS]
    return {read_file(after, path) if after.exists(path) else None for after in crashed}


# --- content ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", CrashMode)
def test_what_is_synced_with_its_entry_survives_every_mode(mode: CrashMode) -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"one")
    write_fully(file, [b"two"], 3)
    file.sync(Site.WAL_COMMIT)
    assert _outcomes(disk, mode, "/data/a") == {b"onetwo"}


def test_unsynced_writes_are_dropped_or_kept() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"one")
    write_fully(file, [b"two"], 3)
    file.truncate(100)
    assert read_file(disk.crash(DROP, 0), "/data/a") == b"one"
    assert read_file(disk.crash(KEEP, 0), "/data/a") == b"onetwo".ljust(100, b"\0")


def test_a_sync_covers_the_size() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"x" * 5_000)
    file.truncate(10)
    file.sync(Site.WAL_COMMIT)
    assert read_file(disk.crash(DROP, 0), "/data/a") == b"x" * 10


def test_a_sync_covers_only_its_file() -> None:
    disk = SimDisk()
    first, second = (_durable_file(disk, path, b"old") for path in ("/data/a", "/data/b"))
    first.pwritev([b"new"], 0)
    second.pwritev([b"new"], 0)
    first.sync(Site.WAL_COMMIT)
    after = disk.crash(DROP, 0)
    assert (read_file(after, "/data/a"), read_file(after, "/data/b")) == (b"new", b"old")


def test_a_crash_does_not_change_the_disk_and_its_result_is_all_durable() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"one")
    file.pwritev([b"two"], 3)
    before = disk.state_digest()
    after = disk.crash(KEEP, 0)
    assert disk.state_digest() == before
    assert disk.crash(DROP, 0).open("/data/a").size() == 3
    assert after.crash(DROP, 0).state_digest() == after.state_digest()


# --- entries ------------------------------------------------------------------------------------------------------


def test_a_synced_file_without_a_durable_entry_vanishes() -> None:
    disk = SimDisk()
    file = disk.create("/data/a")
    file.pwritev([b"one"], 0)
    file.sync(Site.WAL_COMMIT)
    assert not disk.crash(DROP, 0).exists("/data/a")
    assert read_file(disk.crash(KEEP, 0), "/data/a") == b"one"
    assert _outcomes(disk, REORDER, "/data/a") == {None, b"one"}


def test_an_entry_without_content_is_an_empty_file() -> None:
    disk = SimDisk()
    disk.create("/data/a").pwritev([b"one"], 0)
    disk.sync_dir("/data", Site.WAL_DIR)
    assert read_file(disk.crash(DROP, 0), "/data/a") == b""


def test_a_durable_entry_below_a_pending_directory_vanishes_with_it() -> None:
    disk = SimDisk()
    disk.mkdir("/data/t")
    _durable_file(disk, "/data/t/a", b"one")
    assert disk.crash(DROP, 0).names("/data") == []
    disk.sync_dir("/data", Site.SEGMENT_TOPIC_DIR)
    assert read_file(disk.crash(DROP, 0), "/data/t/a") == b"one"


def test_syncing_the_parent_does_not_sync_the_child() -> None:
    disk = SimDisk()
    disk.mkdir("/data/t")
    disk.create("/data/t/a").close()
    disk.sync_dir("/data", Site.SEGMENT_TOPIC_DIR)
    assert disk.crash(DROP, 0).names("/data/t") == []


@pytest.mark.parametrize("mode", CrashMode)
def test_a_pending_rename_leaves_the_old_or_the_new_never_neither(mode: CrashMode) -> None:
    disk = SimDisk()
    _durable_file(disk, "/data/a", b"old")
    _durable_file(disk, "/data/a.tmp", b"new")
    disk.rename("/data/a.tmp", "/data/a")
    crashed = [disk.crash(mode, seed) for seed in SEEDS]
    found = {(tuple(after.names("/data")), read_file(after, "/data/a")) for after in crashed}
    before, behind = (("a", "a.tmp"), b"old"), (("a",), b"new")
    assert found == {DROP: {before}, KEEP: {behind}, TORN: {behind}, REORDER: {before, behind}}[mode]


def test_a_rename_takes_unsynced_content_along_as_it_is() -> None:
    disk = SimDisk()
    _durable_file(disk, "/data/a", b"old")
    file = disk.create("/data/a.tmp")
    file.pwritev([b"new"], 0)
    disk.rename("/data/a.tmp", "/data/a")
    disk.sync_dir("/data", Site.SNAPSHOT_DIR)
    assert read_file(disk.crash(DROP, 0), "/data/a") == b""


def test_a_move_between_directories_needs_both_synced() -> None:
    def moved(*synced: str) -> list[str]:
        disk = SimDisk()
        _durable_file(disk, "/data/a", b"one")
        disk.rename("/data/a", "/cold/a")
        for directory in synced:
            disk.sync_dir(directory, Site.COLD_DIR)
        after = disk.crash(DROP, 0)
        return [root for root in ("/data", "/cold") if after.names(root)]

    assert moved() == ["/data"]
    assert moved("/cold") == ["/data", "/cold"]
    assert moved("/data", "/cold") == ["/cold"]
    assert moved("/data") == []


def test_an_unlink_is_undone_until_its_directory_is_synced() -> None:
    disk = SimDisk()
    _durable_file(disk, "/data/a", b"one")
    disk.unlink("/data/a")
    assert read_file(disk.crash(DROP, 0), "/data/a") == b"one"
    assert _outcomes(disk, REORDER, "/data/a") == {None, b"one"}
    disk.sync_dir("/data", Site.WAL_DIR)
    assert not disk.crash(DROP, 0).exists("/data/a")


def test_a_removed_tree_comes_back_whole_in_part_or_not_at_all() -> None:
    disk = SimDisk()
    disk.mkdir("/data/t")
    disk.sync_dir("/data", Site.SEGMENT_TOPIC_DIR)
    for name in "abc":
        _durable_file(disk, f"/data/t/{name}", b"")
    disk.remove_tree("/data/t")
    assert disk.crash(DROP, 0).names("/data/t") == ["a", "b", "c"]
    assert disk.crash(KEEP, 0).names("/data") == []
    torn = {tuple(disk.crash(TORN, seed).names("/data/t")) for seed in SEEDS}
    assert torn == {("b", "c"), ("c",), ()}
    assert ("a", "c") in {tuple(disk.crash(REORDER, seed).names("/data/t")) for seed in SEEDS}
    disk.sync_dir("/data", Site.SEGMENT_TOPIC_DIR)
    assert disk.crash(DROP, 0).names("/data") == []


def test_a_name_used_again_before_a_sync_is_the_old_file_or_the_new() -> None:
    disk = SimDisk()
    _durable_file(disk, "/data/a", b"old")
    disk.unlink("/data/a")
    file = disk.create("/data/a")
    file.pwritev([b"new"], 0)
    file.sync(Site.WAL_COMMIT)
    assert read_file(disk.crash(DROP, 0), "/data/a") == b"old"
    assert _outcomes(disk, REORDER, "/data/a") == {b"old", None, b"new"}


def test_cutting_an_existing_file_is_pending_like_any_write() -> None:
    disk = SimDisk()
    _durable_file(disk, "/data/a", b"one")
    disk.create("/data/a").pwritev([b"2"], 0)
    assert read_file(disk.crash(DROP, 0), "/data/a") == b"one"
    assert _outcomes(disk, TORN, "/data/a") == {b""}
    assert _outcomes(disk, REORDER, "/data/a") == {b"one", b"", b"2", b"2ne", b"\0"}


# --- ignored sites ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ignored", "expected"),
    [(None, b"one"), (Site.WAL_COMMIT, b""), (Site.WAL_DIR, None), (Site.COLD_DEL, b"one")],
)
def test_an_ignored_sync_protects_nothing(ignored: Site | None, expected: bytes | None) -> None:
    disk = SimDisk(ignore=ignored)
    _durable_file(disk, "/data/a", b"one")
    assert _outcomes(disk, DROP, "/data/a") == {expected}


def test_the_site_stays_ignored_behind_a_crash() -> None:
    disk = SimDisk(ignore=Site.WAL_DIR).crash(DROP, 0).fork()
    _durable_file(disk, "/data/a", b"one")
    assert disk.crash(DROP, 0).names("/data") == []


# --- torn ---------------------------------------------------------------------------------------------------------


def test_a_torn_crash_keeps_a_prefix_and_cuts_the_last_write() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"")
    whole = b""
    for number in range(1, 6):
        part = bytes([number]) * 1_000
        file.pwritev([part], len(whole))
        whole += part
    lengths = set()
    for found in _outcomes(disk, TORN, "/data/a"):
        assert found is not None
        assert whole.startswith(found)
        lengths.add(len(found))
    assert {length % 8 for length in lengths} == {0}
    assert {length % 512 for length in lengths} > {0}
    assert len(lengths) > 50


def test_a_torn_write_ends_at_a_sector_or_a_word_of_the_file_wherever_it_starts() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"-" * 101)
    file.pwritev([b"x" * 1_203], 101)
    lengths = [disk.crash(TORN, seed).open("/data/a").size() for seed in SEEDS]
    assert set(lengths) <= {101, *range(104, 1_305, 8)}
    # By chance alone one word in 64 ends a sector.
    assert sum(length in (101, 512, 1_024) for length in lengths) > len(SEEDS) / 4
    assert len(set(lengths)) > 50


def test_a_torn_crash_follows_the_order_of_calls_over_all_files_and_directories() -> None:
    disk = SimDisk()
    files = [_durable_file(disk, f"/data/{name}", b"") for name in "ab"]
    for turn in range(6):
        files[turn % 2].pwritev([b"x" * 8], 8 * (turn // 2))
        disk.mkdir(f"/data/d{turn}")
    seen = set()
    for seed in SEEDS:
        after = disk.crash(TORN, seed)
        directories = sum(after.exists(f"/data/d{turn}") for turn in range(6))
        assert [after.exists(f"/data/d{turn}") for turn in range(6)] == [turn < directories for turn in range(6)]
        writes = (after.open("/data/a").size() + after.open("/data/b").size()) // 8
        assert writes in (directories, directories + 1)
        assert after.open("/data/a").size() >= after.open("/data/b").size()
        seen.add((directories, writes))
    # Each directory as the last to survive, and each write as the last, whole where its boundary allows that.
    assert {(n, n) for n in range(1, 7)} < seen
    assert {(n, n + 1) for n in range(6)} & seen


def test_a_crash_between_writes_and_syncs_never_loses_the_synced_part() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"")
    file.pwritev([b"a" * 2_000], 0)
    file.sync(Site.WAL_COMMIT)
    file.pwritev([b"b" * 2_000], 2_000)
    for mode in CrashMode:
        for found in _outcomes(disk, mode, "/data/a"):
            assert found is not None
            assert found.startswith(b"a" * 2_000)


# --- reorder ------------------------------------------------------------------------------------------------------


def test_reordered_writes_survive_each_for_itself() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", bytes(1_536))
    for sector in range(3):
        file.pwritev([b"x" * 512], 512 * sector)
    found = _outcomes(disk, REORDER, "/data/a")
    assert found == {
        b"".join((b"x" * 512 if mask >> sector & 1 else bytes(512)) for sector in range(3)) for mask in range(8)
    }


def test_a_reordered_write_loses_whole_sectors_of_the_file_only() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", bytes(2_048))
    file.pwritev([b"x" * 1_200], 100)
    found = _outcomes(disk, REORDER, "/data/a")
    pieces = [(100, 512), (512, 1_024), (1_024, 1_300)]
    allowed = set()
    for mask in range(8):
        content = bytearray(2_048)
        for number, (start, end) in enumerate(pieces):
            if mask >> number & 1:
                content[start:end] = b"x" * (end - start)
        allowed.add(bytes(content))
    assert found == allowed


def test_a_long_reordered_write_is_often_lost_or_kept_whole() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", bytes(65_536))
    file.pwritev([b"x" * 65_536], 0)
    kept = [disk.crash(REORDER, seed).open("/data/a").pread(65_536, 0).count(b"x") for seed in SEEDS]
    for whole in (0, 65_536):
        assert len(SEEDS) / 5 < kept.count(whole) < len(SEEDS) / 2
    assert len(set(kept)) > 20


def test_a_reordered_append_may_leave_its_size_without_its_bytes() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"old")
    file.pwritev([b"new"], 3)
    assert _outcomes(disk, REORDER, "/data/a") == {b"old", b"old\0\0\0", b"oldnew"}


def test_reordered_directory_operations_survive_each_for_itself() -> None:
    disk = SimDisk()
    for name in "abc":
        disk.create(f"/data/{name}").close()
    assert len({tuple(disk.crash(REORDER, seed).names("/data")) for seed in SEEDS}) == 8


# --- determinism and cost -----------------------------------------------------------------------------------------


def _busy() -> SimDisk:
    disk = SimDisk()
    for name in "abcd":
        disk.mkdir(f"/data/{name}")
        file = disk.create(f"/data/{name}/x")
        write_fully(file, [name.encode() * 3_000], 0)
        disk.rename(f"/data/{name}/x", f"/data/{name}/y")
        write_fully(file, [b"more"], 3_000)
    disk.sync_dir("/data", Site.SEGMENT_TOPIC_DIR)
    return disk


@pytest.mark.parametrize("mode", [TORN, REORDER])
def test_the_same_seed_crashes_alike_and_others_differ(mode: CrashMode) -> None:
    disk, again = _busy(), _busy()
    digests = [disk.crash(mode, seed).state_digest() for seed in range(50)]
    assert digests == [again.crash(mode, seed).state_digest() for seed in range(50)]
    assert digests == [disk.fork().crash(mode, seed).state_digest() for seed in range(50)]
    assert len(set(digests)) > 15


def test_an_image_behind_every_call_can_be_crashed_later() -> None:
    images: list[SimDisk] = []
    disk = SimDisk()
    disk.on_call = lambda operation, path: images.append(disk.fork())
    _durable_file(disk, "/data/a", b"one")
    crashed = [image.crash(DROP, 0) for image in images]
    assert [after.names("/data") for after in crashed] == [[], [], [], ["a"]]
    assert read_file(crashed[-1], "/data/a") == b"one"
    assert [image.calls for image in images] == [1, 2, 3, 4]


def test_preallocated_zeros_cost_nothing_to_keep() -> None:
    disk = SimDisk()
    file = disk.create("/data/wal")
    write_zeros(file, 0, 1 << 20)
    file.sync(Site.WAL_ROTATE)
    disk.sync_dir("/data", Site.WAL_DIR)
    file.pwritev([b"frame"], 8_000)
    for mode in CrashMode:
        after = disk.crash(mode, 1)
        content = after.open("/data/wal")._content()
        assert content.size == 1 << 20
        assert len(content.pages) <= 1


def test_many_pending_writes_are_kept_apart_and_freed_without_trouble() -> None:
    disk = SimDisk()
    file = _durable_file(disk, "/data/a", b"")
    for number in range(50_000):
        file.pwritev([b"x" * 8], 8 * number)
    sizes = [disk.crash(TORN, seed).open("/data/a").size() for seed in range(3)]
    assert len(set(sizes)) == 3
    file.sync(Site.WAL_COMMIT)
    assert disk.crash(DROP, 0).open("/data/a").size() == 400_000
