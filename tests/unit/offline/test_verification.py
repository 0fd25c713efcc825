"""`driftq verify`: whatever byte of whatever file changes, is cut off or vanishes, it is told."""

import random
from collections.abc import Iterator

import pytest

from driftq.errors import DataDirLockedError, StartError
from driftq.offline.directory_lock import held
from driftq.offline.findings import Finding, Verdict
from driftq.storage.layout import Layout
from driftq.testing import CrashMode, SimDisk
from tests.unit.offline.life import (
    Life,
    checked,
    contents,
    frames,
    kind_of,
    layout,
    lived,
    overwrite,
    truncate,
    used_bytes,
)

KINDS = {"wal", "meta", "stage", "data", "idx", "tags", "parquet", "del"}
_ID = "/data/.driftq.id"


@pytest.fixture(scope="module")
def sound() -> SimDisk:
    """A directory behind a graceful stop."""
    return lived().disk


@pytest.fixture(scope="module")
def killed() -> SimDisk:
    """A directory whose server was killed: a checkpoint, and a log behind it."""
    return lived(clean=False).disk.fork()


def test_a_directory_behind_a_graceful_stop_has_no_finding(sound: SimDisk) -> None:
    report = checked(sound)
    assert report.findings == []
    assert {kind_of(path) for path in contents(sound)} == KINDS
    assert report.files == len(contents(sound))
    assert report.records > 60
    assert report.topics == 5


def test_a_directory_of_a_killed_server_has_no_finding(killed: SimDisk) -> None:
    assert checked(killed).findings == []


@pytest.mark.parametrize("mode", list(CrashMode))
def test_what_a_power_loss_leaves_is_told_as_that(mode: CrashMode) -> None:
    life = lived(clean=False)
    for seed in range(4):
        report = checked(life.disk.crash(mode, seed))
        assert not report.wrong(after_crash=True), report.findings


def sampled(size: int, rng: random.Random) -> Iterator[int]:
    """Both ends of a file, and some places between."""
    if size:
        yield from sorted({0, 4, size - 1, *(rng.randrange(size) for _ in range(5))} & set(range(size)))


def test_every_flipped_byte_is_found_in_every_kind_of_file(sound: SimDisk) -> None:
    rng = random.Random(6)
    missed = []
    for path, content in contents(sound).items():
        for place in sampled(used_bytes(path, content), rng):
            disk = sound.fork()
            overwrite(disk, path, place, bytes([content[place] ^ (1 << rng.randrange(8))]))
            if not checked(disk).wrong():
                missed.append(f"{path} {place}")
    assert not missed


def test_every_cut_is_found_in_every_kind_of_file(sound: SimDisk) -> None:
    rng = random.Random(7)
    missed = []
    for path, content in contents(sound).items():
        for size in sampled(used_bytes(path, content), rng):
            disk = sound.fork()
            truncate(disk, path, size)
            if not checked(disk).wrong():
                missed.append(f"{path} {size}")
    assert not missed


def test_every_vanished_file_is_found(sound: SimDisk) -> None:
    """But a staged part: nothing names one before its commit."""
    missed = []
    for path in [*contents(sound), _ID]:
        disk = sound.fork()
        disk.unlink(path)
        if kind_of(path) != "stage" and not checked(disk).wrong():
            missed.append(path)
    assert not missed


def test_every_flipped_byte_of_the_log_of_a_killed_server_is_found(killed: SimDisk) -> None:
    """Those behind the last proof of a sync too: as a torn end."""
    rng = random.Random(8)
    missed = []
    for path, content in contents(killed).items():
        if kind_of(path) == "wal":
            for place in sampled(used_bytes(path, content), rng):
                disk = killed.fork()
                overwrite(disk, path, place, bytes([content[place] ^ 0x10]))
                if not checked(disk).wrong():
                    missed.append(f"{path} {place}")
    assert not missed


@pytest.mark.parametrize("kind", sorted(KINDS - {"wal", "meta", "stage"}))
def test_a_file_in_the_place_of_another_is_found(sound: SimDisk, kind: str) -> None:
    """It checks out by itself: only what stands beside it says that it does not belong there."""
    files = {path: content for path, content in contents(sound).items() if kind_of(path) == kind}
    missed = []
    for path, content in files.items():
        for other in set(files.values()) - {content}:
            disk = sound.fork()
            truncate(disk, path, 0)
            overwrite(disk, path, 0, other)
            if not checked(disk).wrong():
                missed.append(path)
    assert not missed


def test_anything_behind_the_end_of_the_log_is_found(sound: SimDisk) -> None:
    path, content = next((p, c) for p, c in contents(sound).items() if kind_of(p) == "wal")
    disk = sound.fork()
    overwrite(disk, path, -(-len(content) // 4096) * 4096 - 1, b"x")
    (finding,) = checked(disk).findings
    assert (finding.verdict, finding.offset) == (Verdict.TORN, used_bytes(path, content))


@pytest.mark.parametrize("suffix", ["data", "del"])
def test_a_delete_that_came_or_went_by_itself_is_found(sound: SimDisk, suffix: str) -> None:
    """The flags are outside every checksum: the checkpoint knows how many there are. Those of rows that retention has
    passed say nothing any more, so this looks at the topic without retention."""
    missed = []
    for path, content in contents(sound).items():
        if kind_of(path) == suffix and "/00000004/" in path:
            places = range(24, len(content)) if suffix == "del" else flag_places(content)
            for place in places:
                disk = sound.fork()
                overwrite(disk, path, place, bytes([0xD5 if content[place] == 0 else 0]))
                if not checked(disk).wrong():
                    missed.append(f"{path} {place}")
    assert not missed


def flag_places(content: bytes) -> list[int]:
    """Where the delete flags of a `.data` file stand."""
    return [place for frame in frames(content) for place in range(frame.end - frame.count, frame.end)]


def test_a_finding_tells_whose_records_are_concerned(sound: SimDisk) -> None:
    path = next(p for p in contents(sound) if kind_of(p) == "data")
    disk = sound.fork()
    overwrite(disk, path, 100, b"\xff\xff")
    finding = checked(disk).findings[0]
    assert isinstance(finding, Finding)
    assert finding.file == path
    assert finding.topic_id is not None
    assert finding.first_seq is not None


def test_a_directory_in_use_is_refused() -> None:
    life = Life()
    with pytest.raises(DataDirLockedError, match="in use by a server; stop it first"), held(layout(life.disk)):
        pass


def test_something_else_is_no_data_directory() -> None:
    with pytest.raises(StartError, match="not a data directory"), held(Layout(SimDisk(), "/data/nothing")):
        pass


def test_files_that_are_not_ours_are_shown_and_count_for_nothing(sound: SimDisk) -> None:
    disk = sound.fork()
    disk.create("/data/notes.txt").close()
    report = checked(disk)
    assert [found.verdict for found in report.findings] == [Verdict.STRAY]
    assert report.wrong() == []
