"""Staged writes: invisible until committed, published once and whole, gone when nobody can ask for them."""

import errno

import pytest

from driftq.errors import (
    EpochMismatchError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    StageIncompleteError,
    ThrottledError,
    TopicFullError,
    TopicNotFoundError,
)
from driftq.features.staging.staged_parts import Parts
from driftq.features.staging.staging import PartRef
from driftq.model.limits import Limits
from driftq.model.topic_config import Discard, Durability, TopicConfig
from driftq.testing import CrashMode, FaultyDisk
from tests.unit.failing import BugError, fail_once
from tests.unit.features.staging.rig import StagingRig


@pytest.fixture
def rig() -> StagingRig:
    rig = StagingRig()
    rig.put("a")
    return rig


def test_parts_appear_together_in_the_order_of_the_commit(rig: StagingRig) -> None:
    for part in (0, 1, 2):
        rig.stage(f"{part}a", f"{part}b", part=part)
    assert rig.values() == []
    done = rig.commit(PartRef(2, 0, 1), PartRef(0, 0, 1), PartRef(1, 0, 1))
    assert (done.seqs, done.deduped, done.head_seq) == (range(1, 7), False, 6)
    assert rig.values() == ["2a", "2b", "0a", "0b", "1a", "1b"]


def test_small_and_large_parts_share_one_publication(rig: StagingRig) -> None:
    rig.stage(*range(3), part=0)
    rig.stage(*range(700), part=1)
    rig.stage(*range(5), part=2)
    assert rig.commit(PartRef(0, 0, 1), PartRef(1, 0, 1), PartRef(2, 0, 1)).seqs == range(1, 709)
    wanted = [*range(3), *range(700), *range(5)]
    assert rig.values() == wanted
    rig.kill()
    assert rig.values() == wanted
    rig.restart()
    assert rig.values() == wanted


def test_readers_see_all_of_a_commit_or_nothing(rig: StagingRig) -> None:
    rig.stage(*range(300), part=0)
    rig.stage(*range(300), part=1)
    heads: list[int] = []
    rig.engine.wakeups.add("a", lambda: heads.append(rig.topic("a").head))
    rig.hold_wal()
    done = rig.commit_nowait(PartRef(0, 0, 1), PartRef(1, 0, 1))
    rig.runtime.run_until_idle()
    assert (done.settled, rig.topic("a").head) == (False, 0)
    rig.release_wal()
    assert done.result().seqs == range(1, 601)
    assert heads == [600]


def test_the_same_address_again_replaces_and_leaves_one_file(rig: StagingRig) -> None:
    rig.stage("old")
    rig.stage("new")
    assert len(rig.files()) == 1
    rig.commit()
    assert rig.values() == ["new"]


def test_of_two_at_one_address_under_way_the_later_stays(rig: StagingRig) -> None:
    both = [rig.stage_nowait("first"), rig.stage_nowait("second")]
    rig.runtime.run_until_idle()
    assert all(one.result().records == 1 for one in both)
    rig.commit()
    assert rig.values() == ["second"]


def test_a_commit_without_its_parts_names_them_and_changes_nothing(rig: StagingRig) -> None:
    rig.stage("v", part=0)
    with pytest.raises(StageIncompleteError) as refused:
        rig.commit(PartRef(0, 0, 2), PartRef(1, 3, 1))
    missing = [{"part": 0, "attempt": 0, "chunk": 1}, {"part": 1, "attempt": 3, "chunk": 0}]
    assert refused.value.detail == {"missing": missing}
    assert rig.values() == []
    with pytest.raises(NotFoundError, match="writer 'w' has committed no batch in topic"):
        rig.staging.writer("a", "w")


def test_all_that_is_missing_is_named_up_to_a_thousand(rig: StagingRig) -> None:
    rig.put("a")
    with pytest.raises(StageIncompleteError) as refused:
        rig.commit(PartRef(0, 0, 3))
    missing = [{"part": 0, "attempt": 0, "chunk": chunk} for chunk in range(3)]
    assert refused.value.detail == {"missing": missing}
    with pytest.raises(StageIncompleteError) as refused:
        rig.commit(PartRef(0, 0, 1 << 63), PartRef(1, 0, 1))
    assert refused.value.detail is not None
    assert refused.value.detail["missing"] == [{"part": 0, "attempt": 0, "chunk": chunk} for chunk in range(1000)]


def test_a_commit_that_makes_no_sense_is_refused(rig: StagingRig) -> None:
    rig.stage("v")
    with pytest.raises(InvalidRequestError, match="empty"):
        rig.staging.commit("a", "w", 1, ())
    with pytest.raises(InvalidRequestError, match="chunks must be at least 1"):
        rig.commit(PartRef(0, 0, 0))
    with pytest.raises(InvalidRequestError, match="twice"):
        rig.commit(PartRef(0, 0, 1), PartRef(0, 0, 1))
    for writer, message in (("", "writer is empty"), ("ä" * 200, "writer is 400 bytes; the limit is 128")):
        with pytest.raises(InvalidRequestError, match=f"^{message}$"):
            rig.commit(writer=writer)
    with pytest.raises(StageIncompleteError):
        rig.commit(PartRef(0, 0, 1 << 60))
    with pytest.raises(EpochMismatchError):
        rig.commit(epoch=99)
    assert rig.commit(epoch=rig.topic("a").id).seqs == range(1, 2)


def test_a_batch_up_to_the_last_is_never_published_again(rig: StagingRig) -> None:
    for batch in (3, 8):
        rig.stage(f"batch {batch}", batch=batch)
        rig.commit(batch=batch)
    again = rig.commit(batch=8)
    assert (again.deduped, again.seqs, again.head_seq) == (True, range(2, 3), 2)
    rig.stage("again", batch=5)
    older = rig.commit(batch=5)
    assert (older.deduped, older.seqs) == (True, None)
    rig.runtime.advance(20)
    assert rig.files() == []
    rig.kill()
    assert rig.commit(batch=8).deduped
    assert rig.values() == ["batch 3", "batch 8"]
    assert rig.staging.writer("a", "w").batch == 8


def test_repeated_commits_are_counted(rig: StagingRig) -> None:
    rig.stage("x", batch=3)
    for _ in range(3):
        rig.commit(batch=3)
    assert rig.staging.repeated == 2


def test_of_commits_at_once_one_publishes_and_all_answer_its_seqs(rig: StagingRig) -> None:
    rig.stage(*range(5))
    answers = [rig.commit_nowait() for _ in range(4)]
    rig.runtime.run_until_idle()
    assert sorted(answer.result().deduped for answer in answers) == [False, True, True, True]
    assert {answer.result().seqs for answer in answers} == {range(1, 6)}
    assert rig.topic("a").head == 5


def test_a_commit_that_fails_leaves_the_next_its_turn(rig: StagingRig) -> None:
    refused = rig.commit_nowait(PartRef(7, 0, 1))
    rig.stage("v")
    good = rig.commit_nowait()
    rig.runtime.run_until_idle()
    assert isinstance(refused.error, StageIncompleteError)
    assert good.result().seqs == range(1, 2)


def test_a_topic_that_is_deleted_under_a_commit_ends_it(rig: StagingRig) -> None:
    rig.stage("v")
    rig.hold_wal()
    deleting = rig.engine.delete_topic("a")
    committing = rig.commit_nowait()
    rig.runtime.run_until_idle()
    rig.release_wal()
    assert deleting.result()
    assert isinstance(committing.error, TopicNotFoundError)
    rig.put("a")
    with pytest.raises(StageIncompleteError):
        rig.commit()
    assert rig.files() == []
    assert rig.engine.quota.reserved == 0


def test_a_part_for_a_topic_that_goes_meanwhile_is_not_kept(rig: StagingRig) -> None:
    rig.runtime.hold("driftq-stage")
    staging = rig.stage_nowait("v")
    rig.run(rig.engine.delete_topic("a"))
    rig.runtime.release("driftq-stage")
    rig.runtime.run_until_idle()
    assert isinstance(staging.error, TopicNotFoundError)
    assert rig.files() == []


def test_writers_are_independent_and_die_with_the_topic(rig: StagingRig) -> None:
    for writer in ("one", "t/h r&e=e"):
        rig.stage(writer, writer=writer)
        rig.commit(writer=writer)
    assert rig.values() == ["one", "t/h r&e=e"]
    rig.run(rig.engine.delete_topic("a"))
    rig.put("a")
    with pytest.raises(NotFoundError):
        rig.staging.writer("a", "one")
    rig.stage("new", writer="one")
    assert not rig.commit(writer="one").deduped


def test_a_full_topic_refuses_a_commit_whole_and_keeps_its_parts() -> None:
    rig = StagingRig()
    rig.put("a", cap_records=5, discard=Discard.REJECT)
    rig.write("a", 1, 2, 3)
    rig.stage("x", "y", part=0)
    rig.stage("z", part=1)
    with pytest.raises(TopicFullError):
        rig.commit(PartRef(0, 0, 1), PartRef(1, 0, 1))
    rig.delete("a", before_seq=2)
    assert rig.commit(PartRef(0, 0, 1), PartRef(1, 0, 1)).seqs == range(4, 7)


def test_under_old_a_commit_evicts_as_one_write_does_live_and_in_replay() -> None:
    rig = StagingRig()
    rig.put("a", cap_records=3)
    rig.write("a", "x", "y")
    rig.stage(1, 2, part=0)
    rig.stage(3, 4, part=1)
    rig.commit(PartRef(0, 0, 1), PartRef(1, 0, 1))
    assert rig.values() == [2, 3, 4]
    rig.kill()
    assert rig.values() == [2, 3, 4]
    assert rig.topic("a").cap_lost == 3


def test_staged_bytes_count_once_against_the_quota() -> None:
    rig = StagingRig(limits=Limits(total_bytes_max=100))
    rig.put("a")
    rig.stage("x" * 58)
    with pytest.raises(ThrottledError):
        rig.write("a", "y" * 58)
    with pytest.raises(ThrottledError):
        rig.stage("y" * 58, part=1)
    rig.stage("z" * 58)
    rig.commit()
    assert (rig.engine.quota.reserved, rig.topic("a").payload) == (0, 60)
    rig.write("a", "y" * 38)
    with pytest.raises(ThrottledError):
        rig.stage("y")


def test_dropped_parts_are_gone_and_give_their_bytes_back(rig: StagingRig) -> None:
    rig.stage("v", writer="x")
    rig.stage("v", part=0)
    rig.stage("v", part=1)
    assert rig.run(rig.staging.drop("a", "w")) == 2
    assert rig.run(rig.staging.drop("a", "w")) == 0
    assert rig.engine.quota.reserved == 3
    rig.crash(CrashMode.DROP)
    with pytest.raises(StageIncompleteError):
        rig.commit()
    assert rig.commit(writer="x").seqs == range(1, 2)


def test_parts_expire_and_a_restart_does_not_make_them_younger(rig: StagingRig) -> None:
    staged = rig.stage("v", part=0)
    assert staged.expires_ts == rig.clock.wall_ms() + 60_000
    rig.runtime.advance(40_000)
    rig.kill()
    rig.stage("w", part=1)
    rig.runtime.advance(19_999)
    assert len(rig.files()) == 2
    rig.runtime.advance(1001)
    assert len(rig.files()) == 1
    with pytest.raises(StageIncompleteError):
        rig.commit()
    assert rig.commit(PartRef(1, 0, 1)).seqs == range(1, 2)


def test_a_commit_in_time_succeeds_although_its_parts_expire_meanwhile(rig: StagingRig) -> None:
    rig.stage("v")
    rig.runtime.hold("driftq-stage")
    committing = rig.commit_nowait()
    rig.runtime.advance(70_000)
    rig.runtime.release("driftq-stage")
    rig.runtime.run_until_idle()
    assert committing.result().seqs == range(1, 2)


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.MEMORY])
def test_parts_go_only_when_the_commit_is_on_stable_storage(durability: Durability) -> None:
    rig = StagingRig()
    rig.write("a", config=TopicConfig(durability=durability))
    rig.stage("v", part=0)
    rig.stage("other attempt", part=0, attempt=1)
    rig.stage("later", batch=2)
    rig.commit()
    assert rig.values() == ["v"]
    assert len(rig.files()) == 3, "a power loss may still take the commit"
    rig.runtime.advance(20)
    assert len(rig.files()) == 1, "the later batch waits on"


def test_a_lost_commit_is_repeated_from_its_parts() -> None:
    rig = StagingRig()
    rig.write("a", config=TopicConfig(durability=Durability.DISK))
    rig.stage("v")
    assert not rig.commit().deduped
    rig.crash(CrashMode.DROP)
    assert rig.values() == []
    assert not rig.commit().deduped
    rig.runtime.advance(20)
    rig.crash(CrashMode.DROP)
    assert rig.values() == ["v"]
    assert rig.commit().deduped


def test_an_ephemeral_topic_takes_commits_and_remembers_its_writers() -> None:
    rig = StagingRig()
    rig.put("a", Durability.EPHEMERAL)
    rig.stage("v", "w")
    assert rig.commit().seqs == range(1, 3)
    assert rig.values() == ["v", "w"]
    rig.runtime.advance(20)
    rig.kill()
    assert rig.values() == []
    assert rig.commit().deduped


def test_the_last_batch_survives_checkpoints_and_a_damaged_part_is_not_there(rig: StagingRig) -> None:
    rig.stage("v")
    rig.commit()
    rig.stage("w", batch=2)
    rig.restart()
    assert rig.commit().deduped
    (name,) = rig.files()
    file = rig.disk.open(f"/data/stage/{name}")
    file.pwritev([b"X"], file.size() - 12)
    with pytest.raises(StageIncompleteError):
        rig.commit(batch=2)
    rig.stage("again", batch=2)
    assert rig.commit(batch=2).seqs == range(2, 3)


@pytest.mark.parametrize("operation", ["create", "pwritev", "sync", "sync_dir"])
def test_a_part_that_cannot_be_kept_is_refused_and_costs_nothing(operation: str) -> None:
    armed: list[bool] = []

    def strikes(called: str, path: str) -> bool:
        return bool(armed) and called == operation and path.startswith("/data/stage")

    rig = StagingRig(wrap=lambda disk: FaultyDisk(disk, when=strikes))
    rig.put("a")
    armed.append(True)
    with pytest.raises(InternalError, match="could not be stored"):
        rig.stage("v")
    assert (rig.engine.quota.reserved, rig.files()) == (0, [])
    with pytest.raises(StageIncompleteError):
        rig.commit()
    rig.stage("again")
    rig.commit()
    assert rig.values() == ["again"]


def test_a_part_that_cannot_be_read_now_is_an_error_and_stays() -> None:
    armed: list[bool] = []

    def strikes(called: str, path: str) -> bool:
        return bool(armed) and called == "open" and path.startswith("/data/stage")

    rig = StagingRig(wrap=lambda disk: FaultyDisk(disk, error=errno.EMFILE, reads=True, when=strikes))
    rig.put("a")
    rig.stage("v")
    armed.append(True)
    with pytest.raises(InternalError, match="could not be read"):
        rig.commit()
    assert rig.commit().seqs == range(1, 2)


def test_a_commit_whose_write_fails_publishes_nothing_and_keeps_its_parts() -> None:
    armed: list[bool] = []

    def strikes(called: str, path: str) -> bool:
        return bool(armed) and called == "pwritev" and "/wal/" in path

    rig = StagingRig(wrap=lambda disk: FaultyDisk(disk, error=errno.ENOSPC, when=strikes))
    rig.put("a")
    rig.stage("v")
    armed.append(True)
    with pytest.raises(InternalError):
        rig.commit()
    assert (rig.values(), rig.topic("a").in_flight.records) == ([], 0)
    assert rig.commit().seqs == range(1, 2)
    assert rig.values() == ["v"]


def test_a_look_for_expired_parts_that_fails_is_not_the_last(rig: StagingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.stage(1)
    fail_once(monkeypatch, Parts, "expired")
    with pytest.raises(BugError):
        rig.runtime.advance(60_000)
    rig.runtime.advance(60_000)
    assert rig.files() == []


def test_a_writer_with_a_drawn_name_is_forgotten_and_a_named_one_is_not(rig: StagingRig) -> None:
    drawn = f"batch:{7:032x}"
    for writer in (drawn, "batch:nightly", "w"):
        rig.stage(writer, writer=writer)
        rig.commit(writer=writer)
    rig.runtime.advance(59_000)
    assert rig.commit(writer=drawn).deduped
    rig.stage("again", writer=drawn, batch=2)
    rig.runtime.advance(59_000)
    assert rig.staging.writer("a", drawn).batch == 1
    rig.runtime.advance(3_000)
    with pytest.raises(NotFoundError):
        rig.staging.writer("a", drawn)
    assert {rig.staging.writer("a", writer).batch for writer in ("batch:nightly", "w")} == {1}
    assert drawn.encode() not in rig.staging.capture()


def test_a_restart_remembers_a_drawn_name_for_as_long_again(rig: StagingRig) -> None:
    drawn = f"batch:{7:032x}"
    rig.stage("x", writer=drawn)
    rig.commit(writer=drawn)
    rig.runtime.advance(50_000)
    rig.restart()
    assert rig.staging.writer("a", drawn).batch == 1
    rig.runtime.advance(62_000)
    with pytest.raises(NotFoundError):
        rig.staging.writer("a", drawn)
