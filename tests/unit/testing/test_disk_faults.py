"""The faulty disk: which call fails, how, and until when."""

import errno
from collections.abc import Callable
from functools import partial

import pytest

from driftq.system.disk import Disk, Site, read_file, write_fully
from driftq.testing import SHORT, FaultyDisk, SimDisk


def _work(disk: Disk) -> None:
    """One call of every kind that changes something or syncs."""
    disk.lock("/data/.lock", b"pid").release()
    disk.mkdir("/data/d")
    file = disk.create("/data/d/a")
    write_fully(file, [b"abc", b"def"], 0)
    file.truncate(3)
    file.truncate(100)
    file.sync(Site.SEGMENT_DATA)
    disk.rename("/data/d/a", "/data/d/b")
    disk.sync_dir("/data/d", Site.SEGMENT_DIR)
    read_file(disk, "/data/d/b")
    disk.names("/data/d")
    disk.unlink("/data/d/b")
    disk.remove_tree("/data/d")
    file.close()


def _tell(told: list[str], operation: str, path: str) -> None:
    told.append(operation)


def _first_faults(*, error: int = errno.EIO, reads: bool = False) -> list[str]:
    """Fail the 1st, 2nd, … call until a run meets no fault; which call each run ended at."""
    ended: list[str] = []
    for fail_at in range(1, 100):
        told: list[str] = []
        inner = SimDisk(on_call=partial(_tell, told))
        disk = FaultyDisk(inner, fail_at=fail_at, error=error, reads=reads)
        met = None
        try:
            _work(disk)
        except OSError as fault:
            met = fault.errno
        if met is None:
            assert disk.failed == 0
            return ended
        assert (met, disk.failed, disk.calls) == (error, 1, fail_at)
        ended.append(f"after {told[-1]}" if told else "at once")
    raise AssertionError("the loop does not end")


def test_a_loop_over_the_count_meets_every_call_and_ends() -> None:
    assert _first_faults() == [
        "at once",
        "after lock",
        "after mkdir",
        "after create",
        "after pwritev",
        "after truncate",
        "after truncate",
        "after sync",
        "after rename",
        "after sync_dir",
        "after unlink",
    ]


def test_reads_are_counted_when_asked_for() -> None:
    # open, pread and names come between the sync of the directory and the unlink.
    assert _first_faults(reads=True).count("after sync_dir") == 4


def test_a_full_disk_refuses_only_what_needs_space() -> None:
    assert _first_faults(error=errno.ENOSPC) == [
        "after lock",  # mkdir
        "after mkdir",  # create
        "after create",  # pwritev
        "after truncate",  # the truncate that extends; not the one that cuts
        "after sync",  # rename
    ]


def test_a_fault_strikes_once_or_for_ever() -> None:
    def tries(disk: FaultyDisk) -> list[bool]:
        worked = []
        for _ in range(4):
            try:
                disk.mkdir("/data/d")
                worked.append(True)
            except OSError:
                worked.append(False)
        return worked

    assert tries(FaultyDisk(SimDisk(), fail_at=2)) == [True, False, True, True]
    for_ever = FaultyDisk(SimDisk(), fail_at=2, forever=True)
    assert tries(for_ever) == [True, False, False, False]
    for_ever.heal()
    assert tries(for_ever) == [True] * 4
    assert (for_ever.calls, for_ever.failed) == (8, 3)


def test_a_failed_call_changes_nothing() -> None:
    inner = SimDisk()
    disk = FaultyDisk(inner, fail_at=2)
    file = disk.create("/data/a")
    before = inner.state_digest()
    with pytest.raises(OSError, match="Input/output error"):
        file.pwritev([b"abc"], 0)
    assert inner.state_digest() == before


def test_calls_can_be_chosen_by_what_they_do_and_where() -> None:
    def wal_syncs(operation: str, path: str) -> bool:
        return operation == "sync" and "/wal-" in path

    disk = FaultyDisk(SimDisk(), when=wal_syncs, forever=True)
    other, wal = disk.create("/data/seg-1.data"), disk.create("/data/wal-1.log")
    other.sync(Site.SEGMENT_DATA)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            wal.sync(Site.WAL_COMMIT)
    assert (disk.calls, disk.failed) == (2, 2)


def test_chosen_calls_can_be_counted_too() -> None:
    disk = FaultyDisk(SimDisk(), fail_at=2, when=lambda operation, path: operation == "create")
    disk.mkdir("/data/d")
    disk.create("/data/a")
    disk.mkdir("/data/e")
    with pytest.raises(OSError, match="/data/b"):
        disk.create("/data/b")


def test_a_chosen_read_fails_when_reads_are_on() -> None:
    disk = FaultyDisk(SimDisk(), when=lambda operation, path: operation.startswith("pread"), reads=True, forever=True)
    file = disk.create("/data/a")
    write_fully(file, [b"abc"], 0)
    reads: list[Callable[[], object]] = [lambda: file.pread(1, 0), lambda: file.pread_nowait(1, 0)]
    for read in reads:
        with pytest.raises(OSError, match="Input/output error"):
            read()
    disk.heal()
    assert [read() for read in reads] == [b"a", b"a"]
    assert (file.size(), disk.exists("/data/a")) == (3, True)


@pytest.mark.parametrize("forever", [False, True])
def test_a_short_write_takes_a_part_and_whoever_goes_on_gets_all_down(forever: bool) -> None:
    disk = FaultyDisk(SimDisk(), error=SHORT, forever=forever)
    file = disk.create("/data/a")
    assert write_fully(file, [b"abc", b"de", b"", b"fghijk"], 5) == 16
    assert file.pread(100, 5) == b"abcdefghijk"
    assert disk.failed == (4 if forever else 1)


def test_a_short_write_takes_at_least_one_byte_and_one_byte_is_never_short() -> None:
    disk = FaultyDisk(SimDisk(), error=SHORT, forever=True)
    file = disk.create("/data/a")
    assert [file.pwritev([b"x" * size], 0) for size in (5, 3, 2, 1)] == [2, 1, 1, 1]
    assert (disk.calls, disk.failed) == (3, 3)
