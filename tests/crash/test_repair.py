"""A repair that dies with any of its disk calls, and one behind it: together they do what one alone does."""

import os
import random
from collections.abc import Callable

import pytest

from driftq.model.topic_config import Durability
from driftq.offline.repair.repair import Repair
from driftq.offline.repair.seq_ranges import Range, joined
from driftq.system.disk import Site
from driftq.testing import CrashMode, ManualClock, SimDisk
from tests.crash.sweep import MODES, crash
from tests.unit.offline.life import Life, contents, kind_of, layout, overwrite
from tests.unit.offline.repair.test_repair import BadSector, Picture, bad_sector, picture, told

pytestmark = pytest.mark.crash

_STATES = 10_000 if os.environ.get("CRASH") == "all" else 40
_TRIAL_STATES = 300
Result = tuple[Picture, dict[int, list[Range]]]
Harm = Callable[[SimDisk, BadSector], None]
__all__ = ["bad_sector"]


def _lived() -> SimDisk:
    """A killed server's directory: hot and cold segments, deletes, a checkpoint and a log behind it."""
    life = Life()
    for name in ("t", "u"):
        life.put(name, Durability.FSYNC)
        for number in range(34):
            life.write(name, number)
        life.delete(name, seqs=[2, 13, 27])
    life.runtime.advance(12_000)
    life.checkpoint()
    life.runtime.advance(12_000)
    for number in range(5):
        life.write("t", f"behind {number}")
    return life.disk.fork()


def _paths(disk: SimDisk, kind: str) -> list[str]:
    return [path for path in contents(disk) if kind_of(path) == kind]


def _bad_segment(disk: SimDisk, spoil: BadSector) -> None:
    spoil(disk, _paths(disk, "data")[-1], 0)


def _bad_log(disk: SimDisk, spoil: BadSector) -> None:
    spoil(disk, _paths(disk, "wal")[-1], 0)


def _bad_checkpoint(disk: SimDisk, spoil: BadSector) -> None:
    path = _paths(disk, "meta")[-1]
    overwrite(disk, path, 30, b"\x55\xaa")
    overwrite(disk, _paths(disk, "data")[0], 70, b"\xff")


def _odd_flags(disk: SimDisk, spoil: BadSector) -> None:
    for path, flag in ((_paths(disk, "data")[0], b"\xd5"), (_paths(disk, "del")[0], b"\x17")):
        overwrite(disk, path, len(contents(disk)[path]) - 1, flag)


def _log_gone(disk: SimDisk, spoil: BadSector) -> None:
    for path in _paths(disk, "wal"):
        disk.unlink(path)
    disk.sync_dir("/data/wal", Site.WAL_DIR)


HARMS: list[Harm] = [_bad_segment, _bad_log, _bad_checkpoint, _odd_flags, _log_gone]


def _repaired(disk: SimDisk) -> Result:
    def restart() -> None:
        ignored, disk.ignore = disk.ignore, None  # the server's syncs have trials of their own
        Life(disk).close()
        disk.ignore = ignored

    done = Repair(layout(disk), ManualClock(), restart, wal_file_bytes=8 << 10).run()
    assert not done.left, done.left
    shown = picture(disk)
    return shown, {topic_id: joined([(seq, seq) for seq in told(disk, topic_id)]) for topic_id in shown}


def _images(disk: SimDisk) -> tuple[Result, list[tuple[str, SimDisk]]]:
    images: list[tuple[str, SimDisk]] = []
    disk.on_call = lambda call, path: images.append((f"{len(images)} {call} {path}", disk.fork()))
    result = _repaired(disk)
    return result, images


def _violations(harm: Harm, spoil: BadSector, *, ignore: Site | None = None) -> list[str]:
    disk = _lived()
    harm(disk, spoil)
    disk = disk.crash(CrashMode.KEEP, 0)
    disk.ignore = ignore
    result, images = _images(disk)
    rng = random.Random(7)
    tried = [(image, mode) for image in images for mode in MODES]
    rng.shuffle(tried)
    found: list[str] = []
    for number, ((what, image), mode) in enumerate(tried):
        if found or number >= (_STATES if ignore is None else _TRIAL_STATES):
            break
        crashed = crash(image, mode, rng.getrandbits(16))
        crashed.ignore = None
        try:
            again = _repaired(crashed)
        except Exception as failure:  # noqa: BLE001 - whatever a repair raises is a broken promise
            found.append(f"{what}, {mode}: {failure!r}")
        else:
            if again != result:
                found.append(f"{what}, {mode}: {_difference(result, again)}")
    return found


def _difference(one: Result, other: Result) -> str:
    shown = {
        topic_id: [[record["$seq"] for record in picture.get(topic_id, [])] for picture in (one[0], other[0])]
        for topic_id in one[0]
        if one[0][topic_id] != other[0].get(topic_id)
    }
    return f"{shown} {one[1]} {other[1]}"


@pytest.mark.parametrize("harm", HARMS)
def test_a_second_repair_ends_as_the_first_would_have(bad_sector: BadSector, harm: Harm) -> None:
    assert not _violations(harm, bad_sector)


SHOWN_BY = {
    Site.LAYOUT_DIR: _bad_checkpoint,
    Site.SEGMENT_DATA: _bad_checkpoint,
    Site.SEGMENT_FLAG: _odd_flags,
    Site.WAL_REPLAYED: _log_gone,
    Site.WAL_DIR: _log_gone,
}
"""What of the repair itself syncs, and a damage behind which some crash shows that it is missing."""


@pytest.mark.parametrize("site", SHOWN_BY, ids=str)
def test_without_its_sync_a_repair_would_not(bad_sector: BadSector, site: Site) -> None:
    assert _violations(SHOWN_BY[site], bad_sector, ignore=site), f"nobody misses {site}"
