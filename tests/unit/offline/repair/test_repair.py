"""`driftq repair`: afterwards a server starts, nothing is wrong, and every record that could be read is there."""

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from driftq.offline.repair.checkpoint_remains import SECTIONS
from driftq.offline.repair.repair import Repair, Repaired
from driftq.testing import ManualClock, SimDisk
from driftq.testing.simulated_disk import SimFile
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


@pytest.fixture(scope="module")
def sound() -> SimDisk:
    """A directory behind a graceful stop."""
    return lived().disk


@pytest.fixture(scope="module")
def killed() -> SimDisk:
    """A directory whose server was killed: a checkpoint, and a log behind it."""
    return lived(clean=False).disk.fork()


def repaired(disk: SimDisk) -> Repaired:
    """Repair, and check what always holds behind it."""

    def restart() -> None:
        Life(disk).close()

    done = Repair(layout(disk), ManualClock(), restart, wal_file_bytes=8 << 10).run()
    assert not done.left, done.left
    return done


Picture = dict[int, list[dict[str, Any]]]


def picture(disk: SimDisk) -> Picture:
    """What a server shows on a copy of a disk, by the ids of topics: a name may be lost."""
    life = Life(disk.fork())
    shown = life.picture()
    return {topic.id: shown[topic.name] for topic in life.engine.catalog.visible()}


def missing(before: Picture, after: Picture) -> dict[int, set[int]]:
    """Seqs per topic that were shown before and are not now, or not the same."""
    found = {}
    for topic_id, records in before.items():
        left = {record["$seq"]: record for record in after.get(topic_id, [])}
        gone = {record["$seq"] for record in records if left.get(record["$seq"]) != record}
        if gone:
            found[topic_id] = gone
    return found


def told(disk: SimDisk, topic_id: int) -> set[int]:
    """The seqs of a topic that its readers are told are lost."""
    life = Life(disk.fork())
    tombstones = life.walk(life.engine.catalog.by_id[topic_id].name)[1]
    return {seq for tombstone in tombstones for seq in range(tombstone.gap_from, tombstone.gap_to + 1)}


def damaged_copies(disk: SimDisk, rng: random.Random, kinds: set[str]) -> Any:
    """The directory, broken in many single ways."""
    found = [(path, content) for path, content in contents(disk).items() if kind_of(path) in kinds]
    for path, content in rng.sample(found, min(4, len(found))):
        size = used_bytes(path, content)
        for way in ("flip", "cut", "remove"):
            broken = disk.fork()
            place = rng.randrange(size) if size else 0
            if way == "flip" and size:
                overwrite(broken, path, place, bytes([content[place] ^ (1 << rng.randrange(8))]))
            elif way == "cut" and size:
                truncate(broken, path, place)
            else:
                broken.unlink(path)
            yield f"{way} {path} {place}", broken


@pytest.mark.parametrize("kind", ["data", "idx", "tags", "parquet", "del", "wal", "meta", "stage"])
def test_whatever_breaks_what_is_lost_is_told_and_nothing_else_is_lost(sound: SimDisk, kind: str) -> None:
    before = picture(sound)
    for what, broken in damaged_copies(sound, random.Random(5), {kind}):
        repaired(broken)
        lost = missing(before, picture(broken))
        for topic_id, seqs in lost.items():
            assert seqs <= told(broken, topic_id), (what, topic_id)
        if kind in ("idx", "tags", "del", "wal", "stage"):
            assert not lost, what


@pytest.mark.parametrize("kind", ["data", "wal", "meta", "idx"])
def test_the_same_holds_for_what_a_killed_server_left(killed: SimDisk, kind: str) -> None:
    before = picture(killed)
    for what, broken in damaged_copies(killed, random.Random(9), {kind}):
        repaired(broken)
        for topic_id, seqs in missing(before, picture(broken)).items():
            assert seqs <= told(broken, topic_id), (what, topic_id, seqs)


def test_a_sound_block_survives_the_loss_of_any_other(sound: SimDisk) -> None:
    """A segment whose index is gone and whose first block is damaged: a start alone gives all of it up."""
    life = Life()
    life.put("t")
    for number in range(4):
        life.write("t", number, number)
        life.write("t", *range(300))
    life.close()
    before = picture(life.disk)
    path = next(p for p in contents(life.disk) if kind_of(p) == "data")
    blocks = list(frames(contents(life.disk)[path]))
    assert [block.count for block in blocks] == [2, 300]
    broken = life.disk.fork()
    overwrite(broken, path, blocks[0].start + 60, b"\xff\xff")
    broken.unlink(path.replace(".data", ".idx"))
    done = repaired(broken)
    assert done.salvaged == 300
    assert missing(before, picture(broken)) == {1: {1, 2}}
    assert [(lost.first_seq, lost.last_seq) for lost in done.lost] == [(1, 2)]


def test_what_a_segment_lost_comes_back_from_the_log() -> None:
    """A block whose frames the log still has."""
    life = Life()
    life.put("t")
    for number in range(12):
        life.write("t", number)
    life.checkpoint()
    disk = life.disk.fork()
    before = picture(disk)
    path = next(p for p in contents(disk) if kind_of(p) == "data")
    overwrite(disk, path, 70, b"\xff")
    assert repaired(disk).salvaged == 8
    assert not missing(before, picture(disk))


def test_deleted_records_do_not_come_back(sound: SimDisk) -> None:
    before = picture(sound)
    for _, broken in damaged_copies(sound, random.Random(11), {"idx", "parquet"}):
        repaired(broken)
        for topic_id, records in picture(broken).items():
            shown = {record["$seq"] for record in before[topic_id]}
            assert {record["$seq"] for record in records} <= shown


def test_without_any_checkpoint_records_are_found_under_names_that_say_so(sound: SimDisk) -> None:
    before = picture(sound)
    broken = sound.fork()
    for path in contents(sound):
        if kind_of(path) in ("meta", "wal"):
            broken.unlink(path)
    repaired(broken)
    shown = Life(broken.fork()).picture()
    assert "recovered-00000004" in shown
    stored = {record["$seq"] for record in before[4]}
    kept = {record["$seq"] for record in shown["recovered-00000004"]}
    assert stored - kept <= told(broken, 4) | set(range(max(kept) + 1, max(stored) + 1))


def test_the_tags_of_another_segment_delete_nothing_wrong(sound: SimDisk) -> None:
    """Behind a repair, a delete by tag takes what has that tag."""
    paths = [path for path in contents(sound) if kind_of(path) == "tags" and "/00000004/" in path]
    bulk = next(path for path in paths if b"bulk" in contents(sound)[path])
    foreign = next(path for path in paths if b"bulk" not in contents(sound)[path])
    broken = sound.fork()
    truncate(broken, bulk, 0)
    overwrite(broken, bulk, 0, contents(sound)[foreign])
    repaired(broken)
    assert not missing(picture(sound), picture(broken))
    shown = []
    for disk in (sound.fork(), broken):
        life = Life(disk)
        life.delete("t.fsync", match=["tag", "Glob", "bulk-*"])
        shown.append(life.picture()["t.fsync"])
    assert shown[0] == shown[1]


def test_originals_are_kept_byte_for_byte(sound: SimDisk) -> None:
    path = next(p for p in contents(sound) if kind_of(p) == "data")
    broken = sound.fork()
    overwrite(broken, path, 70, b"\xff")
    damaged = contents(broken)
    done = repaired(broken)
    kept = contents(broken)
    for name in (path, *(p for p in damaged if kind_of(p) in ("wal", "meta"))):
        assert kept[name.replace("/data", done.originals, 1)] == damaged[name]


def test_several_damages_at_once_cost_no_more_than_each(sound: SimDisk) -> None:
    before = picture(sound)
    rng = random.Random(13)
    for _ in range(6):
        broken = sound.fork()
        for path, content in rng.sample(sorted(contents(sound).items()), 6):
            size = used_bytes(path, content)
            if size:
                overwrite(broken, path, rng.randrange(size), b"\x55\xaa")
        repaired(broken)
        for topic_id, seqs in missing(before, picture(broken)).items():
            assert seqs <= told(broken, topic_id)


def test_records_that_only_a_damaged_checkpoint_holds_are_found_in_it() -> None:
    life = Life()
    life.put("t")
    life.write("t", "only", "copied")
    life.close()
    for number in range(1, 4):
        Life(life.disk).close()  # nothing of the first log is left
        assert number
    path = next(p for p in contents(life.disk) if kind_of(p) == "meta")
    content = contents(life.disk)[path]
    broken = life.disk.fork()
    overwrite(broken, path, content.index(b"\xa1t"), b"\xc1")
    repaired(broken)
    shown = Life(broken.fork()).picture()
    assert [record["data"] for record in shown["recovered-00000001"]] == ["only", "copied"]


def test_the_sections_that_are_known_are_those_that_a_server_writes() -> None:
    life = Life()
    assert {feature.name for feature in life.engine.catalog.features} | {"engine"} == SECTIONS


def test_a_flag_that_is_none_is_clear_behind_a_repair_without_a_checkpoint(sound: SimDisk) -> None:
    broken = sound.fork()
    for path, content in contents(sound).items():
        if kind_of(path) == "meta":
            broken.unlink(path)
        elif kind_of(path) == "data":
            overwrite(broken, path, len(content) - 1, b"\x17")
    before = picture(sound)
    repaired(broken)
    for topic_id, seqs in missing(before, picture(broken)).items():
        assert seqs <= told(broken, topic_id), topic_id


BadSector = Callable[[SimDisk, str, int], None]
_SECTOR = 4096


@pytest.fixture
def bad_sector(monkeypatch: pytest.MonkeyPatch) -> BadSector:
    """Let one sector be unreadable: that of a file, whatever its name becomes."""
    bad: set[tuple[int, int]] = set()
    whole = SimFile.pread

    def pread(file: SimFile, size: int, offset: int) -> bytes:
        sectors = range(offset // _SECTOR, (offset + max(size, 1) - 1) // _SECTOR + 1)
        if any((file._inode, sector) in bad for sector in sectors):
            raise OSError(errno.EIO, "Input/output error", file._path)
        return whole(file, size, offset)

    def spoil(disk: SimDisk, path: str, place: int) -> None:
        bad.clear()
        bad.add((disk.open(path)._inode, place // _SECTOR))

    monkeypatch.setattr(SimFile, "pread", pread)
    return spoil


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("kind", ["data", "idx", "tags", "parquet", "del", "wal", "meta", "stage"])
def test_a_sector_that_cannot_be_read_costs_no_more_than_what_it_held(
    bad_sector: BadSector, sound: SimDisk, killed: SimDisk, kind: str, clean: bool
) -> None:
    base = sound if clean else killed
    before = picture(base)
    for path in [path for path in contents(base) if kind_of(path) == kind]:
        broken = base.fork()
        bad_sector(broken, path, 0)
        assert next(found.file for found in checked(broken).wrong()).rpartition(".")[0] == path.rpartition(".")[0]
        repaired(broken)
        for topic_id, seqs in missing(before, picture(broken)).items():
            assert seqs <= told(broken, topic_id), (path, topic_id)
        originals = "/data/damaged-1700000000" if path.startswith("/data") else "/cold/damaged-1700000000"
        assert broken.exists(f"{originals}/{path.split('/', 2)[2]}.unreadable")


def test_blocks_beside_a_bad_sector_are_kept(bad_sector: BadSector) -> None:
    life = Life()
    life.put("t")
    life.write("t", 1, 2)
    life.write("t", *[f"{number:>40}" for number in range(300)])
    life.close()
    Life(life.disk).close()  # the log of the first run is gone now: only the segment has the records
    before = picture(life.disk)
    path = next(p for p in contents(life.disk) if kind_of(p) == "data")
    small, large = frames(contents(life.disk)[path])
    assert small.end < _SECTOR < large.end
    bad_sector(life.disk, path, large.end - 1)
    done = repaired(life.disk)
    assert missing(before, picture(life.disk)) == {1: set(range(3, 303))}
    assert [(lost.first_seq, lost.last_seq) for lost in done.lost] == [(3, 302)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("directory", ["wal", "meta", "stage"])
def test_a_directory_that_is_gone_is_made_again(sound: SimDisk, killed: SimDisk, directory: str, clean: bool) -> None:
    broken = (sound if clean else killed).fork()
    before = picture(broken)
    broken.remove_tree(f"/data/{directory}")
    repaired(broken)
    for topic_id, seqs in missing(before, picture(broken)).items():
        assert seqs <= told(broken, topic_id), topic_id


@pytest.mark.parametrize("dies_in", ["_stand_in", "_install", "_prove_ends", "_start"])
def test_a_repair_that_dies_on_its_way_hides_no_loss(
    killed: SimDisk, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    broken = killed.fork()
    for path in [path for path in contents(broken) if kind_of(path) == "wal"]:
        broken.unlink(path)
    other = broken.fork()
    repaired(other)
    with monkeypatch.context() as dying:
        dying.setattr(Repair, dies_in, lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            repaired(broken)
    assert checked(broken).wrong()
    repaired(broken)
    assert picture(broken) == picture(other)
    for topic_id in picture(other):
        assert bool(told(broken, topic_id)) == bool(told(other, topic_id))


def _with_cold_deletes() -> SimDisk:
    """A directory whose cold segments have each one deleted row, at another place each."""
    life = Life()
    life.put("t")
    for number in range(48):
        life.write("t", number)
    life.delete("t", seqs=[2, 13])
    life.runtime.advance(12_000)
    life.checkpoint()
    life.runtime.advance(12_000)
    life.close()
    dels = [content[24:].count(0xD5) for path, content in contents(life.disk).items() if kind_of(path) == "del"]
    assert dels[:2] == [1, 1]
    return life.disk


def test_the_delete_flags_of_two_cold_segments_find_back_to_their_own() -> None:
    disk = _with_cold_deletes()
    before = picture(disk)
    files = contents(disk)
    first, second = [path for path in files if kind_of(path) == "del"][:2]
    overwrite(disk, first, 0, files[second])
    overwrite(disk, second, 0, files[first])
    repaired(disk)
    assert picture(disk) == before


def test_delete_flags_of_another_cold_segment_hide_nothing() -> None:
    disk = _with_cold_deletes()
    before = picture(disk)
    first, second = [path for path in contents(disk) if kind_of(path) == "del"][:2]
    overwrite(disk, second, 0, contents(disk)[first])
    repaired(disk)
    assert not missing(before, picture(disk))


def test_a_damaged_footer_brings_no_deleted_record_back() -> None:
    disk = _with_cold_deletes()
    before = picture(disk)
    path = next(path for path in contents(disk) if kind_of(path) == "parquet")
    place = contents(disk)[path].rindex(b"parquet-cpp-arrow")
    overwrite(disk, path, place, b"P")
    repaired(disk)
    assert picture(disk) == before
