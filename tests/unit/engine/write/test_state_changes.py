"""A topic changes its class in place: earlier acks keep their promise, later writes get the new one (http-v0 §4.6)."""

import itertools

import pytest

from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.testing import CrashMode, EngineRig

EPHEMERAL, MEMORY, DISK, FSYNC = Durability
CHANGES = list(itertools.permutations(Durability, 2))


@pytest.mark.parametrize(("old", "new"), CHANGES)
@pytest.mark.parametrize("mode", [*CrashMode, None])
def test_a_crash_behind_a_change_keeps_what_either_class_promised(
    old: Durability, new: Durability, mode: CrashMode | None
) -> None:
    rig = EngineRig()
    rig.put("t", old)
    rig.write("t", 1, 2, 3)
    rig.put("t", new)
    rig.write("t", 4, 5)
    if mode is None:
        rig.kill()
    else:
        rig.crash(mode, 7)
    values = [record["data"] for record in rig.walk("t")[0]]
    before = [] if old is EPHEMERAL else [1, 2, 3]
    after = [4, 5] if new is FSYNC or (mode in (CrashMode.KEEP, None) and new is not EPHEMERAL) else []
    assert values[: len(before)] == before
    assert values[len(before) :] in ([], [4, 5])
    assert values[len(before) :][: len(after)] == after
    head = rig.topic("t").head
    if new in (DISK, FSYNC):
        assert head >= 5
    else:
        assert 3 <= head <= 5
    assert rig.write("t", 6).first_seq == head + 1


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_a_graceful_restart_behind_a_change_loses_only_what_was_never_written(old: Durability, new: Durability) -> None:
    rig = EngineRig()
    rig.put("t", old)
    rig.write("t", 1, 2, 3)
    rig.put("t", new)
    rig.write("t", 4, 5)
    assert [record["data"] for record in rig.walk("t")[0]] == [1, 2, 3, 4, 5]
    rig.restart()
    kept = ([] if old is EPHEMERAL else [1, 2, 3]) + ([] if new is EPHEMERAL else [4, 5])
    assert [record["data"] for record in rig.walk("t")[0]] == kept
    assert (rig.topic("t").head, rig.topic("t").holes.all) == (5, [])


def test_records_acked_under_fsync_are_there_when_the_topic_was_ephemeral_before() -> None:
    rig = EngineRig()
    rig.put("t", EPHEMERAL)
    rig.write("t", *range(300))
    rig.put("t", FSYNC)
    rig.write("t", "acked", tags=["x"], nodes=["n"], metas=[b'{"k":"v"}'])
    written = rig.walk("t", 300)[0]
    rig.crash()
    records, tombstones = rig.walk("t")
    assert (records, tombstones) == (written, []), "what an ephemeral topic loses is lost in silence"
    assert records[0]["$seq"] == 301


def test_a_change_away_from_disk_fixes_the_head_and_leaves_no_hole() -> None:
    rig = EngineRig()
    rig.put("t", DISK)
    rig.write("t", 1, 2)
    rig.put("t", FSYNC)
    rig.crash()
    assert (rig.topic("t").head, rig.topic("t").holes.all) == (2, [])


def test_a_change_to_disk_reserves_nothing_before_the_next_write() -> None:
    rig = EngineRig()
    rig.put("t", FSYNC)
    rig.write("t", 1, 2)
    rig.put("t", DISK)
    rig.crash()
    assert (rig.topic("t").head, rig.topic("t").holes.all) == (2, [])
    assert rig.write("t", 3).first_seq == 3
    rig.crash()
    assert [(hole.first, hole.reason) for hole in rig.topic("t").holes.all] == [(4, Reason.CRASH)]


def test_writes_wait_for_a_change_that_is_under_way_and_follow_the_new_class() -> None:
    rig = EngineRig()
    rig.put("t", MEMORY)
    rig.hold_wal()
    change = rig.put_nowait("t", FSYNC)
    rig.runtime.run_until_idle()
    write = rig.write_nowait("t", 1)
    rig.runtime.run_until_idle()
    assert [change.settled, write.settled] == [False, False]
    rig.release_wal()
    assert (change.result(), write.result().first_seq) == (False, 1)
    rig.crash()
    assert rig.seqs("t") == [1]


def test_many_changes_and_crashes_in_a_row_keep_every_fsync_record() -> None:
    rig = EngineRig()
    acked: list[int] = []
    for life, durability in enumerate([*Durability] * 3):
        rig.put("t", durability)
        rig.write("t", "by the way")
        rig.put("t", FSYNC)
        acked.append(rig.write("t", life).first_seq)
        rig.crash(CrashMode.REORDER, life)
        assert set(acked) <= set(rig.seqs("t"))
    assert len(set(acked)) == len(acked)
