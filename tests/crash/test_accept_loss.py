"""An operator accepts the loss of a file that is gone: the hole, the record of who and when, and what is refused."""

import errno

import pytest

from driftq.engine.files.missing_segments import MissingSegment, refusal
from driftq.errors import DriftQError, InvalidRequestError, StartError, TopicNotFoundError
from driftq.model.tombstone import Hole, Reason
from driftq.offline.repair.accept_loss import AcceptedLoss, accept_loss, accepted_losses
from driftq.storage.layout import Layout
from driftq.system.disk import Disk, Site
from driftq.testing import CrashMode, EngineRig, FaultyDisk, SimDisk
from tests.unit.engine.unreadable import Fault, filled

pytestmark = pytest.mark.crash

FIRST = "topics/00000001/seg-0000000000000001"
HOLE = [Hole(1, 8, Reason.CORRUPTION)]


def stopped(*, cold: bool) -> EngineRig:
    """A server that was stopped, and lost the file of its first segment since."""
    rig = filled(Fault(0), cold=cold)
    assert rig.close()
    path = f"/cold/{FIRST}.parquet" if cold else f"/data/{FIRST}.data"
    rig.disk.unlink(path)
    rig.disk.sync_dir(path.rpartition("/")[0], Site.WAL_TIMER)
    return rig


def accept(rig: EngineRig, disk: SimDisk, first: int = 1, last: int = 8, topic: str = "t") -> AcceptedLoss:
    return accept_loss(Layout(disk, "/data", rig.settings.cold_dir), rig.clock, topic, first, last, "ada")


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_the_server_starts_with_the_hole_and_who_and_when_are_kept(*, cold: bool) -> None:
    """proves: G-SEG-8; row: F-COLD-4"""
    rig = stopped(cold=cold)
    with pytest.raises(StartError, match=r"accept-loss t 1\.\.8"):
        rig.start()
    accepted = accept(rig, rig.disk)
    assert accepted == AcceptedLoss("t", 1, 1, 8, "ada", accepted.at)
    assert accepted.at.startswith("2023-11-14T22:13:2")
    rig.start()
    assert rig.seqs("t") == list(range(9, 25))
    assert rig.topic("t").holes.all == HOLE
    rig.runtime.advance(7000)
    rig.restart()
    assert rig.topic("t").holes.all == HOLE
    assert accepted_losses(Layout(rig.disk, "/data")) == [accepted]
    left = rig.disk.names("/cold/lost/topics/00000001" if cold else "/data/lost/topics/00000001")
    assert left == (["seg-0000000000000001.del"] if cold else ["seg-0000000000000001.idx", "seg-0000000000000001.tags"])


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_one_refusal_names_all_that_is_missing_with_commands_that_can_be_typed(*, cold: bool) -> None:
    """proves: G-SEG-8; row: F-COLD-4"""
    rig = filled(Fault(0), cold=cold)
    assert rig.close()
    suffix = "parquet" if cold else "data"
    for first in (1, 9):
        rig.disk.unlink(f"{rig.settings.cold_dir or '/data'}/topics/00000001/seg-{first:016}.{suffix}")
    with pytest.raises(StartError) as refused:
        rig.start()
    directories = "--data-dir /data --cold-dir /cold" if cold else "--data-dir /data"
    message = refused.value.message
    assert message.startswith("records 1..16 of topic 't' cannot be read: ")
    assert message.endswith(
        "nothing was changed; bring the files back and start again, or, if they are gone for good, accept the loss with"
        f" `driftq repair --accept-loss t 1..16 {directories}`"
    )
    accept(rig, rig.disk, 1, 16)
    rig.start()
    assert rig.seqs("t") == list(range(17, 25))


def test_a_refusal_shows_a_few_ranges_and_counts_the_others() -> None:
    """row: F-COLD-4"""
    rig, gone = EngineRig(), FileNotFoundError("its file is not there")
    rig.put("t")
    topic = rig.topic("t")
    missing = [MissingSegment(topic, first, first + 1, gone) for first in range(1, 60, 10)]
    message = refusal(missing, Layout(SimDisk(), "/my data")).message
    assert "31..32 of topic 't', and 2 more ranges cannot be read: its file is not there" in message
    assert message.count("driftq repair --accept-loss t ") == 4
    assert "t 31..32 --data-dir '/my data'`" in message


@pytest.mark.parametrize(("first", "last"), [(9, 16), (1, 16), (1, 4), (3, 8), (30, 40)])
@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_what_can_be_read_and_half_a_segment_are_refused(first: int, last: int, *, cold: bool) -> None:
    """proves: G-SEG-8"""
    rig = stopped(cold=cold)
    before = rig.disk.names("/data/meta")
    with pytest.raises(InvalidRequestError, match=r"can be read|1\.\.8"):
        accept(rig, rig.disk, first, last)
    with pytest.raises(TopicNotFoundError):
        accept(rig, rig.disk, topic="other")
    assert rig.disk.names("/data/meta") == before
    assert not rig.disk.exists("/data/lost")


def test_a_cold_directory_that_is_not_mounted_is_not_a_loss() -> None:
    """proves: G-SEG-8"""
    rig = filled(Fault(0), cold=True)
    assert rig.close()
    rig.disk.remove_tree("/cold/topics")
    with pytest.raises(StartError, match="is not the cold directory of this server"):
        accept(rig, rig.disk)


def test_one_block_that_the_disk_does_not_give_back_can_be_accepted() -> None:
    """proves: G-SEG-8"""
    rig = EngineRig(segment_max_events=600, cache_bytes=1)
    rig.put("t")
    for _ in range(2):
        rig.write("t", *range(300))
    rig.checkpoint()
    assert rig.close()
    path = f"/data/{FIRST}.data"
    offset, length = rig.topic("t").segments[0].index.place(0)
    assert length > 1000

    bad = _with_bad_sector(rig.disk, path, offset + 500)
    accepted = accept_loss(Layout(bad, "/data"), rig.clock, "t", 1, 300, "ada")
    assert (accepted.first_seq, accepted.last_seq) == (1, 300)
    again = EngineRig(rig.settings, disk=rig.disk, clock=rig.clock, wrap=lambda disk: _with_bad_sector(disk, path, 500))
    assert again.seqs("t") == list(range(301, 601))
    assert again.topic("t").holes.all == [Hole(1, 300, Reason.CORRUPTION)]


def _with_bad_sector(disk: Disk, path: str, place: int) -> FaultyDisk:
    """Return a disk that gives nothing back of a file that overlaps one byte."""
    made = FaultyDisk(disk, error=errno.EIO, forever=True, reads=True, when=lambda _, __: False)
    inner = made.open

    def open_file(name: str) -> object:
        file = inner(name)
        if name == path:
            pread = file.pread

            def checked(size: int, offset: int) -> bytes:
                if offset <= place < offset + size:
                    raise OSError(errno.EIO, "Input/output error", name)
                return pread(size, offset)

            file.pread = checked  # type: ignore[method-assign]
            file.pread_nowait = lambda size, offset: None  # type: ignore[method-assign]
        return file

    made.open = open_file  # type: ignore[method-assign,assignment]
    return made


@pytest.mark.parametrize("cold", [False, True], ids=["hot", "cold"])
def test_a_crash_at_any_call_leaves_the_refusal_or_the_hole_and_never_a_hole_without_its_record(*, cold: bool) -> None:
    """proves: G-SEG-8"""
    rig = stopped(cold=cold)
    seen = set()
    for image in _images(rig):
        for mode in CrashMode:
            disk = image.crash(mode, 0)
            seen.add(_outcome(rig, disk))
    assert seen == {"refused", "hole"}


def _images(rig: EngineRig, ignore: Site | None = None) -> list[SimDisk]:
    disk = rig.disk.crash(CrashMode.KEEP, 0)
    disk.ignore = ignore
    images: list[SimDisk] = []
    disk.on_call = lambda _, __: images.append(disk.fork())
    accept(rig, disk)
    return [*images, disk.fork()]


def _outcome(rig: EngineRig, disk: SimDisk) -> str:
    try:
        again = EngineRig(rig.settings, disk=disk, clock=rig.clock)
    except DriftQError:
        return "refused"
    assert again.topic("t").holes.all == HOLE
    assert again.seqs("t") == list(range(9, 25))
    again.runtime.stop()
    return "hole" if len(accepted_losses(Layout(disk, "/data"))) == 1 else "no record"


@pytest.mark.parametrize("site", [Site.LOST_RECORD, Site.LOST_DIR, Site.LOST_TOPIC_DIR], ids=str)
def test_without_its_sync_a_hole_would_have_no_record(site: Site) -> None:
    rig = stopped(cold=False)
    found = set()
    for image in _images(rig, site):
        for mode in CrashMode:
            for seed in range(4):
                try:
                    found.add(_outcome(rig, image.crash(mode, seed)))
                except Exception:  # noqa: BLE001  # half a record
                    found.add("no record")
    assert "no record" in found
