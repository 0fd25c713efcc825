"""Publications in replay: dropped without their Commit frame, and kept where that is damaged but was there."""

import pytest

from driftq.engine.state.control_frames import COMMIT
from driftq.errors import TopicNotFoundError
from driftq.features.staging.staging import PartRef
from driftq.model.topic_config import Durability
from driftq.storage.blocks.frame import Frame, Kind
from driftq.storage.wal.wal_head import read_wal_head
from driftq.storage.wal.wal_reader import scan_of
from driftq.testing import SimDisk
from tests.unit.features.staging.rig import StagingRig

_WAL = "/data/wal/wal-0000000000000001.log"


def _frames(disk: SimDisk) -> list[Frame]:
    file = disk.open(_WAL)
    content = file.pread(file.size(), 0)
    return [frame for frame in scan_of(content, 1, read_wal_head(content)) if isinstance(frame, Frame)]


def _published(durability: Durability = Durability.FSYNC) -> StagingRig:
    rig = StagingRig(wal_file_bytes=1 << 20)
    rig.put("a", durability)
    rig.write("a", "before")
    rig.stage(*range(300), part=0)
    rig.stage(*range(300, 20_000, 1), part=1)
    rig.commit(PartRef(0, 0, 1), PartRef(1, 0, 1))
    return rig


def _damage(rig: StagingRig, frame: Frame, *, header: bool = False) -> None:
    file = rig.disk.open(_WAL)
    file.pwritev([b"\xff\xff"], frame.start + (9 if header else 70))


def test_a_publication_is_append_frames_and_one_commit_frame_behind_them() -> None:
    rig = _published()
    kinds = [frame.kind for frame in _frames(rig.disk) if frame.kind in (Kind.APPEND, COMMIT)]
    assert kinds == [Kind.APPEND, Kind.APPEND, Kind.APPEND, COMMIT]


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.DISK, Durability.MEMORY])
def test_append_frames_without_their_commit_frame_are_dropped(durability: Durability) -> None:
    rig = _published(durability)
    commit = next(frame for frame in _frames(rig.disk) if frame.kind == COMMIT)
    file = rig.disk.open(_WAL)
    file.truncate(commit.start)
    rig.kill()
    assert rig.values() == ["before"]
    written = rig.write("a", "behind")
    assert rig.values() == ["before", "behind"]
    rig.kill()
    assert rig.values() == ["before", "behind"], "and stay dropped when their seqs are in use again"
    assert rig.topic("a").head >= written.last_seq


def test_a_damaged_commit_frame_costs_nothing_where_its_header_holds() -> None:
    """proves: G-REC-6, G-REC-7"""
    rig = _published()
    rig.write("a", "behind")
    rig.write("a", "more")
    commit = next(frame for frame in _frames(rig.disk) if frame.kind == COMMIT)
    _damage(rig, commit)
    rig.kill()
    assert rig.engine.recovered.control_lost == 1
    assert rig.values() == ["before", *range(20_000), "behind", "more"]
    assert rig.commit().deduped


def test_a_commit_frame_without_a_header_leaves_a_hole_and_what_is_behind_it() -> None:
    """proves: G-TOMB-3"""
    rig = _published()
    rig.write("a", "behind")
    rig.write("a", "more")
    commit = next(frame for frame in _frames(rig.disk) if frame.kind == COMMIT)
    _damage(rig, commit, header=True)
    rig.kill()
    records, tombstones = rig.walk("a")
    assert [record["data"] for record in records] == ["before", "behind", "more"]
    assert [(hole["reason"], hole["gap_from"], hole["gap_to"]) for hole in tombstones] == [("corruption", 2, 20_001)]


def test_a_damaged_append_frame_of_a_publication_is_a_hole_inside_it() -> None:
    """proves: G-REC-6, G-TOMB-3"""
    rig = _published()
    rig.write("a", "behind")
    rig.write("a", "more")
    second = [frame for frame in _frames(rig.disk) if frame.kind == Kind.APPEND][1]
    assert (second.seq, second.count) == (2, 300)
    _damage(rig, second)
    rig.kill()
    records, tombstones = rig.walk("a")
    assert [record["data"] for record in records] == ["before", *range(300, 20_000), "behind", "more"]
    assert [(hole["gap_from"], hole["gap_to"]) for hole in tombstones] == [(2, 301)]
    assert rig.commit().deduped


def test_checkpoint_and_tail_equal_a_full_replay() -> None:
    rig = _published()
    assert rig.checkpoint()
    rig.stage("next", batch=2)
    rig.commit(batch=2)
    rig.kill()
    assert rig.values() == ["before", *range(20_000), "next"]
    assert rig.staging.writer("a", "w").first == 20_002


def _heads(rig: StagingRig) -> list[object]:
    return [record["data"][1:] if isinstance(record["data"], list) else record["data"] for record in rig.walk("a")[0]]


@pytest.fixture
def large() -> StagingRig:
    rig = StagingRig(wal_file_bytes=4 << 20)
    rig.put("a")
    for part in range(3):
        rig.stage(*(["x" * 500, part, row] for row in range(1000)), part=part)
    return rig


PARTS = (PartRef(0, 0, 1), PartRef(1, 0, 1), PartRef(2, 0, 1))
WHOLE = [[part, row] for part in range(3) for row in range(1000)]


def test_a_large_one_is_encoded_aside_and_writes_come_behind_it(large: StagingRig) -> None:
    large.runtime.hold("driftq-encode")
    done = large.commit_nowait(*PARTS)
    large.runtime.run_until_idle()
    written = large.write_nowait("a", "behind")
    large.runtime.run_until_idle()
    assert (done.settled, written.settled, large.topic("a").head) == (False, False, 0)
    large.runtime.release("driftq-encode")
    large.runtime.run_until_idle()
    assert done.result().seqs == range(1, 3001)
    assert written.result().first_seq == 3001
    assert _heads(large) == [*WHOLE, "behind"]
    large.kill()
    assert _heads(large) == [*WHOLE, "behind"]


def test_a_config_that_changes_meanwhile_comes_first(large: StagingRig) -> None:
    large.runtime.hold("driftq-encode")
    done = large.commit_nowait(*PARTS)
    large.runtime.run_until_idle()
    large.hold_wal()
    changing = large.put_nowait("a", Durability.DISK, cap_records=2500)
    large.runtime.release("driftq-encode")
    large.runtime.run_until_idle()
    assert not done.settled
    large.release_wal()
    large.runtime.run_until_idle()
    assert not changing.result()
    assert done.result().seqs == range(1, 3001)
    assert _heads(large) == WHOLE[500:]
    large.runtime.advance(20)
    large.kill()
    assert _heads(large)[:2500] == WHOLE[500:]


def test_a_topic_that_is_deleted_meanwhile_ends_it(large: StagingRig) -> None:
    large.runtime.hold("driftq-encode")
    done = large.commit_nowait(*PARTS)
    large.runtime.run_until_idle()
    assert large.run(large.engine.delete_topic("a"))
    large.runtime.release("driftq-encode")
    large.runtime.run_until_idle()
    assert isinstance(done.error, TopicNotFoundError)
    assert large.engine.quota.reserved == 0


def test_a_graceful_stop_waits_for_it(large: StagingRig) -> None:
    done = large.commit_nowait(*PARTS)
    large.runtime.run_until_idle()
    large.restart()
    assert done.result().seqs == range(1, 3001)
    assert _heads(large) == WHOLE
